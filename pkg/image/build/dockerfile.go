package build

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Base is the base image of a Dockerfile.
type Base string

// The base images that Dockerfile knows.
const (
	BaseDebian Base = "debian"
	BaseSlim   Base = "slim"
	BaseAlpine Base = "alpine"
)

// The releases of the base images.
const (
	DefaultSuite  = "bookworm"
	alpineVersion = "3.20"
)

// excludes are files of packages that no program needs. Copyright notices stay: the licences require them in every copy of an image.
var excludes = []string{
	"path-exclude=/usr/share/doc/*",
	"path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*",
	"path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*",
	"path-include=/usr/share/locale/locale.alias",
	"path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/bug/*",
	"path-exclude=/usr/share/doc-base/*",
}

// manualPages is a directory that has to exist: the Java packages link pages into it, and their installation fails without it.
const manualPages = "/usr/share/man/man1"

// Dockerfile returns a Dockerfile for the image. Its result is not reproducible as that of Build is: it depends on the base image and on
// the day.
func (d *Definition) Dockerfile(base Base) (string, error) {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# %s: %s.", d.Title, d.Description)
	line("# Written by: sandbox-run image dockerfile %s --base %s", d.Name, base)
	line("# docker build -t %s - <Dockerfile", strings.TrimSuffix(d.Reference(), ":latest"))
	switch base {
	case BaseDebian, BaseSlim:
		from := "debian:" + DefaultSuite
		if base == BaseSlim {
			from += "-slim"
		}
		line("FROM %s", from)
		line(`RUN printf '%%s\n' \`)
		for _, e := range d.dpkgOptions() {
			line("        '%s' \\", e)
		}
		line("        >/etc/dpkg/dpkg.cfg.d/sandbox-run && \\")
		line("    mkdir -p %s && \\", manualPages)
		line("    apt-get update && \\")
		line("    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\")
		line("        %s && \\", strings.Join(d.Debian, " \\\n        "))
		for _, pattern := range d.Remove {
			line("    rm -rf %s && \\", pattern)
		}
		line("    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* && \\")
		line("    groupadd -g %d %s && \\", userID, sandbox.UserName)
		line("    useradd -u %d -g %d -d %s -M -s /bin/sh %s && \\", userID, userID, sandbox.HomeDir, sandbox.UserName)
	case BaseAlpine:
		if len(d.Alpine) == 0 {
			return "", sandbox.Invalid("image dockerfile", "%s has no packages of Alpine; use --base slim", d.Name)
		}
		line("FROM alpine:%s", alpineVersion)
		line("RUN apk add --no-cache \\")
		line("        %s && \\", strings.Join(d.Alpine, " \\\n        "))
		line("    addgroup -g %d %s && \\", userID, sandbox.UserName)
		line("    adduser -u %d -G %s -h %s -H -D -s /bin/sh %s && \\", userID, sandbox.UserName, sandbox.HomeDir, sandbox.UserName)
	default:
		return "", sandbox.Invalid("image dockerfile", "base %q is not one of debian, slim and alpine", base)
	}
	line("    mkdir -p %s %s && \\", sandbox.WorkspaceDir, sandbox.HomeDir)
	line("    chown %d:%d %s %s", userID, userID, sandbox.WorkspaceDir, sandbox.HomeDir)
	if base == BaseAlpine && len(d.AlpinePath) > 0 {
		line("ENV PATH=%s:%s", searchPath, strings.Join(d.AlpinePath, ":"))
	}
	for _, e := range d.environ() {
		if !strings.HasPrefix(e, "PATH=") { // the base image sets it
			line("ENV %s", e)
		}
	}
	labels := d.labels()
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		line("LABEL %s=%q", k, labels[k])
	}
	line("WORKDIR %s", sandbox.WorkspaceDir)
	line("USER %d:%d", userID, userID)
	cmd, err := json.Marshal(d.Cmd)
	if err != nil {
		return "", err
	}
	line("CMD %s", cmd)
	return b.String(), nil
}

// userID is the uid and gid of the sandbox's user in every image.
const userID = 1000

// The labels of an image that the OCI does not define.
const (
	labelName      = "sandbox-run.image"
	labelLanguages = "sandbox-run.languages"
	labelPackages  = "sandbox-run.packages" // name=version of every installed package
	labelSuite     = "sandbox-run.suite"
)

func (d *Definition) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       d.Title,
		"org.opencontainers.image.description": d.Description,
		labelName:                              d.Name,
		labelLanguages:                         strings.Join(d.Languages, ","),
	}
}

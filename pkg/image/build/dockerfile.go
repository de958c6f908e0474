package build

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Base is what a Dockerfile begins with.
type Base string

// The bases.
const (
	BaseDebian Base = "debian"
	BaseSlim   Base = "slim"
	BaseAlpine Base = "alpine"
)

// The releases that Dockerfiles name.
const (
	DefaultSuite  = "bookworm"
	alpineVersion = "3.20"
)

// excludes are files of packages that no program needs. Copyright notices stay: who hands an image on must hand them on, too.
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

// manualPages must be there: the Java packages link pages into it, and fail without.
const manualPages = "/usr/share/man/man1"

// Dockerfile makes the image with Docker. It is not reproducible as Build is: that is up to the base and to the day.
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
		if !strings.HasPrefix(e, "PATH=") { // the base has it
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

// userID is the sandbox's user, in every image.
const userID = 1000

// The labels of an image, beside those that the OCI has names for.
const (
	labelName      = "sandbox-run.image"
	labelLanguages = "sandbox-run.languages"
	labelPackages  = "sandbox-run.packages" // name=version, of all that are installed
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

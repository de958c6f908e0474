package build

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options configure a build. The zero value is ready for use.
type Options struct {
	// Dir holds the working directories of builds and the downloaded packages. Default: /var/cache/sandbox-run/build for root,
	// sandbox-run/build in the user's cache directory for an ordinary user.
	Dir string
	// Suite is the Debian release. Default: the release of this machine, or bookworm if it runs another distribution.
	Suite string
	// Mirror is the URL of a Debian archive, of which the build uses main of Suite. A URL of snapshot.debian.org gives the packages of
	// one day. Default: this machine's sources of Debian packages, with updates.
	Mirror string
	// Tags are further names of the image.
	Tags []string
	// Epoch is the latest time of a file in the image. Default: SOURCE_DATE_EPOCH, or the time of the newest file in the packages.
	Epoch time.Time
	// Timeout bounds the whole build. Default: one hour.
	Timeout time.Duration
	// Log receives the output of mmdebstrap and of the packages' scripts.
	Log io.Writer
	// Progress receives the current step in a few words, from a goroutine of the build. It must not block.
	Progress func(what string)
}

func (o Options) progress(what string) {
	if o.Progress != nil {
		o.Progress(what)
	}
}

// Kinds of failure, for errors.Is. A full disk is syscall.ENOSPC, a missing program exec.ErrNotFound.
var (
	// ErrNetwork: a package archive can not be reached or verified.
	ErrNetwork = errors.New("package archives can not be reached")
	// ErrPackage: a package does not exist, or conflicts with another one.
	ErrPackage = errors.New("packages can not be installed")
	// ErrNamespaces: the user can not create the namespaces of a build.
	ErrNamespaces = errors.New("no namespaces to build in")
)

const defaultTimeout = time.Hour

// wantedEpoch returns SOURCE_DATE_EPOCH, the common variable of reproducible builds, or the zero time.
func wantedEpoch() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds <= 0 {
		return time.Time{}, sandbox.Invalid("SOURCE_DATE_EPOCH", "%q is no number of seconds since 1970; unset it, or give one", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// configuration returns the image configuration as the OCI defines it.
func (d *Definition) configuration(l *layer, suite string) ([]byte, error) {
	labels := d.labels()
	labels[labelSuite] = suite
	var packages []string
	for _, name := range slices.Sorted(maps.Keys(l.packages)) {
		packages = append(packages, name+"="+l.packages[name])
	}
	labels[labelPackages] = strings.Join(packages, " ")
	diffID, err := v1.NewHash(l.diffID)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: l.epoch.UTC()}
	return json.Marshal(v1.ConfigFile{
		Created: created, Architecture: runtime.GOARCH, OS: "linux",
		Config:  v1.Config{User: "1000:1000", Env: d.environ(), Cmd: d.Cmd, WorkingDir: sandbox.WorkspaceDir, Labels: labels},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}},
		History: []v1.History{{Created: created, CreatedBy: "sandbox-run image build " + d.Name}},
	})
}

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

// Options say how an image is built. The zero value is right for most.
type Options struct {
	// Dir is where builds work and packages are kept; default: /var/cache/sandbox-run/build for root, a directory of their own for others.
	Dir string
	// Suite of Debian; default: this machine's, or bookworm where it is not a Debian.
	Suite string
	// Mirror is the URL of a Debian archive, main of Suite only; one of snapshot.debian.org gives the packages of a day. Default: this
	// machine's sources of Debian packages, with updates.
	Mirror string
	// Tags are further names of the image.
	Tags []string
	// Epoch is the time that nothing in the image is later than; default: SOURCE_DATE_EPOCH, or the time of the newest file in its packages.
	Epoch time.Time
	// Timeout of the whole build; default an hour.
	Timeout time.Duration
	// Log is written what mmdebstrap and the packages say.
	Log io.Writer
	// Progress is told what happens, in a few words, from a goroutine of the build's. It must not block.
	Progress func(what string)
}

func (o Options) progress(what string) {
	if o.Progress != nil {
		o.Progress(what)
	}
}

// Kinds of failure a caller can act upon; test with errors.Is. A full disk is syscall.ENOSPC, a program that is missing exec.ErrNotFound.
var (
	// ErrNetwork: the archives of packages can not be reached.
	ErrNetwork = errors.New("package archives can not be reached")
	// ErrPackage: a package does not exist, or not together with the others.
	ErrPackage = errors.New("packages can not be installed")
	// ErrNamespaces: this machine does not let this user build.
	ErrNamespaces = errors.New("no namespaces to build in")
)

const defaultTimeout = time.Hour

// wantedEpoch is what SOURCE_DATE_EPOCH says; tools that build reproducibly agree on that variable.
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

// configuration is the image's, as the OCI defines it.
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

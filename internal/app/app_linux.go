package app

import (
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/oci"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/process"
)

// Warm prepares the native backend while the command reads its flags. Only a command that always needs a sandbox calls it.
func Warm() { native.Warm() }

// open returns an untyped nil beside an error: a nil *native.Backend in an interface is not nil.
func open(name string, o Options) (sandbox.Backend, error) {
	if name == OCI {
		b, err := oci.New(oci.Options{Runtime: o.Runtime, Eager: o.Eager, Delegate: true, DiskFloor: o.DiskFloor})
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	if name == Process {
		b, err := process.New(process.Options{})
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	b, err := native.New(native.Options{Eager: o.Eager, Delegate: true, DiskFloor: o.DiskFloor})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// nativeIsStrong reports whether native sandboxes reach the container tier without a check: an ordinary user's may be weaker.
func nativeIsStrong() bool { return os.Geteuid() == 0 }

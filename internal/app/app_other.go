//go:build !linux

package app

import (
	"fmt"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Warm does nothing: there is no native backend.
func Warm() {}

func open(name string, _ Options) (sandbox.Backend, error) {
	return nil, &sandbox.Error{
		Backend: name, Op: "open", Kind: sandbox.ErrUnsupported,
		Err:  fmt.Errorf("the %s backend needs Linux; this is %s", name, runtime.GOOS),
		Hint: "use a Linux machine or virtual machine",
	}
}

// Facts returns properties of this machine.
func Facts() []Fact {
	return []Fact{{"system", runtime.GOOS + "/" + runtime.GOARCH}}
}

// nativeIsStrong returns false: there is no native backend.
func nativeIsStrong() bool { return false }

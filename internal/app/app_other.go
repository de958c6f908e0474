//go:build !linux

package app

import (
	"fmt"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Warm has nothing to make ready here.
func Warm() {}

func open(name string, _ Options) (sandbox.Backend, error) {
	return nil, &sandbox.Error{
		Backend: name, Op: "open", Kind: sandbox.ErrUnsupported,
		Err:  fmt.Errorf("the %s backend needs Linux; this is %s", name, runtime.GOOS),
		Hint: "a Linux machine or virtual machine",
	}
}

// Facts describes this machine as far as it matters here.
func Facts() []Fact {
	return []Fact{{"system", runtime.GOOS + "/" + runtime.GOARCH}}
}

// ordinary: native is not here.
func ordinary() bool { return false }

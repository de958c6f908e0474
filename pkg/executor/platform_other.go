//go:build !linux

package executor

import (
	"fmt"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func openDefault() (sandbox.Backend, error) {
	return nil, &sandbox.Error{
		Op: "open", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("the native backend needs Linux; this is %s", runtime.GOOS),
		Hint: "a Linux machine or virtual machine",
	}
}

//go:build !linux

package executor

import (
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func openDefault() (sandbox.Backend, error) {
	return nil, sandbox.Errorf(sandbox.ErrUnsupported, "open", "a Linux machine or virtual machine",
		"the native backend needs Linux; this is %s", runtime.GOOS)
}

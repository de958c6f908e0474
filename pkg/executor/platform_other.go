//go:build !linux

package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Nothing is prepared where no backend shows it.
func tryLock(*os.File, bool) error { return errors.ErrUnsupported }

func removeTree(context.Context, string) error { return errors.ErrUnsupported }

func openPlain(name string) (*os.File, error) { return os.Open(name) }

func othersWrite(string) error { return nil }

func openDefault() (sandbox.Backend, error) {
	return nil, &sandbox.Error{
		Op: "open", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("the native backend needs Linux; this is %s", runtime.GOOS), Hint: "a Linux machine or virtual machine",
	}
}

//go:build !linux

package executor

import (
	"context"
	"errors"
	"os"
)

// Nothing is prepared where no backend shows it.
func tryLock(*os.File, bool) error { return errors.ErrUnsupported }

func removeTree(context.Context, string) error { return errors.ErrUnsupported }

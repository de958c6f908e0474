//go:build !linux

package pool

import (
	"errors"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func victimBackend() (sandbox.Backend, error) { return nil, errors.ErrUnsupported }

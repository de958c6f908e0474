package executor

import (
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

// openDefault opens the backend for a caller that chooses none.
func openDefault() (sandbox.Backend, error) {
	b, err := native.New(native.Options{})
	if err != nil {
		return nil, err // not the nil *native.Backend: in an interface it is not nil
	}
	return b, nil
}

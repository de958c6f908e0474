//go:build !linux

package attack

import (
	"context"
	"errors"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Run needs Linux: there is no backend elsewhere.
func Run(context.Context, Options) (*Report, error) {
	return nil, &sandbox.Error{Op: "attack", Kind: sandbox.ErrUnsupported, Err: errors.New("there is no backend to attack here"),
		Hint: "a Linux machine or virtual machine"}
}

package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// UnwatchedError is the cause with which Begin cancels a run whose workspace can not be watched, or is on a disk that is full.
type UnwatchedError struct{ Err error }

func (e *UnwatchedError) Error() string { return e.Err.Error() }
func (e *UnwatchedError) Unwrap() error { return e.Err }

// Begin puts files into the workspace and watches its cap while a run uses it. It cancels the run with stop: with the
// *sandbox.DiskFullError that full makes of the finding, or with an *UnwatchedError. release ends the watch and closes the workspace; it
// may be called twice. After an error the workspace is closed.
func (w *Workspace) Begin(ctx context.Context, files []sandbox.File, stop context.CancelCauseFunc,
	full func(detail string) *sandbox.DiskFullError) (release func() error, err error) {
	ctx, stopWatching := context.WithCancel(ctx)
	var watching sync.WaitGroup
	release = sync.OnceValue(func() error {
		stopWatching()
		watching.Wait()
		return w.Close()
	})
	if err := w.Put(ctx, files); err != nil {
		return nil, errors.Join(err, release())
	}
	watching.Go(func() {
		err := w.Watch(ctx, func(Usage) {
			most, inodes := w.Cap()
			stop(full(fmt.Sprintf("the workspace %s has more than %s or %d files", w.Name(), most, inodes)))
		})
		if err != nil {
			stop(&UnwatchedError{err})
		}
	})
	return release, nil
}

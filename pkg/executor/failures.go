package executor

import (
	"context"

	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
)

// PreparationFailure is a failed attempt to prepare something that would have programs start sooner.
type PreparationFailure = prepared.Failure

// PreparationFailures are the failures that this executor knows, by name: its programs start without what was to be prepared.
func (e *Executor) PreparationFailures() []PreparationFailure { return e.prepared.Failures() }

// MarkedFailures are the failures that earlier processes of this user have left on disk.
func (e *Executor) MarkedFailures() []PreparationFailure { return e.prepared.Marked() }

// RetryPreparations repeats the failed preparations that are due, and reports whether one succeeded. An executor with Options.Prestart
// leaves that to a caller that does so from time to time: no program waits for it.
func (e *Executor) RetryPreparations(ctx context.Context) (made bool) { return e.prepared.Retry(ctx) }

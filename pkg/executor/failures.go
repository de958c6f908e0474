package executor

import (
	"context"

	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
)

// PreparationFailure is a failed attempt to prepare files with which programs start faster.
type PreparationFailure = prepared.Failure

// PreparationFailures returns the failures that this executor knows, by name: its programs start without these prepared files.
func (e *Executor) PreparationFailures() []PreparationFailure { return e.prepared.Failures() }

// MarkedFailures returns the failures that earlier processes of this user have recorded on disk.
func (e *Executor) MarkedFailures() []PreparationFailure { return e.prepared.Marked() }

// RetryPreparations repeats the failed preparations that are due, and reports whether one succeeded. With Options.Prestart, the
// caller has to call it from time to time: no program waits for it.
func (e *Executor) RetryPreparations(ctx context.Context) (made bool) { return e.prepared.Retry(ctx) }

package executor

import (
	"errors"
	"io/fs"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// FailureCode returns the exit code with which a command reports an error of Execute: a run without a result.
func FailureCode(err error) int {
	var signal sandbox.SignalCause
	var missing *toolchain.Missing
	var none *NoImage
	switch {
	case errors.As(err, &signal):
		return signal.ExitCode()
	case errors.As(err, &missing), errors.As(err, &none), errors.Is(err, sandbox.ErrNotStarted) && errors.Is(err, fs.ErrNotExist):
		return 127
	case errors.Is(err, sandbox.ErrNotStarted), errors.Is(err, sandbox.ErrRefused), errors.Is(err, sandbox.ErrUnsupported):
		return 126
	case errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrNotFound),
		errors.Is(err, image.ErrNotFound), errors.Is(err, image.ErrAmbiguous):
		return sandbox.VerdictInvalidRequest.Info().Code
	}
	return sandbox.VerdictInternalError.Info().Code
}

// FailureVerdict returns the verdict of a run without a result.
func FailureVerdict(err error) sandbox.Verdict {
	var signal sandbox.SignalCause
	switch {
	case errors.As(err, &signal):
		return sandbox.VerdictCancelled
	case FailureCode(err) == sandbox.VerdictInvalidRequest.Info().Code:
		return sandbox.VerdictInvalidRequest
	}
	return sandbox.VerdictInternalError
}

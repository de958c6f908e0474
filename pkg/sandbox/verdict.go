package sandbox

// Verdict says in one word how a run ended. The set is closed.
type Verdict string

// The verdicts, in order of precedence: the first that applies is the one reported.
const (
	VerdictCancelled    Verdict = "cancelled"
	VerdictTimeLimit    Verdict = "time_limit"
	VerdictCPULimit     Verdict = "cpu_limit"
	VerdictMemoryLimit  Verdict = "memory_limit"
	VerdictDiskLimit    Verdict = "disk_limit"
	VerdictOutputLimit  Verdict = "output_limit"
	VerdictCompileError Verdict = "compile_error"
	VerdictSignaled     Verdict = "signaled"
	VerdictNonzeroExit  Verdict = "nonzero_exit"
	VerdictOK           Verdict = "ok"
	// VerdictInternalError stands in results that doors build when we ourselves failed.
	VerdictInternalError Verdict = "internal_error"
)

// facts are what a run's end is judged by.
type facts struct {
	cancelled, wallHit, cpuHit, outputKilled bool
	oomKills                                 uint64
	diskFull                                 bool
	exit                                     Exit
}

// judge picks the verdict. A resource limit that was touched explains a failure; when the program
// succeeded all the same, the verdict is ok and the touch is left to violations.
func judge(f facts) Verdict {
	failed := f.exit.Signal != 0 || f.exit.Code != 0
	switch {
	case f.cancelled:
		return VerdictCancelled
	case f.wallHit:
		return VerdictTimeLimit
	case f.cpuHit:
		return VerdictCPULimit
	case failed && f.oomKills > 0:
		return VerdictMemoryLimit
	case failed && f.diskFull:
		return VerdictDiskLimit
	case f.outputKilled:
		return VerdictOutputLimit
	case f.exit.Signal != 0:
		return VerdictSignaled
	case f.exit.Code != 0:
		return VerdictNonzeroExit
	}
	return VerdictOK
}

// Exit is how a process ended: by itself with a code, or by a signal.
type Exit struct {
	Code   int
	Signal int // 0 when it exited by itself
}

// CLICode is the exit code a command line reports for a run that ended with this verdict.
func CLICode(v Verdict, e Exit) int {
	switch v {
	case VerdictTimeLimit, VerdictCPULimit:
		return 124
	case VerdictMemoryLimit:
		return 137
	case VerdictOutputLimit:
		return 143 // as by the SIGTERM it is sent, whatever it makes of that
	case VerdictCompileError:
		return 1
	case VerdictCancelled:
		return 130
	case VerdictInternalError:
		return 125
	}
	if e.Signal != 0 {
		return 128 + e.Signal
	}
	return e.Code
}

package sandbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
)

// Verdict says in one word how a run ended. The set is closed: verdictTable has a row for each.
type Verdict string

// The verdicts.
const (
	VerdictInternalError  Verdict = "internal_error"  // in results that entry points make when sandbox-run itself failed
	VerdictInvalidRequest Verdict = "invalid_request" // likewise, when the request is wrong
	VerdictCancelled      Verdict = "cancelled"
	VerdictTimeLimit      Verdict = "time_limit"
	VerdictCPULimit       Verdict = "cpu_limit"
	VerdictMemoryLimit    Verdict = "memory_limit"
	VerdictDiskLimit      Verdict = "disk_limit"
	VerdictOutputLimit    Verdict = "output_limit"
	VerdictInstallError   Verdict = "install_error"
	VerdictCompileError   Verdict = "compile_error"
	VerdictSignaled       Verdict = "signaled"
	VerdictNonzeroExit    Verdict = "nonzero_exit"
	VerdictOK             Verdict = "ok"
)

// VerdictInfo is one row of the table of verdicts. Judgement, exit codes, summaries, the filter of the audit log and the labels of
// metrics are derived from it.
type VerdictInfo struct {
	Verdict   Verdict
	Code      int    // exit code of the command line; 0: the program's own
	Violation string // kind of the violation that the verdict already tells of
	Chosen    bool   // the program, or its user, chose this end
	// Why explains an end that the program did not choose, with {placeholders} of Explain; empty: there is nothing to explain.
	Why string
	// applies judges a process that ended; nil: the verdict is given elsewhere.
	applies func(f *facts) bool
}

// Explain fills in Why: {who} is what ran, such as a program or a compiler, {flags} how the flags of its limits begin, {memory} the
// limit of that name.
func (v *VerdictInfo) Explain(r *Result, who, flags string) string {
	words := []string{"{who}", who, "{flags}", flags, "{peak}", Size(r.Metrics.MemoryPeak).String(), "{signal}", SignalName(r.Exit.Signal)}
	for _, row := range limitTable {
		words = append(words, "{"+row.Name+"}", row.Text(&r.Limits))
	}
	why := v.Why
	if Size(r.Metrics.MemoryPeak) < r.Limits.Memory { // the request that failed is not part of the peak, which would seem to contradict
		why = strings.Replace(why, " (peak {peak})", "", 1)
	}
	return strings.NewReplacer(words...).Replace(why)
}

// facts are what a run's end is judged by.
type facts struct {
	cancelled, wallHit, cpuHit, outputKilled bool
	oomKills                                 uint64
	noRoutes                                 uint64
	diskFull                                 bool
	overfull                                 bool // cancelled with a DiskFullError
	exit                                     Exit
}

// nameCause tells a run that was cancelled for a full disk from one that its caller cancelled.
func (f *facts) nameCause(ctx context.Context) *DiskFullError {
	var full *DiskFullError
	if !f.cancelled || !errors.As(context.Cause(ctx), &full) {
		return nil
	}
	f.cancelled, f.overfull = false, true
	return full
}

func (f *facts) failed() bool { return f.exit != Exit{} }

// verdictTable is in order of precedence: the first that applies is the one reported. A resource limit that was touched explains a
// failure; when the program succeeded all the same, the verdict is ok and the touch is left to violations.
var verdictTable = []VerdictInfo{
	{Verdict: VerdictInternalError, Code: 125},
	{Verdict: VerdictInvalidRequest, Code: 2, Chosen: true},
	{Verdict: VerdictCancelled, Code: 130, Chosen: true, Why: "cancelled", applies: func(f *facts) bool { return f.cancelled }},
	{
		Verdict: VerdictTimeLimit, Code: 124, Violation: "timeout", applies: func(f *facts) bool { return f.wallHit },
		Why: "the {who} ran longer than {timeout}; to allow more: {flags}timeout",
	},
	{
		Verdict: VerdictCPULimit, Code: 124, Violation: "cpu_time", applies: func(f *facts) bool { return f.cpuHit },
		Why: "the {who} used more than {cpu_time} of CPU time; to allow more: --cpu-time",
	},
	{
		Verdict: VerdictMemoryLimit, Code: 137, Violation: "memory", applies: func(f *facts) bool { return f.failed() && f.oomKills > 0 },
		Why: "the {who} needed more than {memory} of memory (peak {peak}); to allow more: {flags}memory",
	},
	{
		Verdict: VerdictDiskLimit, Violation: "disk", applies: func(f *facts) bool { return f.overfull || f.failed() && f.diskFull },
		Why: "the {who} filled its scratch disk of {disk} and {inodes} files; to allow more: --disk, --inodes",
	},
	{
		// The code is that of the SIGTERM that the program is sent, whatever it makes of that.
		Verdict: VerdictOutputLimit, Code: 143, Violation: ViolationOutput, applies: func(f *facts) bool { return f.outputKilled },
		Why: "the {who} printed more than {output_limit}; to allow more: --output-limit, or leave out --kill-on-output",
	},
	{Verdict: VerdictInstallError, Code: 1, Why: "the packages can not be installed"}, // the executor gives it
	{Verdict: VerdictCompileError, Code: 1, Why: "the {who} does not compile"},        // the executor gives it
	{Verdict: VerdictSignaled, Why: "the {who} was ended by {signal}", applies: func(f *facts) bool { return f.exit.Signal != 0 }},
	{Verdict: VerdictNonzeroExit, Chosen: true, applies: (*facts).failed},
	{Verdict: VerdictOK, Chosen: true, applies: func(*facts) bool { return true }},
}

// Verdicts lists the verdicts, the most common first.
func Verdicts() []Verdict {
	var all []Verdict
	for _, row := range slices.Backward(verdictTable) {
		all = append(all, row.Verdict)
	}
	return all
}

// Info is the verdict's row of the table; of an unknown verdict it has the name alone.
func (v Verdict) Info() VerdictInfo {
	if i := slices.IndexFunc(verdictTable, func(row VerdictInfo) bool { return row.Verdict == v }); i >= 0 {
		return verdictTable[i]
	}
	return VerdictInfo{Verdict: v}
}

// judge gives the verdict of a process that ended.
func judge(f facts) Verdict {
	i := slices.IndexFunc(verdictTable, func(row VerdictInfo) bool { return row.applies != nil && row.applies(&f) })
	return verdictTable[i].Verdict
}

// Exit is how a process ended: by itself with a code, or by a signal.
type Exit struct {
	Code   int
	Signal int // 0 when it exited by itself
}

// OwnCode returns the exit code of a process that exited by itself; nil if a signal ended it.
func (e Exit) OwnCode() *int {
	if e.Signal != 0 {
		return nil
	}
	return &e.Code
}

// SignalCause is the cause of a context that a signal to the command cancelled. The command then exits with 128 and the signal's number.
type SignalCause syscall.Signal

func (s SignalCause) Error() string {
	names := map[syscall.Signal]string{
		syscall.SIGINT: "Ctrl-C", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT",
	}
	return "cancelled by " + names[syscall.Signal(s)]
}

// ExitCode returns the exit code of the command.
func (s SignalCause) ExitCode() int { return 128 + int(s) }

// NameSignal sets the exit code of a cancelled run whose context was cancelled by a signal.
func (r *Result) NameSignal(ctx context.Context) {
	var signal SignalCause
	if r.Verdict == VerdictCancelled && errors.As(context.Cause(ctx), &signal) {
		r.Code = signal.ExitCode()
	}
}

// CLICode is the exit code a command line reports for a run that ended with this verdict.
func CLICode(v Verdict, e Exit) int {
	switch code := v.Info().Code; {
	case code != 0:
		return code
	case e.Signal != 0:
		return 128 + e.Signal
	}
	return e.Code
}

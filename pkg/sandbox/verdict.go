package sandbox

import (
	"fmt"
	"slices"
)

// Verdict says in one word how a run ended. The set is closed: verdictTable has a row for each.
type Verdict string

// The verdicts.
const (
	VerdictInternalError Verdict = "internal_error" // in results that entry points make when sandbox-run itself failed
	VerdictCancelled     Verdict = "cancelled"
	VerdictTimeLimit     Verdict = "time_limit"
	VerdictCPULimit      Verdict = "cpu_limit"
	VerdictMemoryLimit   Verdict = "memory_limit"
	VerdictDiskLimit     Verdict = "disk_limit"
	VerdictOutputLimit   Verdict = "output_limit"
	VerdictCompileError  Verdict = "compile_error"
	VerdictSignaled      Verdict = "signaled"
	VerdictNonzeroExit   Verdict = "nonzero_exit"
	VerdictOK            Verdict = "ok"
)

// VerdictInfo is one row of the table of verdicts. Judgement, exit codes, summaries, the filter of the audit log and the labels of metrics are
// derived from it.
type VerdictInfo struct {
	Verdict   Verdict
	Code      int    // exit code of the command line; 0: the program's own
	Violation string // kind of the violation that the verdict already tells of
	Chosen    bool   // the program, or its user, chose this end
	// Why explains an end that the program did not choose; nil: there is nothing to explain.
	Why func(e Ending) string
	// applies judges a process that ended; nil: the verdict is given elsewhere.
	applies func(f *facts) bool
}

// Ending is what a summary knows about the end of a run.
type Ending struct {
	*Result
	Who   string // that ran: program, command, compiler
	Flags string // how flags of limits of this phase begin: "--" or "--compile-"
}

// facts are what a run's end is judged by.
type facts struct {
	cancelled, wallHit, cpuHit, outputKilled bool
	oomKills                                 uint64
	diskFull                                 bool
	exit                                     Exit
}

func (f *facts) failed() bool { return f.exit != Exit{} }

// verdictTable is in order of precedence: the first that applies is the one reported. A resource limit that was touched explains a failure; when
// the program succeeded all the same, the verdict is ok and the touch is left to violations.
var verdictTable = []VerdictInfo{
	{Verdict: VerdictInternalError, Code: 125},
	{
		Verdict: VerdictCancelled, Code: 130, Chosen: true,
		applies: func(f *facts) bool { return f.cancelled },
		Why:     func(Ending) string { return "cancelled" },
	},
	{
		Verdict: VerdictTimeLimit, Code: 124, Violation: "timeout",
		applies: func(f *facts) bool { return f.wallHit },
		Why: func(e Ending) string {
			return fmt.Sprintf("the %s ran longer than %v; to allow more: %stimeout", e.Who, e.Limits.Wall, e.Flags)
		},
	},
	{
		Verdict: VerdictCPULimit, Code: 124, Violation: "cpu_time",
		applies: func(f *facts) bool { return f.cpuHit },
		Why: func(e Ending) string {
			return fmt.Sprintf("the %s used more than %v of CPU time; to allow more: --cpu-time", e.Who, e.Limits.CPUTime)
		},
	},
	{
		Verdict: VerdictMemoryLimit, Code: 137, Violation: "memory",
		applies: func(f *facts) bool { return f.failed() && f.oomKills > 0 },
		Why: func(e Ending) string {
			return fmt.Sprintf("the %s needed more than %s of memory (peak %s); to allow more: %smemory",
				e.Who, e.Limits.Memory, Size(e.Metrics.MemoryPeak), e.Flags)
		},
	},
	{
		Verdict: VerdictDiskLimit, Violation: "disk",
		applies: func(f *facts) bool { return f.failed() && f.diskFull },
		Why: func(e Ending) string {
			return fmt.Sprintf("the %s filled its scratch disk of %s and %d files; to allow more: --disk, --inodes",
				e.Who, e.Limits.Disk, e.Limits.Inodes)
		},
	},
	{
		Verdict: VerdictOutputLimit, Violation: ViolationOutput,
		Code:    143, // as by the SIGTERM that the program is sent, whatever it makes of that
		applies: func(f *facts) bool { return f.outputKilled },
		Why: func(e Ending) string {
			return fmt.Sprintf("the %s printed more than %s; to allow more: --output-limit, or leave out --kill-on-output", e.Who, e.Limits.Output)
		},
	},
	{
		Verdict: VerdictCompileError, Code: 1, // the executor gives it
		Why: func(e Ending) string { return fmt.Sprintf("the %s does not compile", e.Who) },
	},
	{
		Verdict: VerdictSignaled,
		applies: func(f *facts) bool { return f.exit.Signal != 0 },
		Why:     func(e Ending) string { return fmt.Sprintf("the %s was ended by %s", e.Who, SignalName(e.Exit.Signal)) },
	},
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
	for _, row := range verdictTable {
		if row.Verdict == v {
			return row
		}
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

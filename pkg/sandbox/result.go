package sandbox

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Result is the outcome of a run. Its JSON names are stable.
type Result struct {
	Verdict    Verdict
	Exit       Exit
	Stdout     Output
	Stderr     Output
	Phase      string
	Metrics    monitor.Metrics
	Limits     Limits
	Isolation  Isolation
	Image      *ImageRef // that the sandbox's root is; nil for none
	Violations []Violation
	// Notes are facts that are not a fault of the program: lowered defaults, output that could not be spilled.
	Notes []string
	// Needed is, of a run with the network mode learn, the least policy that allows what the run did.
	Needed *network.Policy
	// Code is the exit code of the command if it does not follow from Verdict and Exit, as after a signal to the command; otherwise 0.
	Code int
}

// ExitCode returns the exit code with which a command reports this result: that of the verdict, or the program's own.
func (r *Result) ExitCode() int { return cmp.Or(r.Code, CLICode(r.Verdict, r.Exit)) }

// ProgramExitCode returns the program's own exit code. It is nil if a signal ended the program or if the program did not run.
func (r *Result) ProgramExitCode() *int {
	if r.Verdict == VerdictCompileError || cmp.Or(r.Phase, DefaultPhase) != DefaultPhase {
		return nil
	}
	return r.Exit.OwnCode()
}

// Success reports whether the program ran to its end and exited with 0.
func (r *Result) Success() bool { return r.Verdict == VerdictOK }

// Close returns the disk space of the output, as Output.Close does. Without an OutputSpace there is none.
func (r *Result) Close() {
	r.Stdout.Close()
	r.Stderr.Close()
}

// Document is a result as JSON. Its names are stable; larger documents embed it.
type Document struct {
	Success         bool            `json:"success"`
	Verdict         Verdict         `json:"verdict"`
	ExitCode        int             `json:"exit_code"`
	ProgramExitCode *int            `json:"program_exit_code" nullable:"true"`
	Signal          string          `json:"signal,omitempty"`
	Stdout          string          `json:"stdout"`
	StdoutEncoding  string          `json:"stdout_encoding,omitempty"`
	Stderr          string          `json:"stderr"`
	StderrEncoding  string          `json:"stderr_encoding,omitempty"`
	StdoutTruncated bool            `json:"stdout_truncated"`
	StdoutHeadBytes int             `json:"stdout_head_bytes,omitempty"`
	StdoutDropped   uint64          `json:"stdout_dropped_bytes,omitempty"`
	StdoutFile      string          `json:"stdout_file,omitempty"`
	StderrTruncated bool            `json:"stderr_truncated"`
	StderrHeadBytes int             `json:"stderr_head_bytes,omitempty"`
	StderrDropped   uint64          `json:"stderr_dropped_bytes,omitempty"`
	StderrFile      string          `json:"stderr_file,omitempty"`
	ExecutionTime   float64         `json:"execution_time"`
	MemoryUsed      uint64          `json:"memory_used,omitempty"` // absent: not known
	Phase           string          `json:"phase"`
	Metrics         monitor.Metrics `json:"metrics"`
	Limits          Limits          `json:"limits"`
	Isolation       Isolation       `json:"isolation"`
	Image           *ImageRef       `json:"image,omitempty"`
	Violations      []Violation     `json:"violations"`
	Needed          *network.Policy `json:"needed_network,omitempty"`
	Notes           []string        `json:"notes,omitempty"`
}

// Document converts the result. Output that is not UTF-8 is written as base64, with its encoding set.
func (r *Result) Document() Document {
	d := r.outline()
	d.Stdout, d.StdoutEncoding = EncodeText(r.Stdout.Bytes())
	d.Stderr, d.StderrEncoding = EncodeText(r.Stderr.Bytes())
	return d
}

// outline is the document without the outputs.
func (r *Result) outline() Document {
	violations := r.Violations
	if violations == nil {
		violations = []Violation{}
	}
	return Document{
		Success: r.Success(), Verdict: r.Verdict, ExitCode: r.ExitCode(), ProgramExitCode: r.ProgramExitCode(), Signal: SignalName(r.Exit.Signal),
		StdoutTruncated: r.Stdout.Truncated(), StdoutHeadBytes: headIfCut(r.Stdout), StdoutDropped: r.Stdout.Dropped, StdoutFile: r.Stdout.File,
		StderrTruncated: r.Stderr.Truncated(), StderrHeadBytes: headIfCut(r.Stderr), StderrDropped: r.Stderr.Dropped, StderrFile: r.Stderr.File,
		ExecutionTime: r.Metrics.WallTime.Duration().Seconds(), MemoryUsed: r.Metrics.MemoryPeak,
		Phase: r.Phase, Metrics: r.Metrics, Limits: r.Limits, Isolation: r.Isolation, Image: r.Image, Violations: violations, Needed: r.Needed, Notes: r.Notes,
	}
}

// MarshalJSON writes the Document.
func (r *Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.Document()) }

// headIfCut returns the length of the head of a truncated output, so that a reader can split it.
func headIfCut(o Output) int {
	if o.Truncated() {
		return int(o.HeadLen())
	}
	return 0
}

// EncodeText returns bytes as a JSON string can hold them: unchanged, or as base64 with the encoding's name.
func EncodeText(b []byte) (text, encoding string) {
	if utf8.Valid(b) {
		return string(b), ""
	}
	return base64.StdEncoding.EncodeToString(b), "base64"
}

// Kinds of violations that other code treats specially.
const (
	ViolationSyscall = "syscall"      // refused system calls
	ViolationOutput  = "output_limit" // output that was not kept
	ViolationNetwork = "network"      // a network that the sandbox does not have
	ViolationPids    = "pids"         // refused forks and threads
)

// DiskFull is the violation of a program that filled the scratch disk.
func (l Limits) DiskFull() Violation {
	return Violation{
		Kind: "disk", Count: 1, Allow: "--disk, --inodes",
		Detail: fmt.Sprintf("the scratch disk of %s and %d inodes was full", l.Disk, l.Inodes),
	}
}

// violationsOf lists the reached limits, whether or not they decided the verdict.
func violationsOf(f facts, final monitor.Metrics, l Limits, p network.Policy, stdout, stderr Output) []Violation {
	var v []Violation
	add := func(kind string, count uint64, allow, format string, args ...any) {
		if count > 0 {
			v = append(v, Violation{Kind: kind, Count: count, Allow: allow, Detail: fmt.Sprintf(format, args...)})
		}
	}
	once := map[bool]uint64{true: 1}
	add("timeout", once[f.wallHit], "--timeout", "the command ran longer than %v", l.Wall)
	add("cpu_time", once[f.cpuHit], "--cpu-time", "the command used more than %v of CPU time", l.CPUTime)
	add("memory", final.OOMKills, "--memory", "%d process(es) were ended at the memory limit of %s", final.OOMKills, l.Memory)
	add(ViolationPids, final.ProcessLimitHits, "--pids", "%d fork(s) or thread(s) were refused at the limit of %d", final.ProcessLimitHits,
		l.Processes)
	if final.DiskFull {
		v = append(v, l.DiskFull())
	}
	allow, but := "--network localhost", ""
	if p.HasLoopback() {
		allow, but = "", " but its loopback"
	}
	add(ViolationNetwork, f.noRoutes, allow, "%d attempt(s) to connect or to send failed: the sandbox has no network%s", f.noRoutes, but)
	for i, out := range []Output{stdout, stderr} {
		where := "" // the file with the output that the result leaves out
		if out.File != "" {
			where = " here; see " + out.File
		}
		add(ViolationOutput, out.Dropped, "--output-limit", "%d of %d bytes of %s were not kept%s", out.Dropped, out.Total, streamKinds[i],
			where)
	}
	return v
}

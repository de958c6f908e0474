// Package attack attacks a backend's sandboxes: one case for each threat that they must withstand, named by
// its id, with a positive control and a check of the host afterwards.
//
// Place in the flow. `sandbox-run doctor --attack` and the tests of the backends call [Run]. The attackers are in
// package hostile: the running executable is the attacker, inside. Nothing here imports package testing.
//
// Lifecycle. Run carries out the cases one after another, so that leftovers after each are that case's
// own. Every case makes and deletes its own sandboxes. The caller owns the backend.
//
// Concurrency. Within a case sandboxes may run side by side. Cancelling the context ends the running case,
// with everything it has made, and skips the rest.
//
// Limits. A case that could not be carried out is an error and never held; so is one whose positive control fails: the
// same attempt, where it is allowed. Attacks that would harm a host without isolation bound themselves.
package attack

import (
	"os/exec"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Outcome is the outcome of a case.
type Outcome string

// The outcomes.
const (
	Held          Outcome = "held"
	Breached      Outcome = "breached"
	Known         Outcome = "known" // breached where docs/THREAT_MODEL.md says that this backend is open, and nowhere else
	NotApplicable Outcome = "not_applicable"
	Error         Outcome = "error" // the case could not be carried out, or proves nothing
)

// Probe is one attempt of a case.
type Probe struct {
	Name    string `json:"name"`
	Got     string `json:"got"`               // its result
	Control string `json:"control,omitempty"` // the result of the same attempt where it is allowed
	Held    bool   `json:"held"`
	Known   string `json:"known,omitempty"` // of a successful attempt where the backend is known to be open: what holds instead
}

// Health is the state of the host after a case.
type Health struct {
	// Lateness is the longest delay with which a sleeping task of the host woke up meanwhile.
	Lateness float64 `json:"lateness_ms"`
	// Residue are the leftovers of the case.
	Residue []string `json:"residue"`
}

// Result is the result of one case. Its JSON names are a promise, as all in a Report are.
type Result struct {
	ID      string  `json:"id"`
	Title   string  `json:"title"`
	Outcome Outcome `json:"result"`
	Detail  string  `json:"detail"` // in a sentence
	Probes  []Probe `json:"probes"`
	Health  Health  `json:"health"`
	Seconds float64 `json:"seconds"`
}

// Counts is the number of cases per outcome.
type Counts struct {
	Held          int `json:"held"`
	Breached      int `json:"breached"`
	Known         int `json:"known"`
	NotApplicable int `json:"not_applicable"`
	Error         int `json:"error"`
}

// Report is the result of all cases.
type Report struct {
	OK        bool              `json:"ok"` // nothing breached, no error
	Grade     Grade             `json:"grade"`
	Backend   string            `json:"backend"`
	Tier      sandbox.Tier      `json:"tier"`
	Counts    Counts            `json:"counts"`
	Results   []Result          `json:"results"`
	Isolation sandbox.Isolation `json:"isolation"`
	Seconds   float64           `json:"seconds"`
}

// Grade sums a report up in a letter.
type Grade string

// The grades, best first.
const (
	GradeA Grade = "A" // every case that applies held, and no control is missing
	GradeB Grade = "B" // every case that applies held, except known ones; or a control is missing or only polled
	GradeC Grade = "C" // nothing was breached, but not every case could be carried out
	GradeD Grade = "D" // every case that applies held, but there is no isolation: hardly any case applies
	GradeF Grade = "F" // a case was breached
)

// Meaning describes a grade in a sentence.
func (g Grade) Meaning() string {
	switch g {
	case GradeA:
		return "every attack was held off, and no control is missing"
	case GradeB:
		return "every attack was held off, but for what is listed as known; or a control is missing or only polled"
	case GradeC:
		return "nothing was breached, but not every attack could be carried out"
	case GradeD:
		return "every attack that applies was held off; but the backend has no isolation, and few attacks apply"
	}
	return "an attack succeeded"
}

// Options are the arguments of Run.
type Options struct {
	// Backend is attacked. The caller owns it.
	Backend sandbox.Backend
	// Executable is the attacker; default this executable. It must link package hostile and be in a directory that
	// a sandbox can mount.
	Executable string
	// Victim returns a supervisor to be killed (W6): a command that makes sandboxes of the same kind until it
	// is killed, with the mark in the environment or the command line of all their processes.
	Victim func(mark string) *exec.Cmd
	// Internet returns a command that carries out the suite against a backend of the same kind and prints the report as JSON, as
	// doctor --attack --json does. Run starts it in a test internet (package testnet), for the cases of networks with rules.
	Internet func() *exec.Cmd
	// Install carries out installations of packages on a backend of the same kind. Without it that case does not apply.
	Install Install
	// Escape makes a text safe for terminals (A6). Without it only the library's part is attacked.
	Escape func(string) string
	// Only are the ids to carry out; default all.
	Only []string
	// Within is the time for all cases; the default lets Run end within 90 seconds, and ten minutes where another
	// program makes the sandboxes. A busy machine gets more: as much as its tasks wait for a processor, up to five minutes.
	// A case without time left is an error.
	Within time.Duration
	// OnStart and OnResult are called for each case, one call at a time.
	OnStart  func(id, title string)
	OnResult func(Result)
}

// grade computes the grade from the results.
func (r *Report) grade() {
	r.Counts = Counts{}
	for _, res := range r.Results {
		switch res.Outcome {
		case Held:
			r.Counts.Held++
		case Breached:
			r.Counts.Breached++
		case Known:
			r.Counts.Known++
		case NotApplicable:
			r.Counts.NotApplicable++
		default:
			r.Counts.Error++
		}
	}
	r.OK = r.Counts.Breached == 0 && r.Counts.Error == 0 && r.Counts.Held > 0
	switch {
	case r.Counts.Breached > 0:
		r.Grade = GradeF
	case !r.OK:
		r.Grade = GradeC
	case !r.Tier.AtLeast(sandbox.TierNamespace):
		r.Grade = GradeD
	case r.Counts.Known > 0 || len(r.Isolation.Missing) > 0 || !r.Tier.AtLeast(sandbox.TierContainer):
		r.Grade = GradeB
	default:
		r.Grade = GradeA
	}
}

func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Second)
}

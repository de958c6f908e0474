// Package attack attacks a backend's sandboxes: one case for each threat that they are to withstand, named by
// its id, with a positive control and a look at the host afterwards.
//
// Place in the flow. `sandbox-run doctor --attack` and the tests of the backends call [Run]. The attackers are in
// package hostile: the running executable plays them, inside. Nothing here imports package testing.
//
// Lifecycle. Run goes through the cases one after another, so that what is left after each is that case's
// own. Every case makes and deletes its own sandboxes. The backend is the caller's.
//
// Concurrency. Within a case sandboxes may run side by side. Cancelling the context ends the case that is under
// way, with everything it has made, and leaves out the rest.
//
// Limits. A case that could not be carried out is an error and never held; so is one whose positive control fails: the
// same attempt, where it is allowed. What would harm a host without walls bounds itself.
package attack

import (
	"os/exec"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Outcome is what came of a case.
type Outcome string

// The outcomes.
const (
	Held          Outcome = "held"
	Breached      Outcome = "breached"
	Known         Outcome = "known" // breached where docs/THREAT_MODEL.md says that this backend is open, and nowhere else
	NotApplicable Outcome = "not_applicable"
	Error         Outcome = "error" // it could not be carried out, or proves nothing
)

// Probe is one attempt of a case.
type Probe struct {
	Name    string `json:"name"`
	Got     string `json:"got"`               // what it came to
	Control string `json:"control,omitempty"` // what the same came to where it is allowed
	Held    bool   `json:"held"`
	Known   string `json:"known,omitempty"` // of one that got through where the backend is known to be open: what holds instead
}

// Health is how the host was after a case.
type Health struct {
	// Lateness is the longest that something on the host which only sleeps woke up too late meanwhile.
	Lateness float64 `json:"lateness_ms"`
	// Residue is what the case has left behind.
	Residue []string `json:"residue"`
}

// Result is what came of one case. Its JSON names are a promise, as all in a Report are.
type Result struct {
	ID      string  `json:"id"`
	Title   string  `json:"title"`
	Outcome Outcome `json:"result"`
	Detail  string  `json:"detail"` // in a sentence
	Probes  []Probe `json:"probes"`
	Health  Health  `json:"health"`
	Seconds float64 `json:"seconds"`
}

// Counts says how often there was each outcome.
type Counts struct {
	Held          int `json:"held"`
	Breached      int `json:"breached"`
	Known         int `json:"known"`
	NotApplicable int `json:"not_applicable"`
	Error         int `json:"error"`
}

// Report is what came of all of them.
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
	GradeA Grade = "A" // all that applies held, and no control is missing
	GradeB Grade = "B" // all that applies held, but for what is known to be open; or a control is missing or only polled
	GradeC Grade = "C" // nothing was breached, but not everything could be tried
	GradeD Grade = "D" // all that applies held, but there are no walls: hardly anything applies
	GradeF Grade = "F" // something was breached
)

// Meaning says what a grade stands for.
func (g Grade) Meaning() string {
	switch g {
	case GradeA:
		return "every attack was held off, and no control is missing"
	case GradeB:
		return "every attack was held off, but for what is listed as known; or a control is missing or only polled"
	case GradeC:
		return "nothing was breached, but not every attack could be carried out"
	case GradeD:
		return "what it claims it keeps; but it has no walls, and claims little"
	}
	return "a wall was breached"
}

// Options say what is attacked.
type Options struct {
	// Backend is attacked. It stays the caller's.
	Backend sandbox.Backend
	// Executable plays the attacker; default this very one. It must link package hostile and be where a
	// sandbox can be shown it.
	Executable string
	// Victim is a supervisor to be killed (W6): a command that makes sandboxes of the same kind until it
	// is, with the mark in the environment or the command line of all that run in them.
	Victim func(mark string) *exec.Cmd
	// Escape makes a text safe for terminals (A6). Without it only the library's part is attacked.
	Escape func(string) string
	// Only are the ids to carry out; default all.
	Only []string
	// Within is the time for all cases; default what lets Run end within 90 seconds, and ten minutes where another
	// program makes the sandboxes. On a busy machine there is more: as much as its tasks wait for a processor, up to five minutes.
	// A case that has none left is an error.
	Within time.Duration
	// OnStart and OnResult are told of cases, one at a time.
	OnStart  func(id, title string)
	OnResult func(Result)
}

// grade draws the conclusion from the results.
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

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Auto is the backend name with which the user leaves the choice to OpenAuto.
const Auto = "auto"

// Candidate is a backend that auto may choose, with a runtime where that matters.
type Candidate struct {
	Backend string
	Runtime string
}

func (c Candidate) String() string {
	if c.Runtime == "" {
		return c.Backend
	}
	return c.Backend + " with " + c.Runtime
}

// Finding is the isolation that a candidate reaches on this machine, or the error that makes it unusable.
type Finding struct {
	Candidate
	Isolation sandbox.Isolation
	Err       error
}

// Want is the isolation that a sandbox must have.
type Want struct {
	Require sandbox.Tier // empty means container
	Strict  bool
	Runtime string // that makes the sandbox; empty means any
}

func (w Want) tier() sandbox.Tier { return cmp.Or(w.Require, sandbox.TierContainer) }

// candidates returns the backends that may satisfy w, the fastest first. process is not among them: it runs only when it is requested
// by name.
func candidates(w Want) []Candidate {
	runtime := w.Runtime
	if runtime == "" {
		runtime = map[sandbox.Tier]string{sandbox.TierGVisor: "runsc", sandbox.TierMicroVM: "kata"}[w.tier()]
	}
	switch {
	case w.Runtime != "":
		return []Candidate{{OCI, runtime}, {Docker, runtime}}
	case runtime != "": // native follows, so that a refusal shows what it reaches
		return []Candidate{{OCI, runtime}, {Native, ""}, {Docker, runtime}}
	}
	return []Candidate{{Native, ""}, {OCI, ""}, {Docker, ""}}
}

// NativeSuffices reports whether the native backend surely satisfies w: for root, on Linux, up to the container tier.
func NativeSuffices(w Want) bool {
	return nativeIsStrong() && !w.Strict && w.Runtime == "" && sandbox.TierContainer.AtLeast(w.tier())
}

// Choice is the candidate that auto chose, and the reason in one line.
type Choice struct {
	Candidate
	Why string
}

// choose returns the first candidate that satisfies w. It probes no candidate after that one, because a probe may take long. It fails
// if no candidate satisfies w.
func choose(w Want, all []Candidate, probe func(Candidate) Finding) (Choice, error) {
	var passed []Finding
	for _, c := range all {
		f := probe(c)
		if other := new(OtherExecutableError); errors.As(f.Err, &other) {
			other.refused = passed
			return Choice{}, other
		}
		if f.Err == nil && f.Isolation.Check(w.tier(), w.Strict) == nil {
			return Choice{c, why(w, f, passed)}, nil
		}
		passed = append(passed, f)
	}
	return Choice{}, refusal(w, passed)
}

// why returns the reason for a choice in one line.
func why(w Want, taken Finding, passed []Finding) string {
	wanted := string(w.tier())
	if w.Strict {
		wanted += ", with nothing missing"
	}
	if len(passed) == 0 {
		return fmt.Sprintf("auto: %s gives %s (wanted: %s) and starts fastest", taken.Candidate, taken.Isolation.Tier, wanted)
	}
	return fmt.Sprintf("auto: %s gives %s (wanted: %s); %s", taken.Candidate, taken.Isolation.Tier, wanted,
		strings.Join(reasons(w, passed), "; "))
}

// reasons returns for each rejected candidate why it was rejected.
func reasons(w Want, passed []Finding) (all []string) {
	for _, f := range passed {
		switch {
		case f.Err != nil:
			first, _, _ := strings.Cut(f.Err.Error(), "\n")
			all = append(all, fmt.Sprintf("%s can not be used: %s", f.Candidate, strings.TrimPrefix(first, f.Backend+": ")))
		case f.Isolation.Tier.AtLeast(w.tier()):
			all = append(all, fmt.Sprintf("%s has %d gaps", f.Candidate, len(f.Isolation.Missing)))
		default:
			all = append(all, fmt.Sprintf("%s gives %s", f.Candidate, f.Isolation.Tier))
		}
	}
	return all
}

// refusal returns the error for a Want that no candidate satisfies: the refusal of the strongest one, with the reasons of the others.
func refusal(w Want, passed []Finding) error {
	best := -1
	for i, f := range passed {
		if f.Err == nil && (best < 0 || !passed[best].Isolation.Tier.AtLeast(f.Isolation.Tier)) {
			best = i
		}
	}
	if best < 0 {
		errs := []error{}
		for _, f := range passed {
			errs = append(errs, f.Err)
		}
		return &sandbox.Error{
			Op: "backend " + Auto, Kind: sandbox.ErrRefused,
			Err:  fmt.Errorf("tier %q is required, and no backend gives it here: %w", w.tier(), errors.Join(errs...)),
			Hint: "sandbox-run doctor",
		}
	}
	others := slices.Delete(slices.Clone(passed), best, best+1)
	return &sandbox.Refusal{Require: w.tier(), Strict: w.Strict, Got: passed[best].Isolation, Others: reasons(w, others)}
}

// OtherExecutableError reports that the next candidate is in another executable.
type OtherExecutableError struct {
	Candidate
	refused []Finding // candidates that were rejected before
}

func (e *OtherExecutableError) Error() string {
	return fmt.Sprintf("backend %s: this executable does not have it", e.Candidate)
}

// Refusal returns the error for a caller that can not start the other executable; why is the reason.
func (e *OtherExecutableError) Refusal(w Want, why error) error {
	return refusal(w, append(slices.Clone(e.refused), Finding{Candidate: e.Candidate, Err: why}))
}

// OpenAuto opens the fastest backend that satisfies w, and returns why it was chosen. The caller closes the backend.
func OpenAuto(ctx context.Context, w Want, o Options) (sandbox.Backend, Choice, error) {
	var taken sandbox.Backend
	choice, err := choose(w, candidates(w), func(c Candidate) Finding {
		f := Finding{Candidate: c}
		if InOtherExecutable(c.Backend) {
			f.Err = &OtherExecutableError{Candidate: c}
			return f
		}
		if taken != nil {
			_ = taken.Close() // it was rejected and has no sandboxes
			taken = nil
		}
		with := o
		if c.Runtime != "" {
			with.Runtime = c.Runtime
		}
		if taken, f.Err = Open(c.Backend, with); f.Err != nil {
			taken = nil
			return f
		}
		f.Isolation = taken.Probe(ctx)
		return f
	})
	if err != nil && taken != nil {
		_ = taken.Close()
		taken = nil
	}
	return taken, choice, err
}

// Recommend returns what auto would choose, given findings that were made before.
func Recommend(w Want, findings []Finding) (Choice, error) {
	return choose(w, candidates(w), func(c Candidate) Finding {
		for _, f := range findings {
			if f.Backend == c.Backend && (c.Runtime == "" || f.Runtime == c.Runtime) {
				return f
			}
		}
		return Finding{Candidate: c, Err: errors.New("not probed")}
	})
}

package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Auto in the place of a backend's name leaves the choice to us.
const Auto = "auto"

// Candidate is a backend that auto may choose, with the runtime it is asked to use, if that matters.
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

// Finding is what a candidate was found to give on this machine, or why it can not be used.
type Finding struct {
	Candidate
	Isolation sandbox.Isolation
	Err       error
}

// Want is how strong a sandbox has to be.
type Want struct {
	Require sandbox.Tier // empty is the default, container
	Strict  bool
	Runtime string // that it must be made by; empty is whichever
}

func (w Want) tier() sandbox.Tier {
	if w.Require == "" {
		return sandbox.TierContainer
	}
	return w.Require
}

// candidates are who may be able to serve a wish, the fastest first. process is not among them: it runs only when it
// is asked for by name.
func candidates(w Want) (all []Candidate) {
	add := func(backend, runtime string) {
		if slices.Contains(AllBackends(), backend) {
			all = append(all, Candidate{backend, runtime})
		}
	}
	runtime := w.Runtime
	if runtime == "" {
		runtime = map[sandbox.Tier]string{sandbox.TierGVisor: "runsc", sandbox.TierMicroVM: "kata"}[w.tier()]
	}
	switch {
	case w.Runtime != "":
		add(OCI, runtime)
	case runtime != "": // native comes after, to say what there is instead
		add(OCI, runtime)
		add(Native, "")
	default:
		add(Native, "")
		add(OCI, "")
	}
	add(Docker, runtime)
	return all
}

// Ordinary reports whether a wish is one that the first candidate is sure enough to serve: root's, on Linux, for what sandboxes
// of our own give.
func Ordinary(w Want) bool {
	return ordinary() && !w.Strict && w.Runtime == "" && sandbox.TierContainer.AtLeast(w.tier())
}

// Choice is which candidate was taken, and why.
type Choice struct {
	Candidate
	Why string
}

// choose takes the first candidate that serves the wish. It looks at no candidate after that one: looking may take long. Its error
// is for a wish that nobody serves.
func choose(w Want, all []Candidate, look func(Candidate) Finding) (Choice, error) {
	var passed []Finding
	for _, c := range all {
		f := look(c)
		if away := new(ElsewhereError); errors.As(f.Err, &away) {
			away.refused = passed
			return Choice{}, away
		}
		if f.Err == nil && f.Isolation.Check(w.tier(), w.Strict) == nil {
			return Choice{c, why(w, f, passed)}, nil
		}
		passed = append(passed, f)
	}
	return Choice{}, refusal(w, passed)
}

// why says in a line what spoke for a candidate.
func why(w Want, taken Finding, passed []Finding) string {
	wanted := string(w.tier())
	if w.Strict {
		wanted += ", with nothing missing"
	}
	if len(passed) == 0 {
		return fmt.Sprintf("auto: %s gives %s (wanted: %s) and starts fastest", taken.Candidate, taken.Isolation.Tier, wanted)
	}
	return fmt.Sprintf("auto: %s gives %s (wanted: %s); %s", taken.Candidate, taken.Isolation.Tier, wanted, strings.Join(reasons(w, passed), "; "))
}

// reasons say of each candidate that was passed over, why.
func reasons(w Want, passed []Finding) (all []string) {
	for _, f := range passed {
		switch {
		case f.Err != nil:
			first, _, _ := strings.Cut(f.Err.Error(), "\n")
			all = append(all, fmt.Sprintf("%s can not be used: %s", f.Candidate, strings.TrimPrefix(first, f.Backend+": ")))
		case f.Isolation.Tier.AtLeast(w.tier()):
			all = append(all, fmt.Sprintf("%s lacks %d controls", f.Candidate, len(f.Isolation.Missing)))
		default:
			all = append(all, fmt.Sprintf("%s gives %s", f.Candidate, f.Isolation.Tier))
		}
	}
	return all
}

// refusal is the error for a wish that nobody serves: that of the strongest, with a word on each other.
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
			Op: "backend " + Auto, Kind: sandbox.ErrRefused, Err: fmt.Errorf("tier %q is required, and nothing gives it here: %w", w.tier(), errors.Join(errs...)),
			Hint: "sandbox-run doctor",
		}
	}
	others := slices.Delete(slices.Clone(passed), best, best+1)
	return &sandbox.Refusal{Require: w.tier(), Strict: w.Strict, Got: passed[best].Isolation, Others: reasons(w, others)}
}

// ElsewhereError says that the next candidate is one which only another executable has.
type ElsewhereError struct {
	Candidate
	refused []Finding // who was passed over before
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("backend %s: it is not part of this executable", e.Candidate)
}

// Refusal is the error for those who can not go elsewhere.
func (e *ElsewhereError) Refusal(w Want, why error) error {
	return refusal(w, append(slices.Clone(e.refused), Finding{Candidate: e.Candidate, Err: why}))
}

// OpenAuto opens the fastest backend that serves the wish, and says why it is that one. The caller closes it.
func OpenAuto(ctx context.Context, w Want, o Options) (sandbox.Backend, Choice, error) {
	var taken sandbox.Backend
	choice, err := choose(w, candidates(w), func(c Candidate) Finding {
		f := Finding{Candidate: c}
		if Elsewhere(c.Backend) {
			f.Err = &ElsewhereError{Candidate: c}
			return f
		}
		if taken != nil {
			_ = taken.Close() // it did not serve: there is nothing of ours in it
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

// Recommend says what auto would choose, of findings that are there already.
func Recommend(w Want, findings []Finding) (Choice, error) {
	return choose(w, candidates(w), func(c Candidate) Finding {
		for _, f := range findings {
			if f.Backend == c.Backend && (c.Runtime == "" || f.Runtime == c.Runtime) {
				return f
			}
		}
		return Finding{Candidate: c, Err: errors.New("nobody has looked")}
	})
}

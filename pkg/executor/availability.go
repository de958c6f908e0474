package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// State tells whether a language can be used on this machine.
type State string

// The states of a language.
const (
	Ready      State = "ready" // for this user
	Missing    State = "missing"
	Incomplete State = "incomplete" // a part of the toolchain is installed, or sandboxes are too weak
)

// Availability is the state of a language on this machine.
type Availability struct {
	Name       string   `json:"name"`
	Title      string   `json:"title"`
	Aliases    []string `json:"aliases,omitempty"`
	Extensions []string `json:"extensions,omitempty"`
	Version    string   `json:"version,omitempty"`
	Path       string   `json:"path,omitempty"`  // of its main program; empty if it needs none
	Image      string   `json:"image,omitempty"` // on which it runs if this machine has no toolchain
	State      State    `json:"state"`
	Reason     string   `json:"reason,omitempty"`  // why it is not ready
	Install    []string `json:"install,omitempty"` // possible remedies, the likeliest first
}

// CheckLanguages checks every language on this machine, concurrently.
func (e *Executor) CheckLanguages(ctx context.Context) []Availability {
	found := make([]Availability, len(e.languages))
	can := e.manager.Backend().Probe(ctx)
	var all sync.WaitGroup
	for i, l := range e.languages {
		all.Go(func() {
			a := &found[i]
			*a = e.available(ctx, l)
			if tier := cmp.Or(l.Tier, sandbox.TierNamespace); a.State == Ready && can.Check(tier, false) != nil {
				a.State, a.Install = Incomplete, []string{"sandbox-run doctor, which says how"}
				a.Reason = fmt.Sprintf("it needs sandboxes of the tier %s, and this user gets %s", tier, cmp.Or(can.Tier, "none"))
			}
		})
	}
	all.Wait()
	return found
}

func (e *Executor) available(ctx context.Context, l *Language) Availability {
	a := Availability{Name: l.Name, Title: l.Title, Aliases: l.Aliases, Extensions: l.Extensions, State: Ready}
	t, err := e.Toolchain(ctx, l)
	if err != nil {
		a.setMissing(err)
		e.imageFor(ctx, l, &a)
		return a
	}
	if t != nil {
		a.Version, a.Path = t.Version, t.Path
	}
	// A plan reports what else the language needs. Errors of this piece of code do not matter.
	plan, err := e.Plan(ctx, Request{Language: l.Name, Code: sampleOf(l)})
	switch {
	case errors.Is(err, sandbox.ErrUnsupported):
		a.setMissing(err)
	case err == nil && a.Version == "":
		a.Version = plan.Version
	}
	return a
}

// imageFor checks whether the language can run on its image instead, and how to get that image.
func (e *Executor) imageFor(ctx context.Context, l *Language, a *Availability) {
	plan, err := e.Plan(ctx, Request{Language: l.Name, Code: sampleOf(l)})
	var none *NoImage
	switch {
	case err == nil && plan.Spec.Root.From.Reference != "":
		a.State, a.Reason, a.Install = Ready, "", nil
		a.Version, a.Path, a.Image = plan.Version, "", plan.Spec.Root.From.Reference
	case errors.As(err, &none):
		a.Install = append(a.Install, none.How())
	}
}

// setMissing records why a language is not ready.
func (a *Availability) setMissing(err error) {
	a.State, a.Reason = Missing, err.Error()
	var missing *toolchain.Missing
	var other *sandbox.Error
	switch {
	case errors.As(err, &missing):
		a.Reason, a.Install = missing.Reason, missing.Install
		if p := missing.Partial; p != nil {
			a.State, a.Version, a.Path = Incomplete, p.Version, p.Path
		}
	case errors.As(err, &other):
		a.State = Incomplete
		if a.Reason = other.Op; other.Err != nil {
			a.Reason += ": " + other.Err.Error()
		}
		if other.Hint != "" {
			a.Install = []string{other.Hint}
		}
	}
}

package api

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// CeilingSet is the most that requests may ask for. A field that is zero has no ceiling but the machine, except Network. A set is not changed
// once it is in use.
//
//	explicit limit, network ──► above? ── yes ──► 403 above_ceiling {field, ceiling}
//	no limit given ──► default above? ── yes ──► the ceiling, and a note
//	the language's own default, known with the plan ──► above? ── yes ──► the ceiling, and a note
type CeilingSet struct {
	Run     sandbox.Limits
	Compile sandbox.Limits // Disk and Inodes are the run's
	Files   int            // of a program and its inputs together
	// Network bounds the networks of all phases. Without a Ceiling it is localhost, and no port is published.
	Network network.Bounds
}

var _ Ceilings = CeilingSet{}

// DefaultCeilings are the ceilings where the operator has set none: some times the defaults.
func DefaultCeilings() CeilingSet {
	run, compile := sandbox.DefaultCeilings()
	return CeilingSet{Run: run, Compile: compile, Files: 5000}
}

// Check refuses a request with a limit or a network above its ceiling, of the server or the key. The error is a *wire.Problem that has every
// such field. Defaults above a ceiling are lowered when they are known: each language has its own. Every connection of a network is held
// against the bounds as well.
func (s CeilingSet) Check(req *executor.Request, key KeyLimits) error {
	lower(&s.Run, &key.Limits)
	lower(&s.Compile, &key.CompileLimits)
	above := append(exceeding("", &req.Limits, &s.Run), exceeding("compile_", &req.CompileLimits, &s.Compile)...)
	if n := len(req.Files) + len(req.Inputs); s.Files > 0 && n > s.Files {
		above = append(above, wire.FieldError{
			Field: "files", Ceiling: strconv.Itoa(s.Files),
			Message: fmt.Sprintf("%d files, with those of in, are above %d, the most that the operator allows", n, s.Files),
		})
	}
	req.Policy.Bounds = boundsOf(s.Network)
	above = append(above, beyond("network", req.Policy.Network, &req.Policy.Bounds, key.Network)...)
	above = append(above, beyond("compile_network", req.Policy.CompileNetwork, &req.Policy.Bounds, key.Network)...)
	if len(above) > 0 {
		p := wire.NewProblem(wire.CodeCeiling, "%s: %s", above[0].Field, above[0].Message)
		p.Errors, p.Hint = above, "ask for less, or ask the operator of the server to allow more"
		return p
	}
	req.Lower = func(run, compile *sandbox.Limits) []string {
		return append(lowerDefaults("", run, &s.Run), lowerDefaults("compile_", compile, &s.Compile)...)
	}
	return nil
}

// boundsOf returns the bounds of a server: without a ceiling they allow what needs no permission.
func boundsOf(b network.Bounds) network.Bounds {
	if b.Ceiling == nil {
		b.Ceiling, b.NoPublish = &network.Policy{Mode: network.Localhost}, true
	}
	return b
}

// beyond explains why a network is more than the operator or the key allows.
func beyond(field string, p network.Policy, b *network.Bounds, key network.Mode) []wire.FieldError {
	most := networkCeiling(b, key)
	wrong := wire.FieldError{Field: field, Ceiling: most.String()}
	if mode := p.Complete().Mode; mode.Above(most.Mode) {
		wrong.Message = fmt.Sprintf("%s is above %s, the most that the operator allows", mode, most.Mode)
	} else if _, err := p.Compile(*b); err != nil {
		wrong.Message = fmt.Sprintf("%s; the most is %s", err, most)
	} else {
		return nil
	}
	return []wire.FieldError{wrong}
}

// networkCeiling is the most that a network may be: the server's ceiling, with the mode of the key where that is less.
func networkCeiling(b *network.Bounds, key network.Mode) network.Policy {
	most := b.Ceiling.Complete()
	switch {
	case key == "" || !most.Mode.Above(key):
		return most
	case key == network.None || key == network.Localhost:
		return network.Policy{Mode: key}
	}
	most.Mode = key
	return most
}

// limits handles GET /v1/limits. Lower gives a limit that is not set its ceiling.
func (s *Server) limits(w http.ResponseWriter, r *http.Request) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	var req executor.Request
	key := PrincipalFrom(r.Context()).Limits
	req.Policy.Bounds = boundsOf(network.Bounds{})
	if err := s.opts.Policy.Ceilings.Check(&req, key); err != nil {
		return err
	}
	var most, mostCompile sandbox.Limits
	run, compile := sandbox.DefaultLimits(), sandbox.DefaultCompileLimits()
	if req.Lower != nil {
		req.Lower(&most, &mostCompile)
		req.Lower(&run, &compile)
	}
	var all wire.LimitList
	add := func(name, doc string, row *sandbox.Limit, standard, ceiling *sandbox.Limits) {
		l := wire.LimitInfo{Name: name, Description: doc}
		if row.IsSet(standard) {
			l.Default = row.Plain(standard)
		}
		if row.IsSet(ceiling) {
			l.Ceiling = row.Plain(ceiling)
		}
		all.Limits = append(all.Limits, l)
	}
	for _, row := range sandbox.AllLimits() {
		add(row.Name, cmp.Or(row.Doc, sandbox.Sentence(row.Usage)), row, &run, &most)
		if row.CompileDoc != "" {
			add("compile_"+row.Name, row.CompileDoc, row, &compile, &mostCompile)
		}
	}
	for _, f := range executor.Fields(&req.Policy, &req.Options) {
		if _, ok := f.Value.(*network.Policy); ok {
			all.Limits = append(all.Limits, wire.LimitInfo{
				Name: f.Name, Description: f.Doc, Default: string(network.None), Ceiling: networkCeiling(&req.Policy.Bounds, key.Network).String(),
			})
		}
	}
	return answerJSON(w, http.StatusOK, all)
}

// lower takes over the ceilings of a key that are lower than the server's. A key's are never higher.
func lower(server, key *sandbox.Limits) {
	for _, row := range sandbox.AllLimits() {
		if row.IsSet(key) && !row.IsSet(server) || row.Exceeds(server, key) {
			row.Copy(server, key)
		}
	}
}

// exceeding lists limits that were given and are above their ceiling.
func exceeding(prefix string, l, most *sandbox.Limits) (above []wire.FieldError) {
	for _, row := range sandbox.AllLimits() {
		if row.Exceeds(l, most) {
			above = append(above, wire.FieldError{
				Field: prefix + row.Name, Ceiling: row.Plain(most),
				Message: fmt.Sprintf("%s is above %s, the most that the operator allows", row.Text(l), row.Text(most)),
			})
		}
	}
	return above
}

// lowerDefaults lowers what is above a ceiling, a default since nothing else is, and says so. A limit without a default gets its ceiling.
func lowerDefaults(prefix string, l, most *sandbox.Limits) (notes []string) {
	for _, row := range sandbox.AllLimits() {
		switch {
		case row.IsSet(most) && !row.IsSet(l):
			notes = append(notes, fmt.Sprintf("%s: %s, the most that the operator allows", prefix+row.Name, row.Text(most)))
		case row.Exceeds(l, most):
			notes = append(notes, fmt.Sprintf("%s: the default of %s lowered to %s, the most that the operator allows",
				prefix+row.Name, row.Text(l), row.Text(most)))
		default:
			continue
		}
		row.Copy(l, most)
	}
	return notes
}

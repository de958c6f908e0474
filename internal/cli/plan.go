package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// printPlan prints the plan of --dry-run.
func (c *Invocation) printPlan(p *executor.Plan, backend string) error {
	if c.format != FormatText {
		return c.writeResult(withDefaults(p))
	}
	_, err := io.WriteString(c.Std.Out, EscapeText(formatPlan(p, backend)))
	return err
}

// withDefaults returns a copy of the plan with the defaults in place of empty fields.
func withDefaults(p *executor.Plan) *executor.Plan {
	whole := *p
	s := &whole.Spec
	s.Require = sandbox.Tier(cmp.Or(string(s.Require), string(sandbox.TierContainer)))
	s.Network = s.Network.Complete()
	s.Workdir = cmp.Or(s.Workdir, sandbox.WorkspaceDir)
	if s.User == (sandbox.User{}) {
		s.User = sandbox.DefaultUser
	}
	whole.Files = slices.Clone(p.Files)
	for i := range whole.Files {
		if whole.Files[i].Mode == 0 {
			whole.Files[i].Mode = 0o644
		}
	}
	whole.Phases = slices.Clone(p.Phases)
	for i := range whole.Phases {
		process := &whole.Phases[i].Process
		process.Limits = process.Limits.Or(s.Limits)
	}
	return &whole
}

// planColumn is the position of the second column of a plan.
const planColumn = 13

func formatPlan(p *executor.Plan, backend string) string {
	var b strings.Builder
	row := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "  %-*s %s\n", planColumn-3, label, fmt.Sprintf(format, args...))
	}
	s := &p.Spec
	fmt.Fprintf(&b, "%s\n", strings.TrimSpace(p.Language+" "+p.Version))

	fmt.Fprintf(&b, "\nsandbox\n")
	row("backend", "%s", backend)
	if from := s.Root.From; from.Reference != "" {
		row("image", "%s (%s)", from.Reference, cmp.Or(from.Digest, from.ID, "of unknown digest"))
	}
	row("require", "%s", cmp.Or(string(s.Require), string(sandbox.TierContainer)))
	row("network", "%s", s.Network)
	row("directory", "%s", cmp.Or(s.Workdir, sandbox.WorkspaceDir))
	for _, m := range s.Root.Add {
		if m.Source == m.Target {
			row("shows", "%s", m.Target)
		} else {
			row("shows", "%s as %s", m.Source, m.Target)
		}
	}
	for _, v := range s.Volumes {
		row("volume", "%s", v)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		row("variable", "%s=%s", k, s.Env[k])
	}

	fmt.Fprintf(&b, "\nfiles\n")
	for i, f := range p.Files {
		if i == maxListed {
			row("", "… and %d more", len(p.Files)-i)
			break
		}
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		size := "on the host"
		if f.Link != "" {
			size = "a link to " + f.Link
		} else if f.Open == nil {
			size = sandbox.Size(len(f.Data)).String()
		}
		row(fmt.Sprintf("%04o", mode.Perm()), "%s (%s)", f.Path, size)
	}

	for i := range p.Phases {
		writePhase(&b, row, s, &p.Phases[i])
	}
	if len(p.Outputs.Patterns) > 0 {
		fmt.Fprintf(&b, "\nbrought back\n")
		for _, pattern := range p.Outputs.Patterns {
			fmt.Fprintf(&b, "  %s\n", pattern)
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "\nnote: %s\n", n)
	}
	return b.String()
}

// maxListed is how many files the text of a plan lists; JSON has all.
const maxListed = 20

func writePhase(b *strings.Builder, row func(string, string, ...any), s *sandbox.Spec, phase *executor.Phase) {
	p := &phase.Process
	fmt.Fprintf(b, "\n%s\n", p.Phase)
	row("command", "%s", quoteShell(p.Args))
	if p.Workdir != "" {
		row("directory", "%s", p.Workdir)
	}
	for _, k := range slices.Sorted(maps.Keys(p.Env)) {
		row("variable", "%s=%s", k, p.Env[k])
	}
	row("limits", "%s", formatLimits(p.Limits.Or(s.Limits)))
	if len(phase.Produces) > 0 {
		row("makes", "%s", strings.Join(phase.Produces, ", "))
	}
}

func formatLimits(l sandbox.Limits) string {
	parts := []string{fmt.Sprintf("%v", l.Wall)}
	if l.CPUTime > 0 {
		parts = append(parts, fmt.Sprintf("%v of CPU time", l.CPUTime))
	}
	cores := "cores"
	if l.CPUs == 1 {
		cores = "core"
	}
	return strings.Join(append(parts, fmt.Sprintf("%v %s", l.CPUs, cores), l.Memory.String()+" of memory",
		fmt.Sprintf("%d processes", l.Processes), l.Disk.String()+" of disk"), ", ")
}

// quoteShell quotes a command for a shell.
func quoteShell(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a
		if a == "" || strings.ContainsAny(a, " \t\n'\"\\$&|;<>()*?[]{}#~`!") {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

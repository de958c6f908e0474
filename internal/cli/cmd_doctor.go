package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// diagnosis is the JSON document of doctor.
type diagnosis struct {
	OK       bool             `json:"ok"` // auto finds a backend that gives the default tier
	Require  sandbox.Tier     `json:"default_tier"`
	Facts    []app.Fact       `json:"facts"`
	Backends []backendFinding `json:"backends"`
	Auto     *autoFinding     `json:"auto,omitempty"` // nil if only one backend is examined
}

// autoFinding is the backend that --backend auto chooses for the default tier.
type autoFinding struct {
	Backend string `json:"backend,omitempty"`
	Reason  string `json:"reason"`
}

type backendFinding struct {
	sandbox.Isolation
	Error *sandbox.ErrorInfo `json:"error,omitempty"` // why the backend can not be used at all
}

func (c *Invocation) newDoctor() *cobra.Command {
	var only string
	var attacked bool
	var runtime, image string
	cmd := &cobra.Command{
		Use: "doctor [flags]",
		Long: `Reports what this machine can enforce, per backend and control, with the reason and the
remedy for each gap; runs a program in a sandbox to prove it; and names the backend that
is used by default. Exits 0 only if that backend gives the default tier, container, and 1
otherwise.

With --attack it attacks the sandboxes of one backend instead. Every threat of the threat
model is tried for real, beside a control that shows that the attempt can succeed.
Harmful attempts are bounded. Exits 0 only if every attack that applies was withstood.
Takes less than 90 seconds, and longer on a busy machine.`,
		Example: "  sandbox-run doctor\n  sandbox-run doctor --json --backend native\n  sandbox-run doctor --attack\n  sandbox-run " +
			"doctor --attack --backend docker --image debian",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if attacked {
				return NameSource(cmd.Flags(), c.full.Attack(c, only, runtime, image), HelpHint(cmd))
			}
			if image != "" {
				return sandbox.Invalid("image", "it goes with --attack --backend %s", app.Docker)
			}
			return NameSource(cmd.Flags(), c.diagnose(cmd.Context(), only, runtime), HelpHint(cmd))
		},
	}
	cmd.Flags().StringVar(&only, "backend", "", "examine only this `backend`: "+strings.Join(app.AllBackends(), ", "))
	cmd.Flags().StringVar(&runtime, "runtime", "", "with --backend oci or docker: examine this `runtime`, such as runsc")
	cmd.Flags().StringVar(&image, "image", "", "with --attack --backend docker: attack containers of this `image`")
	cmd.Flags().BoolVar(&attacked, "attack", false, "attack the sandboxes of a backend, by default native, and report the results")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the findings as one JSON document")
	return cmd
}

// MissingLines formats gaps for the report of the attack suite: a line for all controls that have the same gap.
func MissingLines(gaps []sandbox.Gap) string {
	var b strings.Builder
	for _, g := range groupGaps(gaps) {
		fmt.Fprintf(&b, "missing: %s: %s\n", g.controls, EscapeText(g.Reason))
	}
	return b.String()
}

func (c *Invocation) diagnose(ctx context.Context, only, runtime string) error {
	names := app.Backends()
	if only == app.Auto {
		only = ""
	}
	if err := CheckRuntime(only, runtime); err != nil {
		return err
	}
	if only != "" {
		if err := app.CheckBackend(only); err != nil {
			return err
		}
		names = []string{only}
	}
	d := diagnosis{Require: sandbox.TierContainer, Facts: append(app.Facts(), c.collectFacts()...)}
	var found []app.Finding
	for _, name := range names {
		f := examineBackend(ctx, name, runtime)
		found = append(found, f.toFinding())
		d.Backends = append(d.Backends, f)
	}
	choice, err := app.Recommend(app.Want{Require: d.Require}, found)
	d.OK = err == nil
	if only == "" {
		d.Auto = &autoFinding{Backend: choice.Backend, Reason: choice.Why}
		if err != nil {
			d.Auto.Reason, _, _ = strings.Cut(err.Error(), "\n")
		}
	}
	if !d.OK {
		c.Code = CodeUnhealthy
	}
	if c.JSON {
		return c.WriteJSON(d)
	}
	_, err = fmt.Fprint(c.Std.Out, d.formatText(c.Palette(c.Std.Out)))
	return err
}

// collectFacts returns facts about this installation: the full executable, images, workspace caps, the local server.
func (c *Invocation) collectFacts() []app.Fact {
	images := "none"
	full, err := os.Executable()
	if err != nil {
		full = "this one"
	}
	switch {
	case c.full != nil:
	case c.from != "": // the full executable has another version and has handed back
		full = fmt.Sprintf("version %s, which is not that of %s: only run, exec, doctor, gc and version work, and no docker backend; try: %s",
			c.from, CommandName, reinstallHint)
	default: // if the full executable were installed, it would run doctor
		full = "not found: only run, exec, doctor, gc and version work, and no docker backend; try: " + c.installHint()
	}
	found, err := ListImages()
	dir, _ := app.ImagesDir() // ListImages has returned the same error
	switch total := sandbox.Size(0); {
	case err != nil:
		images = "unknown: " + err.Error()
	case len(found) > 0:
		for _, i := range found {
			total += sandbox.Size(i.Size)
		}
		images = fmt.Sprintf("%d in %s, %s", len(found), dir, total)
	}
	facts := []app.Fact{
		{Name: fullName, Value: full}, {Name: "images", Value: images}, {Name: "workspace caps", Value: describeCaps()}, {Name: "server",
			Value: c.describeLocalServer()},
	}
	for _, f := range executor.New(nil, executor.Options{}).MarkedFailures() {
		facts = append(facts, app.Fact{Name: "slower starts", Value: f.String()})
	}
	return facts
}

// describeCaps reports whether the kernel enforces the caps of workspaces.
func describeCaps() string {
	gap := workspace.ExplainCap("")
	switch {
	case gap == nil:
		return string(sandbox.Enforced) + ": project quotas"
	case gap.Remedy == "":
		return string(gap.State) + ": " + gap.Reason
	}
	return fmt.Sprintf("%s: %s; try: %s", gap.State, gap.Reason, gap.Remedy)
}

// toFinding converts the finding for app.Recommend.
func (f *backendFinding) toFinding() app.Finding {
	out := app.Finding{Candidate: app.Candidate{Backend: f.Backend}, Isolation: f.Isolation}
	if f.Error != nil {
		out.Err = errors.New(f.Error.Message)
	}
	return out
}

// CheckRuntime refuses a runtime without a backend that has runtimes. Its errors are of kind sandbox.ErrInvalid.
func CheckRuntime(backend, runtime string) error {
	if backend == "" && runtime != "" {
		return sandbox.Invalid("runtime", "it is that of one backend; it goes with --backend %s or %s", app.OCI, app.Docker)
	}
	return app.CheckRuntime(backend, runtime)
}

func examineBackend(ctx context.Context, name, runtime string) backendFinding {
	b, err := app.Open(name, app.Options{Runtime: runtime})
	if err != nil {
		iso := sandbox.NewIsolation(name)
		iso.Tier = sandbox.TierNone
		return backendFinding{Isolation: iso, Error: sandbox.Describe(err)}
	}
	defer b.Close()
	f := backendFinding{Isolation: b.Probe(ctx)}
	if f.Tier.AtLeast(sandbox.TierContainer) {
		// A probe is not a proof: a kernel can have every feature, and a sandbox can still fail to start.
		if err := tryBackend(ctx, b); err != nil {
			f.Tier, f.Error = sandbox.TierNone, sandbox.Describe(err)
		}
	}
	return f
}

// tryBackend runs a program in a sandbox of the backend.
func tryBackend(ctx context.Context, b sandbox.Backend) error {
	m := sandbox.NewManager(b, sandbox.Options{})
	id, err := m.Create(ctx, sandbox.Spec{Scratch: sandbox.ScratchMemory})
	if err != nil {
		return err
	}
	result, err := m.Run(ctx, id, sandbox.Process{Args: []string{"true"}}, sandbox.IO{})
	if err == nil && !result.Success() {
		err = fmt.Errorf("a sandboxed true ended with the verdict %s", result.Verdict)
	}
	return errors.Join(err, m.Close())
}

// Widths of the table's columns.
const (
	controlWidth = 22
	stateWidth   = 12
	lineWidth    = 96
)

// formatText formats the diagnosis for people: facts, a table of controls, gaps, the conclusion.
func (d diagnosis) formatText(paint Palette) string {
	var b strings.Builder
	for _, f := range d.Facts {
		fmt.Fprintf(&b, "%-*s%s\n", controlWidth, f.Name, EscapeText(f.Value))
	}
	b.WriteByte('\n')
	row := func(label string, cell func(backendFinding) string) {
		line := fmt.Sprintf("%-*s", controlWidth, label)
		for _, f := range d.Backends {
			line += cell(f)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("backend", func(f backendFinding) string { return paint.bold(fmt.Sprintf("%-*s", stateWidth, f.Backend)) })
	row("tier", func(f backendFinding) string { return paint.bold(fmt.Sprintf("%-*s", stateWidth, f.Tier)) })
	for _, control := range sandbox.AllControls() {
		row(string(control), func(f backendFinding) string { return paint.state(f.Controls[control], stateWidth) })
	}
	b.WriteString("\nenforced: by the kernel, at once   declared: asked for, not observable   polled: by sandbox-run, looking again and " +
		"again   absent: not at all\n")
	for _, f := range d.Backends {
		f.writeGaps(&b, paint)
	}
	b.WriteByte('\n')
	if d.Auto != nil {
		fmt.Fprintf(&b, "%s\n", EscapeText(d.Auto.Reason))
	}
	if d.OK {
		b.WriteString(paint.Green(fmt.Sprintf("ok: the default tier, %s, is available\n", d.Require)))
	} else {
		b.WriteString(paint.Red(fmt.Sprintf("not ok: the default tier, %s, is not available; exec refuses to run unless --require "+
			"accepts less\n", d.Require)))
	}
	return b.String()
}

// writeGaps lists the controls that a backend lacks, with reasons and remedies.
func (f backendFinding) writeGaps(b *strings.Builder, paint Palette) {
	if f.Error != nil {
		fmt.Fprintf(b, "\n%s can not be used:\n  %s\n", paint.bold(f.Backend), EscapeText(f.Error.Message))
		return
	}
	if len(f.Missing) == 0 {
		fmt.Fprintf(b, "\n%s has no gaps\n", paint.bold(f.Backend))
		return
	}
	fmt.Fprintf(b, "\n%s has gaps:\n", paint.bold(f.Backend))
	last := ""
	for _, g := range groupGaps(f.Missing) {
		for _, line := range wrapWords(strings.Fields(g.controls), lineWidth) {
			fmt.Fprintf(b, "  %s\n", paint.bold(line))
		}
		state := string(g.State)
		if g.State == sandbox.Enforced {
			state += ", but not in every case"
		}
		fmt.Fprintf(b, "    %s: %s\n", state, EscapeText(g.Reason))
		switch g.Remedy {
		case "":
		case last:
			b.WriteString("    fix: the same\n")
		default:
			fmt.Fprintf(b, "    fix: %s\n", EscapeText(g.Remedy))
		}
		last = g.Remedy
	}
}

func wrapWords(words []string, width int) (lines []string) {
	for _, w := range words {
		if n := len(lines) - 1; n >= 0 && len(lines[n])+1+len(w) <= width {
			lines[n] += " " + w
			continue
		}
		lines = append(lines, w)
	}
	return lines
}

// sharedGap is a gap that several controls have.
type sharedGap struct {
	sandbox.Gap
	controls string // their names, with commas
}

// groupGaps joins gaps that differ in nothing but the control.
func groupGaps(gaps []sandbox.Gap) (shared []sharedGap) {
	for _, g := range gaps {
		name := string(g.Control)
		g.Control = ""
		if i := slices.IndexFunc(shared, func(s sharedGap) bool { return s.Gap == g }); i >= 0 {
			shared[i].controls += ", " + name
			continue
		}
		shared = append(shared, sharedGap{g, name})
	}
	return shared
}

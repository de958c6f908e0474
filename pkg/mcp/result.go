package mcp

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// level is how much of a result is shown.
type level struct {
	output, file int  // bytes of a stream, and of a file
	trace        int  // bytes of standard error beside a diagnosis
	details      bool // notes, frames, metrics
}

// levels are the levels by their names.
var levels = map[string]level{
	"": {4000, 4000, 600, false}, "normal": {4000, 4000, 600, false}, "brief": {600, 0, 0, false}, "full": {60_000, 60_000, 60_000, true},
}

// Result is the result of a run, or of a cell of a session.
type Result struct {
	Run        string              `json:"run,omitempty" jsonschema:"handle for get_output, cancel_run and explain_error"`
	State      string              `json:"state" jsonschema:"queued, running, done or lost"`
	Success    bool                `json:"success" jsonschema:"the program ended with exit code 0"`
	Verdict    string              `json:"verdict,omitempty" jsonschema:"how it ended: ok, nonzero_exit, compile_error, time_limit, …"`
	ExitCode   *int                `json:"exit_code,omitempty"`
	Language   string              `json:"language,omitempty"`
	Diagnosis  *diagnose.Diagnosis `json:"diagnosis,omitempty" jsonschema:"why it failed, derived from its own output"`
	Value      string              `json:"value,omitempty" jsonschema:"value of the last expression of a cell"`
	Stdout     *Excerpt            `json:"stdout,omitempty"`
	Stderr     *Excerpt            `json:"stderr,omitempty"`
	Violations []Violation         `json:"violations,omitempty" jsonschema:"limits and policies that the program met"`
	Files      []File              `json:"files,omitempty"`
	Checked    string              `json:"checked,omitempty" jsonschema:"of check_code: compiled, type-checked or parsed, not type-checked"`
	Seconds    float64             `json:"seconds,omitempty"`
	Memory     uint64              `json:"memory_bytes,omitempty"`
	Packages   []string            `json:"packages,omitempty" jsonschema:"installed packages"`
	Notes      []string            `json:"notes,omitempty"`
	URI        string              `json:"uri,omitempty" jsonschema:"the whole result as a resource"`

	images []mcp.Content
}

// Violation is a limit or a policy that the program met.
type Violation struct {
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
	Allow  string `json:"allow,omitempty" jsonschema:"what would allow it"`
}

// File is an output file.
type File struct {
	Path    string `json:"path"`
	Bytes   int    `json:"bytes"`
	Text    string `json:"text,omitempty" jsonschema:"the content, if it is short text"`
	URI     string `json:"uri,omitempty" jsonschema:"the content as a resource"`
	Missing string `json:"missing,omitempty" jsonschema:"why it was not copied out"`
}

// viewOf returns a result as it is shown. handle is that of the run; "" for none.
func viewOf(r *executor.Result, l level, handle string) *Result {
	v := &Result{
		Run: handle, State: "done", Success: r.Success(), Verdict: string(r.Verdict), ExitCode: new(r.ExitCode()), Language: r.Language,
		Seconds: r.Metrics.WallTime.Duration().Seconds(),
	}
	if handle != "" {
		v.URI = uriOf(handle)
	}
	if r.Diagnosis != nil {
		d := *r.Diagnosis
		if !l.details {
			d.Frames, d.Docs = nil, ""
		}
		v.Diagnosis = inFields(&d)
	}
	stderr := l.output
	if v.Diagnosis != nil && !l.details { // the diagnosis has the essence of it
		stderr = l.trace
	}
	v.Stdout, v.Stderr = excerptOf(&r.Stdout, l.output, handle, "stdout"), excerptOf(&r.Stderr, stderr, handle, "stderr")
	for _, x := range r.Violations {
		v.Violations = append(v.Violations, Violation{x.Kind, printable(x.Detail), allowed(x.Allow)})
	}
	for i := range r.Files {
		v.addFile(&r.Files[i], l, handle)
	}
	if r.Deps != nil {
		for _, p := range r.Deps.Packages {
			v.Packages = append(v.Packages, p.Name+" "+p.Version)
		}
	}
	if l.details {
		v.Memory, v.Notes = r.Metrics.MemoryPeak, r.Notes
	}
	return v
}

// maxImage bounds an image that an answer contains.
const maxImage = 1 << 20

// imageTypes are the images that clients show, by the extension of the file.
var imageTypes = map[string]string{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}

func (v *Result) addFile(f *executor.OutputFile, l level, handle string) {
	out := File{Path: printable(f.Path), Bytes: len(f.Data), Missing: printable(f.Reason)}
	text, encoding := sandbox.EncodeText(f.Data)
	kind := imageTypes[strings.ToLower(path.Ext(f.Path))]
	switch {
	case f.Reason != "":
	case kind != "" && len(f.Data) <= maxImage && l.file > 0:
		v.images = append(v.images, &mcp.ImageContent{Data: f.Data, MIMEType: kind})
	case encoding == "" && len(f.Data) <= l.file:
		out.Text = printable(text)
	}
	if f.Reason == "" && handle != "" {
		out.URI = fileURI(handle, f.Path)
	}
	v.Files = append(v.Files, out)
}

func (v *Result) content() []mcp.Content { return v.images }

// flag is a flag of the command line in what would allow a violation.
var flag = regexp.MustCompile(`--([a-z-]+)`)

// fields are the fields of tools that have other names than the flags.
var fields = map[string]string{"allow": "allow_hosts", "deps": "packages"}

// allowed replaces the flags of the command line by the fields of tools.
func allowed(text string) string {
	return printable(flag.ReplaceAllStringFunc(text, func(f string) string {
		name := strings.TrimPrefix(f, "--")
		if field := fields[name]; field != "" {
			return field
		}
		return strings.ReplaceAll(name, "-", "_")
	}))
}

// inFields returns a diagnosis that names the fields of tools.
func inFields(d *diagnose.Diagnosis) *diagnose.Diagnosis {
	c := *d
	c.Cause, c.Suggestions = allowed(d.Cause), nil
	for _, s := range d.Suggestions {
		c.Suggestions = append(c.Suggestions, allowed(s))
	}
	return &c
}

// text is the result for a model: what happened, why, and then the output.
func (v *Result) text() string {
	var b strings.Builder
	switch {
	case v.State != "done":
		fmt.Fprintf(&b, "%s; run=%s\n", v.State, v.Run)
		return b.String()
	case v.Checked != "" && v.Success:
		fmt.Fprintf(&b, "%s\n", v.Checked)
	default:
		fmt.Fprintf(&b, "%s, exit code %d, %.2f s", v.Verdict, *v.ExitCode, v.Seconds)
		if v.Checked != "" {
			fmt.Fprintf(&b, " (%s)", v.Checked)
		}
		b.WriteByte('\n')
	}
	if v.Diagnosis != nil {
		writeDiagnosis(&b, v.Diagnosis)
	}
	if v.Value != "" {
		fmt.Fprintf(&b, "value: %s\n", v.Value)
	}
	for _, s := range []struct {
		name string
		of   *Excerpt
	}{{"stdout", v.Stdout}, {"stderr", v.Stderr}} {
		switch {
		case s.of == nil:
		case s.of.Text == "":
			fmt.Fprintf(&b, "%s: %d bytes, which get_output has\n", s.name, s.of.Bytes)
		default:
			fmt.Fprintf(&b, "%s:\n%s\n", s.name, strings.TrimSuffix(s.of.Text, "\n"))
		}
	}
	for _, x := range v.Violations {
		fmt.Fprintf(&b, "violation %s: %s", x.Kind, x.Detail)
		if x.Allow != "" {
			fmt.Fprintf(&b, " (would be allowed by: %s)", x.Allow)
		}
		b.WriteByte('\n')
	}
	for _, f := range v.Files {
		switch {
		case f.Missing != "":
			fmt.Fprintf(&b, "file %s: not copied out: %s\n", f.Path, f.Missing)
		case f.Text != "":
			fmt.Fprintf(&b, "file %s (%d bytes):\n%s\n", f.Path, f.Bytes, strings.TrimSuffix(f.Text, "\n"))
		default:
			fmt.Fprintf(&b, "file %s (%d bytes): %s\n", f.Path, f.Bytes, f.URI)
		}
	}
	if len(v.Packages) > 0 {
		fmt.Fprintf(&b, "installed: %s\n", strings.Join(v.Packages, ", "))
	}
	for _, n := range v.Notes {
		fmt.Fprintf(&b, "note: %s\n", printable(n))
	}
	if v.Run != "" {
		fmt.Fprintf(&b, "run=%s\n", v.Run)
	}
	return b.String()
}

func writeDiagnosis(b *strings.Builder, d *diagnose.Diagnosis) {
	fmt.Fprintf(b, "%s: %s", d.Kind, printable(d.Message))
	if at := d.Location; at != nil {
		fmt.Fprintf(b, " at %s:%d", printable(at.File), at.Line)
	}
	b.WriteByte('\n')
	if d.Cause != "" {
		fmt.Fprintf(b, "cause: %s\n", printable(d.Cause))
	}
	for _, s := range d.Suggestions {
		fmt.Fprintf(b, "try: %s\n", printable(s))
	}
	if d.Excerpt != "" {
		fmt.Fprintf(b, "%s\n", strings.TrimSuffix(printable(d.Excerpt), "\n"))
	}
}

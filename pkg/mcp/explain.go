package mcp

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ExplainError is the input of explain_error.
type ExplainError struct {
	Run      string `json:"run,omitempty" jsonschema:"handle of a run, or SESSION/N of a cell"`
	Language string `json:"language,omitempty" jsonschema:"in place of run: the language of the error"`
	Error    string `json:"error,omitempty" jsonschema:"in place of run: what the program or its compiler printed"`
	Code     string `json:"code,omitempty" jsonschema:"the program in one file, for the lines around the error"`
	Name     string `json:"name,omitempty" jsonschema:"name of that file in the error; default: that of the first line with a place"`
}

// Explanation is a diagnosis.
type Explanation struct {
	Diagnosis *diagnose.Diagnosis `json:"diagnosis,omitempty" jsonschema:"absent: nothing is known about the error"`
}

func (v *Explanation) text() string {
	if v.Diagnosis == nil {
		return "nothing is known about this error; read its text"
	}
	var b strings.Builder
	writeDiagnosis(&b, v.Diagnosis)
	for _, f := range v.Diagnosis.Frames {
		if f.User {
			fmt.Fprintf(&b, "in %s at %s:%d\n", printable(f.Function), printable(f.File), f.Line)
		}
	}
	if v.Diagnosis.Docs != "" {
		fmt.Fprintf(&b, "docs: %s\n", v.Diagnosis.Docs)
	}
	return b.String()
}

func (s *Server) explainError(ctx context.Context, _ *mcp.CallToolRequest, in ExplainError) (*Explanation, error) {
	if in.Run == "" {
		return explainText(&in)
	}
	info, err := s.find(ctx, in.Run, 0)
	switch {
	case err != nil:
		return nil, err
	case !info.State.Over():
		return nil, sandbox.Invalid("run", "it is still under way; get_output waits for its end")
	case len(info.Result) == 0:
		return nil, sandbox.Invalid("run", "it has no result")
	}
	r, err := wire.DecodeResult(info.Result)
	if err != nil {
		return nil, err
	}
	return explanation(r.Diagnosis), nil
}

// explainText explains an error that the caller has.
func explainText(in *ExplainError) (*Explanation, error) {
	if in.Language == "" || in.Error == "" {
		return nil, errNeither
	}
	f := &diagnose.Failure{
		Language: strings.ToLower(in.Language), Source: func(name string) (string, bool) { return in.Code, name == in.Name && in.Name != "" },
		Result: &sandbox.Result{
			Verdict: sandbox.VerdictNonzeroExit, Exit: sandbox.Exit{Code: 1},
			Stderr: sandbox.Output{Head: []byte(in.Error), Total: uint64(len(in.Error))},
		},
	}
	if in.Name != "" && in.Code != "" {
		f.Files = []string{in.Name}
	}
	d := diagnose.Of(f)
	if d == nil && f.Language == "python" { // the last line of a traceback alone, which in the output of a program would be no error
		f.Result.Stderr = sandbox.Output{Head: []byte(tracebackHead + in.Error), Total: uint64(len(tracebackHead) + len(in.Error))}
		d = diagnose.Of(f)
	}
	return explanation(d), nil
}

const tracebackHead = "Traceback (most recent call last):\n"

func explanation(d *diagnose.Diagnosis) *Explanation {
	if d == nil {
		return &Explanation{}
	}
	return &Explanation{inFields(d)}
}

// Nothing is the input of a tool without arguments.
type Nothing struct{}

// Languages is a list of languages.
type Languages struct {
	Languages []Language `json:"languages"`
}

// Language is a language.
type Language struct {
	Name    string   `json:"name"`
	Version string   `json:"version,omitempty"`
	Aliases []string `json:"aliases,omitempty"`
	Ready   bool     `json:"ready"`
	Reason  string   `json:"reason,omitempty" jsonschema:"why it is not ready"`
}

func (v *Languages) text() string {
	var b strings.Builder
	for _, l := range v.Languages {
		fmt.Fprintf(&b, "%s %s", l.Name, l.Version)
		if !l.Ready {
			fmt.Fprintf(&b, " (not ready: %s)", l.Reason)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *Server) listLanguages(ctx context.Context, _ *mcp.CallToolRequest, _ Nothing) (*Languages, error) {
	all, err := s.client(ctx).Languages(ctx)
	if err != nil {
		return nil, err
	}
	v := &Languages{Languages: []Language{}}
	for _, l := range all {
		v.Languages = append(v.Languages, Language{
			Name: l.Name, Version: l.Version, Aliases: l.Aliases, Ready: l.Reason == "", Reason: printable(l.Reason),
		})
	}
	return v, nil
}

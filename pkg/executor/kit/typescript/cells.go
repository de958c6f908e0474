package typescript

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// Question asks for the JavaScript of a cell of a session, or of a file of the program that a cell imports.
type Question struct {
	Name string `json:"name"`
	Code string `json:"code"`
	File string `json:"file,omitempty"` // its module is built; Code is not used
	Out  string `json:"out,omitempty"`  // the module
}

// Answer has the JavaScript, or the text of the errors.
type Answer struct {
	Code       string          `json:"code"`
	Map        json.RawMessage `json:"map,omitempty"`
	Text       string          `json:"text,omitempty"`    // errors as the compiler prints them
	Message    string          `json:"message,omitempty"` // the first error
	Line       int             `json:"line,omitempty"`    // of it
	Incomplete bool            `json:"incomplete,omitempty"`
}

// ServeCells answers the questions of a session until the end of the input: one JSON value for each.
func ServeCells(dir string, in io.Reader, out io.Writer) error {
	Warm()
	questions, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q Question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a Answer
		if q.File != "" {
			a = buildFile(dir, &q)
		} else {
			a = transformCell(&q)
		}
		if err := answers.Encode(&a); err != nil {
			return err
		}
	}
}

func buildFile(dir string, q *Question) (a Answer) {
	warnings, err := Build(Options{Dir: dir, Entry: q.File, Out: q.Out, Disposable: true})
	var failure *Failure
	switch {
	case errors.As(err, &failure):
		a.Text, a.Message = failure.Text, failure.Error()
	case err != nil:
		a.Text, a.Message = err.Error()+"\n", err.Error()
	default:
		a.Text = warnings
	}
	return a
}

// cellConfig keeps imports that the cell itself does not use: later cells may.
const cellConfig = `{"compilerOptions": {"verbatimModuleSyntax": true, "experimentalDecorators": true, "useDefineForClassFields": true}}`

// transformCell removes the types of a cell. Declarations and imports stay, whether the cell uses them or not.
func transformCell(q *Question) (a Answer) {
	if text := strings.TrimSpace(q.Code); strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") { // an object rather than a block
		if r := transform(q.Name, "("+q.Code+")"); len(r.Errors) == 0 {
			return Answer{Code: string(r.Code), Map: bytes.TrimSpace(r.Map)}
		}
	}
	result := transform(q.Name, q.Code)
	if len(result.Errors) == 0 {
		return Answer{Code: string(result.Code), Map: bytes.TrimSpace(result.Map)}
	}
	first := result.Errors[0]
	a.Message = first.Text
	if l := first.Location; l != nil {
		a.Line = l.Line
	}
	switch {
	case strings.Contains(first.Text, "end of file"), strings.HasPrefix(first.Text, `Expected "*/"`):
		a.Incomplete = true
	case strings.HasPrefix(first.Text, "Unterminated"): // a template, if the next line is part of it
		more := transform(q.Name, q.Code+"\n").Errors
		a.Incomplete = len(more) > 0 && more[0].Location != nil && more[0].Location.Line > 1+strings.Count(q.Code, "\n")
	}
	for i := range result.Errors {
		if l := result.Errors[i].Location; l != nil && len(l.LineText) > longestLine {
			l.LineText, l.Column, l.Length = "", 0, 0
		}
	}
	a.Text = strings.Join(api.FormatMessages(result.Errors, api.FormatMessagesOptions{Kind: api.ErrorMessage, TerminalWidth: 100}), "")
	return a
}

func transform(name, code string) api.TransformResult {
	return api.Transform(code, api.TransformOptions{
		Loader: api.LoaderTS, Sourcefile: name, TsconfigRaw: cellConfig, Platform: api.PlatformNode, Target: api.ESNext,
		Charset: api.CharsetUTF8, Sourcemap: api.SourceMapExternal, SourcesContent: api.SourcesContentExclude, LogLevel: api.LogLevelSilent,
		LogLimit: 20,
	})
}

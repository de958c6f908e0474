package client

import (
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Limits of the files within a request. Larger files are uploaded first.
const (
	// MaxInline is the largest total size of a request's files.
	MaxInline = 16 * sandbox.MiB
	// maxInlineFiles bounds their number: more files take longer to encode than to copy.
	maxInlineFiles = 10_000
)

// UnsendableError reports a field of a request that has no form in a request to a server.
type UnsendableError struct {
	Field  string // as the executor and its flags call it
	Reason string
}

func (e *UnsendableError) Error() string { return e.Field + ": " + e.Reason }

// NewRun converts a request of the executor to one for a server; wire.Run.Request reverses that. The error is an *UnsendableError, or the
// failure to read a file. Standard input and event callbacks are not converted.
func NewRun(req *executor.Request) (*wire.Run, error) {
	if err := checkSendable(req); err != nil {
		return nil, err
	}
	run := &wire.Run{
		Language: req.Language, Code: req.Code, Name: req.Name, Entry: req.Entry, Image: req.Image, Args: req.Args, Env: req.Env,
		NoCache: req.NoCache,
		Limits:  req.Limits, CompileLimits: req.CompileLimits, Policy: req.Policy, Options: req.Options, Out: req.Outputs.Patterns,
	}
	if err := checkText(run); err != nil {
		return nil, err
	}
	if req.TTY != nil {
		run.TTY = &wire.TTY{Rows: req.TTY.Rows, Cols: req.TTY.Cols}
	}
	room := int64(MaxInline)
	var err error
	if run.Files, err = inline("files", req.Files, &room); err != nil {
		return nil, err
	}
	run.In, err = inline("in", req.Inputs, &room)
	return run, err
}

// checkSendable refuses fields that a request to a server lacks.
func checkSendable(req *executor.Request) error {
	switch {
	case req.Template != nil || req.Variables != nil:
		return &UnsendableError{"template", "fill in the template before the request is sent"}
	case req.Outputs.MaxFiles != 0 || req.Outputs.MaxBytes != 0:
		return &UnsendableError{"out", "the server sets the limits of output files"}
	case req.Spill != nil:
		return &UnsendableError{"spill", "a server can not write to files of its client"}
	}
	for _, l := range sandbox.AllLimits() {
		if l.CompileDoc == "" && l.IsSet(&req.CompileLimits) {
			return &UnsendableError{"compile-limits", "a server accepts only the compile timeout and memory"}
		}
	}
	return nil
}

// checkText refuses text that JSON would change.
func checkText(run *wire.Run) error {
	check := func(name string, value any) error {
		var texts []string
		switch v := value.(type) {
		case *string:
			texts = []string{*v}
		case *[]string:
			texts = *v
		case *map[string]string:
			texts = slices.AppendSeq(slices.Collect(maps.Keys(*v)), maps.Values(*v))
		}
		for _, text := range texts {
			if !utf8.ValidString(text) {
				return &UnsendableError{flagOf(name), fmt.Sprintf("%.40q is not UTF-8", text)}
			}
		}
		return nil
	}
	v := reflect.ValueOf(run).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if err := check(name, v.Field(i).Addr().Interface()); err != nil {
			return err
		}
	}
	for _, f := range run.Settings() {
		if err := check(f.Name, f.Value); err != nil {
			return err
		}
	}
	return nil
}

// inline reads files and returns them as part of a request. It subtracts their size from room.
func inline(field string, files []executor.File, room *int64) ([]wire.File, error) {
	if len(files) == 0 {
		return nil, nil
	}
	if len(files) > maxInlineFiles {
		return nil, &UnsendableError{field, fmt.Sprintf("%d files; at most %d fit into a request", len(files), maxInlineFiles)}
	}
	all := make([]wire.File, len(files))
	for i, f := range files {
		if !utf8.ValidString(f.Path) {
			return nil, &UnsendableError{field, fmt.Sprintf("the name %q is not UTF-8", f.Path)}
		}
		if f.Link != "" {
			if all[i] = (wire.File{Path: f.Path, Link: f.Link}); !utf8.ValidString(f.Link) {
				return nil, &UnsendableError{field, fmt.Sprintf("the target %q of a link is not UTF-8", f.Link)}
			}
			continue
		}
		data, err := content(f, *room+1)
		if err != nil {
			return nil, err
		}
		if *room -= int64(len(data)); *room < 0 {
			return nil, &UnsendableError{field, fmt.Sprintf("the files are larger than %s", MaxInline)}
		}
		all[i] = wire.NewFile(f.Path, f.Mode, data)
	}
	return all, nil
}

// content reads at most that many bytes of a file.
func content(f executor.File, most int64) ([]byte, error) {
	if f.Open == nil {
		return f.Data, nil
	}
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, most))
}

// flagOf returns the name that the executor and the command line have for a field of a request.
func flagOf(field string) string {
	if name, ok := map[string]string{"language": "lang", "files": "file", "volumes": "volume", "vars": "var"}[field]; ok {
		return name
	}
	return strings.ReplaceAll(field, "_", "-")
}

package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// DecodeEvent reads one line of a stream of events. The event of a result has the result.
func DecodeEvent(line []byte) (executor.Event, error) {
	var doc struct {
		sandbox.EventDocument
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(line, &doc); err != nil {
		return executor.Event{}, err
	}
	ev := executor.Event{Event: doc.Event}
	var err error
	if doc.Data != nil {
		if ev.Data, err = decodeText(*doc.Data, doc.Encoding); err != nil {
			return ev, fmt.Errorf("event %d: %w", ev.Seq, err)
		}
	}
	if doc.Result != nil {
		ev.Result, err = DecodeResult(doc.Result)
	}
	return ev, err
}

// DecodeResult reads a whole result back into the value that the executor returned. Truncated output has its head and tail.
func DecodeResult(b []byte) (*executor.Result, error) {
	var doc struct {
		sandbox.Document
		Language string                 `json:"language"`
		Version  string                 `json:"language_version"`
		Phases   []executor.PhaseResult `json:"phases"`
		Files    []outputFile           `json:"files"`
		Tables   []executor.Table       `json:"tables"`
		Deps     *executor.Deps         `json:"deps"`
		Error    *executor.Failure      `json:"error"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	exit := sandbox.Exit{Signal: SignalNumber(doc.Signal)}
	own := doc.ProgramExitCode
	if n := len(doc.Phases); own == nil && n > 0 {
		own = doc.Phases[n-1].ProgramExitCode // of the process that failed before the program
	}
	switch {
	case own != nil:
		exit.Code = *own
	case doc.Signal == "":
		exit.Code = doc.ExitCode // from a server whose exit_code is the program's own
	}
	r := &executor.Result{
		Language: doc.Language, Version: doc.Version, Phases: doc.Phases, Tables: doc.Tables, Deps: doc.Deps,
		Result: sandbox.Result{
			Verdict: doc.Verdict, Exit: exit, Phase: doc.Phase, Metrics: doc.Metrics,
			Limits: doc.Limits, Isolation: doc.Isolation, Image: doc.Image, Violations: doc.Violations, Needed: doc.Needed,
			Notes: doc.Notes,
		},
	}
	if doc.Error != nil {
		r.Diagnosis = doc.Error.Diagnosis
	}
	if (own != nil || doc.Signal != "") && doc.ExitCode != r.ExitCode() {
		r.Code = doc.ExitCode
	}
	var err error
	if r.Stdout, err = output(doc.Stdout, doc.StdoutEncoding, doc.StdoutHeadBytes, doc.StdoutDropped, doc.StdoutFile); err != nil {
		return nil, fmt.Errorf("stdout: %w", err)
	}
	if r.Stderr, err = output(doc.Stderr, doc.StderrEncoding, doc.StderrHeadBytes, doc.StderrDropped, doc.StderrFile); err != nil {
		return nil, fmt.Errorf("stderr: %w", err)
	}
	r.Files, err = readFiles(doc.Files)
	return r, err
}

// DecodeFiles reads only the files of a result. The result may lack its outputs.
func DecodeFiles(b []byte) ([]executor.OutputFile, error) {
	var doc struct {
		Files []outputFile `json:"files"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	return readFiles(doc.Files)
}

func readFiles(files []outputFile) (read []executor.OutputFile, err error) {
	for _, f := range files {
		data, err := decodeText(f.Content, f.Encoding)
		if err != nil {
			return nil, fmt.Errorf("file %q: %w", f.Path, err)
		}
		read = append(read, executor.OutputFile{Path: f.Path, Mode: f.Mode, Data: data, Reason: f.Reason})
	}
	return read, nil
}

// outputFile is executor.OutputFile as JSON.
type outputFile struct {
	Path     string `json:"path"`
	Mode     uint32 `json:"mode"`
	Content  string `json:"content"`
	Encoding string `json:"encoding"`
	Reason   string `json:"not_taken"`
}

func output(text, encoding string, head int, dropped uint64, file string) (sandbox.Output, error) {
	data, err := decodeText(text, encoding)
	if err != nil {
		return sandbox.Output{}, err
	}
	o := sandbox.Output{Head: data, Dropped: dropped, Total: uint64(len(data)) + dropped, File: file}
	if dropped > 0 {
		if head < 0 || head > len(data) {
			return o, fmt.Errorf("a head of %d bytes in %d", head, len(data))
		}
		o.Head, o.Tail = data[:head:head], data[head:]
	}
	return o, nil
}

func decodeText(text, encoding string) ([]byte, error) {
	switch encoding {
	case "":
		return []byte(text), nil
	case "base64":
		return base64.StdEncoding.DecodeString(text)
	}
	return nil, fmt.Errorf("unknown encoding %q", encoding)
}

// SignalNumber returns the number of a signal by its name in results; 0 for an unknown name.
func SignalNumber(name string) int {
	if name == "" {
		return 0
	}
	for n := 1; n <= 64; n++ {
		if sandbox.SignalName(n) == name {
			return n
		}
	}
	return 0
}

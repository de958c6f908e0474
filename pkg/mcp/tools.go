package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// hints describe a tool for the client that asks its user for permission.
type hints struct{ readOnly, destructive, idempotent, open bool }

// addTools adds all tools.
func (s *Server) addTools() {
	add(s, "run_code", "Run a program in one file in a fresh sandbox and get its output. Nothing stays after the run; use session_create for state. "+
		"Default limits: 30 s, 512 MiB, no network. Returns verdict, diagnosis of a failure, head and tail of the output.",
		hints{open: true}, s.runCode)
	add(s, "run_project", "Run a program of several files in a fresh sandbox: the files as a tree, and the entry file if it is not obvious. "+
		"Compiled languages are compiled first. Limits and answer as for run_code.", hints{open: true}, s.runProject)
	add(s, "check_code", "Compile or parse code without running it. Says whether types were checked. SQL can not be checked. "+
		"Returns the first error with its place.", hints{readOnly: true, idempotent: true}, s.checkCode)
	add(s, "get_output", "Read output of a run that was shortened, from a byte offset on; or wait for a run that was started with wait: false.",
		hints{readOnly: true, idempotent: true}, s.getOutput)
	add(s, "cancel_run", "End a run, or interrupt the cell of a session, by its handle.",
		hints{destructive: true, idempotent: true}, s.cancelRun)
	add(s, "explain_error", "Explain a failed run by its handle, or an error message of a language: kind, place, cause, suggestions.",
		hints{readOnly: true, idempotent: true}, s.explainError)
	add(s, "list_languages", "List the languages, their versions, and which are ready here.",
		hints{readOnly: true, idempotent: true}, s.listLanguages)

	add(s, "session_create", "Start an interpreter that keeps its state, its variables and its files between calls of session_run. It ends after "+
		"30 minutes without a call, or with session_close.", hints{open: true}, s.sessionCreate)
	add(s, "session_run", "Run code in a session. Variables and files of earlier calls are there. Returns the value of the last expression and the "+
		"output.", hints{destructive: true, open: true}, s.sessionRun)
	add(s, "session_interrupt", "Interrupt the code that runs in a session. Its state survives.",
		hints{destructive: true, idempotent: true}, s.sessionInterrupt)
	add(s, "session_fork", "Make a second session with the same state, to try something without changing the first.", hints{}, s.sessionFork)
	add(s, "session_close", "End a session with all its state and files.", hints{destructive: true, idempotent: true}, s.sessionClose)
	add(s, "files_list", "List files of a session, of /workspace unless path names another directory or a pattern.",
		hints{readOnly: true, idempotent: true}, s.filesList)
	add(s, "files_read", "Read a file of a session, from a byte offset on.", hints{readOnly: true, idempotent: true}, s.filesRead)
	add(s, "files_write", "Write a file in a session; an existing file is replaced.", hints{destructive: true, idempotent: true}, s.filesWrite)
	add(s, "install_packages", "Install packages in a session, from the package registry of its language, if the operator allows it. "+
		"For a single run, use its field packages.", hints{idempotent: true, open: true}, s.installPackages)
}

// words are the closed sets of values, by the name of the field.
var words = map[string][]any{
	"verbosity": {"brief", "normal", "full"}, "encoding": {"text", "base64"}, "stream": {"stdout", "stderr"}, "network": {"none", "localhost", "full"},
}

// schemaOf returns the schema of a type, with the closed sets. It is encoded once: the library encodes a schema at every call.
func schemaOf[T any]() json.RawMessage {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		panic("mcp: " + err.Error()) // a type of this package
	}
	schema.Type, schema.Types = "object", nil // of a pointer, the type is object or null, which clients refuse
	limit(schema)
	text, err := json.Marshal(schema)
	if err != nil {
		panic("mcp: encode " + err.Error())
	}
	return text
}

func limit(schema *jsonschema.Schema) {
	for name, p := range schema.Properties {
		if p.Enum == nil && p.Type == "string" {
			p.Enum = words[name]
		}
		limit(p)
	}
	if schema.Items != nil {
		limit(schema.Items)
	}
}

// answer is the output of a tool: its data, and the same as text for a model.
type answer interface{ text() string }

// add adds a tool. An answer may also have content besides its text.
func add[In any, Out answer](s *Server, name, description string, h hints, do func(context.Context, *mcp.CallToolRequest, In) (Out, error)) {
	tool := &mcp.Tool{
		Name: name, Description: description, InputSchema: schemaOf[In](), OutputSchema: schemaOf[Out](),
		Annotations: &mcp.ToolAnnotations{
			ReadOnlyHint: h.readOnly, DestructiveHint: new(h.destructive), IdempotentHint: h.idempotent, OpenWorldHint: new(h.open),
		},
	}
	mcp.AddTool(s.server, tool, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		out, err := do(ctx, req, in)
		if err != nil {
			return nil, out, explain(err)
		}
		result := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: out.text()}}}
		if more, ok := any(out).(interface{ content() []mcp.Content }); ok {
			result.Content = append(result.Content, more.content()...)
		}
		return result, out, nil
	})
}

// explain returns an error as a model reads it. Hints about requests over HTTP are left out.
func explain(err error) error {
	var failed *executor.InstallFailure
	if errors.As(err, &failed) {
		return errors.New("install_error: " + viewOf(failed.Result, levels["normal"], "").text())
	}
	var p *client.Problem
	if !errors.As(err, &p) {
		return errors.New(printable(err.Error()))
	}
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	for i, e := range p.Errors {
		if i > 0 || !strings.Contains(text, e.Message) {
			text += "; " + e.Field + ": " + e.Message
		}
	}
	if p.RetryAfter > 0 {
		text += fmt.Sprintf("; try again in %d s", p.RetryAfter)
	}
	if p.Hint != "" && !strings.Contains(p.Hint, "/v1/") && !strings.Contains(p.Hint, "openapi") {
		text += "; try: " + p.Hint
	}
	return errors.New(printable(p.Code + ": " + text))
}

// jsonOf encodes the data of a resource.
func jsonOf(v any) string {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic("mcp: encode " + err.Error()) // a type of this package
	}
	return string(text)
}

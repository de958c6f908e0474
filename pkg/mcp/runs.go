package mcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// InputFile is a file of a request.
type InputFile struct {
	Path     string `json:"path" jsonschema:"relative, with slashes"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" jsonschema:"of content; default text"`
}

// Settings are the fields that all runs have.
type Settings struct {
	Stdin     string            `json:"stdin,omitempty" jsonschema:"standard input"`
	Args      []string          `json:"args,omitempty" jsonschema:"arguments of the program"`
	Env       map[string]string `json:"env,omitempty" jsonschema:"environment variables"`
	Inputs    []InputFile       `json:"inputs,omitempty" jsonschema:"data files in the working directory"`
	Out       []string          `json:"out,omitempty" jsonschema:"patterns of files to bring back, such as *.png"`
	Packages  []string          `json:"packages,omitempty" jsonschema:"packages to install first, if the operator allows it"`
	Timeout   float64           `json:"timeout,omitempty" jsonschema:"seconds; default 30"`
	Memory    string            `json:"memory,omitempty" jsonschema:"such as 1g; default 512m"`
	Network   string            `json:"network,omitempty" jsonschema:"default none"`
	Hosts     []string          `json:"allow_hosts,omitempty" jsonschema:"hosts that the program may reach, such as api.example.com:443"`
	Verbosity string            `json:"verbosity,omitempty" jsonschema:"how much of the output comes back; default normal"`
	Wait      *bool             `json:"wait,omitempty" jsonschema:"false: answer at once with a handle; get_output waits for the end"`
}

// RunCode is the input of run_code.
type RunCode struct {
	Language string `json:"language" jsonschema:"python, javascript, typescript, go, rust, java, shell, sql, …"`
	Code     string `json:"code" jsonschema:"the program"`
	Settings
}

// RunProject is the input of run_project.
type RunProject struct {
	Files    []InputFile `json:"files" jsonschema:"the program"`
	Language string      `json:"language,omitempty" jsonschema:"default: by the names of the files"`
	Entry    string      `json:"entry,omitempty" jsonschema:"the file that starts the program; default: by its name"`
	Settings
}

// CheckCode is the input of check_code.
type CheckCode struct {
	Language  string      `json:"language,omitempty" jsonschema:"needed with code"`
	Code      string      `json:"code,omitempty" jsonschema:"the program in one file"`
	Files     []InputFile `json:"files,omitempty" jsonschema:"the program in several files, in place of code"`
	Entry     string      `json:"entry,omitempty"`
	Packages  []string    `json:"packages,omitempty" jsonschema:"packages to install first, if the operator allows it"`
	Verbosity string      `json:"verbosity,omitempty"`
}

func filesOf(given []InputFile) (files []wire.File) {
	for _, f := range given {
		files = append(files, wire.File{Path: f.Path, Content: f.Content, Encoding: f.Encoding})
	}
	return files
}

// maxSeconds keeps a duration within its type; the API has the ceiling.
const maxSeconds = float64(math.MaxInt64 / int64(time.Second))

// seconds reads a duration.
func seconds(field string, n float64) (time.Duration, error) {
	if n < 0 || n >= maxSeconds {
		return 0, sandbox.Invalid(field, "%g is no number of seconds; write it like 10", n)
	}
	return time.Duration(n * float64(time.Second)), nil
}

// apply sets the fields of a run.
func (s *Settings) apply(run *wire.Run) (err error) {
	run.Stdin, run.Args, run.Env, run.In, run.Out = s.Stdin, s.Args, s.Env, filesOf(s.Inputs), s.Out
	run.Options.Deps = s.Packages
	if run.Limits.Wall, err = seconds("timeout", s.Timeout); err != nil {
		return err
	}
	if s.Memory != "" {
		if run.Limits.Memory, err = sandbox.ParseSize(s.Memory); err != nil {
			return sandbox.Invalid("memory", "%w", err)
		}
	}
	run.Policy.Network = networkOf(s.Network, s.Hosts)
	return nil
}

func networkOf(mode string, hosts []string) network.Policy {
	if mode == "" && len(hosts) == 0 {
		return network.Policy{}
	}
	return network.Policy{Mode: network.Mode(mode), Allow: hosts}
}

func (s *Server) runCode(ctx context.Context, req *mcp.CallToolRequest, in RunCode) (*Result, error) {
	run := &wire.Run{Language: in.Language, Code: in.Code}
	if err := in.apply(run); err != nil {
		return nil, err
	}
	return s.run(ctx, req, run, in.Wait, in.Verbosity)
}

func (s *Server) runProject(ctx context.Context, req *mcp.CallToolRequest, in RunProject) (*Result, error) {
	run := &wire.Run{Language: in.Language, Files: filesOf(in.Files), Entry: in.Entry}
	if err := in.apply(run); err != nil {
		return nil, err
	}
	return s.run(ctx, req, run, in.Wait, in.Verbosity)
}

// run runs a program and waits for its end.
func (s *Server) run(ctx context.Context, req *mcp.CallToolRequest, run *wire.Run, wait *bool, verbosity string) (*Result, error) {
	api := s.client(ctx)
	info, err := api.Start(ctx, run, "")
	if err != nil {
		return nil, err
	}
	if wait != nil && !*wait {
		return &Result{Run: info.ID, State: string(info.State), URI: uriOf(info.ID)}, nil
	}
	info, err = s.await(ctx, req, api, info.ID)
	if err != nil {
		return nil, err
	}
	return runView(info, levels[verbosity])
}

// runView returns a run that is over as it is shown.
func runView(info *wire.RunInfo, l level) (*Result, error) {
	if info.Error != nil {
		return nil, &client.Problem{Problem: *info.Error}
	}
	if len(info.Result) == 0 {
		return &Result{Run: info.ID, State: string(info.State), URI: uriOf(info.ID)}, nil
	}
	r, err := wire.DecodeResult(info.Result)
	if err != nil {
		return nil, err
	}
	return viewOf(r, l, info.ID), nil
}

// Times of waiting.
const (
	quietWait     = 50 * time.Second // without progress
	progressEvery = 2 * time.Second
	cancelTimeout = 30 * time.Second
	mostWait      = 60 // seconds that get_output waits
)

// await waits for the end of a run, reports progress, and cancels the run if the call ends.
func (s *Server) await(ctx context.Context, req *mcp.CallToolRequest, api *client.Client, id string) (*wire.RunInfo, error) {
	p := newProgress(ctx, req)
	p.report("run=" + id)
	for {
		info, err := api.Wait(ctx, id, p.interval())
		switch {
		case ctx.Err() != nil:
			cancelLeft(ctx, api, id)
			return nil, fmt.Errorf("cancelled: %w", context.Cause(ctx))
		case err != nil:
			return nil, err
		case info.State.Over():
			return info, nil
		}
		what := string(info.State)
		if info.Position > 0 {
			what += fmt.Sprintf(", place %d", info.Position)
		}
		p.report(fmt.Sprintf("%s; run=%s", what, id))
	}
}

// cancelLeft cancels the run of a call that has ended.
func cancelLeft(ctx context.Context, api *client.Client, id string) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	_ = api.Cancel(own, id) // it may be over already
}

// progress reports the progress of a call to a client that asked for it.
type progress struct {
	ctx   context.Context //nolint:containedctx // of the call, for as long as it lasts
	req   *mcp.CallToolRequest
	token any
	begun time.Time
	last  float64
}

func newProgress(ctx context.Context, req *mcp.CallToolRequest) *progress {
	return &progress{ctx: ctx, req: req, token: req.Params.GetProgressToken(), begun: time.Now()}
}

func (p *progress) interval() time.Duration {
	if p.token == nil {
		return quietWait
	}
	return progressEvery
}

// report sends a message. The number is that of seconds, and larger than the last one.
func (p *progress) report(message string) {
	if p.token == nil {
		return
	}
	p.last = max(p.last+0.001, time.Since(p.begun).Seconds())
	_ = p.req.Session.NotifyProgress(p.ctx, &mcp.ProgressNotificationParams{ // a client that has gone ends the call
		ProgressToken: p.token, Message: message, Progress: p.last,
	})
}

func (s *Server) checkCode(ctx context.Context, req *mcp.CallToolRequest, in CheckCode) (*Result, error) {
	run := &wire.Run{Language: in.Language, Code: in.Code, Files: filesOf(in.Files), Entry: in.Entry}
	run.Options.Check, run.Options.Deps = true, in.Packages
	api := s.client(ctx)
	info, err := api.Start(ctx, run, "")
	if err != nil {
		return nil, err
	}
	if info, err = s.await(ctx, req, api, info.ID); err != nil {
		return nil, err
	}
	v, err := runView(info, levels[in.Verbosity])
	if err != nil || v.State != "done" {
		return v, err
	}
	r, err := wire.DecodeResult(info.Result)
	if err != nil {
		return nil, err
	}
	for _, n := range r.Notes {
		if what, ok := strings.CutPrefix(n, executor.CheckedNote); ok {
			v.Checked = what
		}
	}
	return v, nil
}

// GetOutput is the input of get_output.
type GetOutput struct {
	Run      string  `json:"run" jsonschema:"handle of a run, or SESSION/N of a cell"`
	Stream   string  `json:"stream,omitempty" jsonschema:"default stdout"`
	Offset   uint64  `json:"offset,omitempty" jsonschema:"first byte"`
	Length   int     `json:"length,omitempty" jsonschema:"most bytes; default 8000, at most 100000"`
	Encoding string  `json:"encoding,omitempty" jsonschema:"base64: the exact bytes; default text, with control characters escaped"`
	Wait     float64 `json:"wait,omitempty" jsonschema:"seconds to wait for a run that is under way, at most 60"`
}

// Output is a part of a stream.
type Output struct {
	Run     string `json:"run"`
	State   string `json:"state"`
	Verdict string `json:"verdict,omitempty"`
	Text    string `json:"text" jsonschema:"the part, in the encoding"`
	Offset  uint64 `json:"offset"`
	Next    uint64 `json:"next_offset,omitempty" jsonschema:"where to go on; absent at the end"`
	Bytes   uint64 `json:"bytes" jsonschema:"of the whole stream"`
	Missing uint64 `json:"missing,omitempty" jsonschema:"bytes from offset on that are no longer kept, and were skipped"`
}

func (o *Output) text() string {
	if o.State != "done" {
		return o.State + "; run=" + o.Run
	}
	head := fmt.Sprintf("%s; from byte %d of %d", o.Verdict, o.Offset, o.Bytes)
	if o.Missing > 0 {
		head += fmt.Sprintf("; %d bytes were not kept", o.Missing)
	}
	if o.Next > 0 {
		head += fmt.Sprintf("; go on with offset=%d", o.Next)
	}
	return head + "\n" + o.Text
}

// Bounds of get_output and files_read.
const (
	defaultLength = 8000
	mostLength    = 100_000
	leastLength   = 16 // a character is shorter
)

func lengthOf(n int) int { return min(max(cmp.Or(n, defaultLength), leastLength), mostLength) }

func (s *Server) getOutput(ctx context.Context, req *mcp.CallToolRequest, in GetOutput) (*Output, error) {
	wait, err := seconds("wait", min(in.Wait, mostWait))
	if err != nil {
		return nil, err
	}
	info, err := s.find(ctx, in.Run, wait)
	if err != nil {
		return nil, err
	}
	out := &Output{Run: in.Run, State: string(info.State), Verdict: info.Verdict, Offset: in.Offset}
	if info.Error != nil && info.Verdict == "" { // a run that was cancelled before it began has a verdict
		return nil, &client.Problem{Problem: *info.Error}
	}
	if len(info.Result) == 0 {
		return out, nil
	}
	r, err := wire.DecodeResult(info.Result)
	if err != nil {
		return nil, err
	}
	stream := &r.Stdout
	if in.Stream == "stderr" {
		stream = &r.Stderr
	}
	data, next, missing := keptOutput{stream}.read(in.Offset, lengthOf(in.Length))
	out.Bytes, out.Missing, out.Text = stream.Total, missing, printable(string(data))
	if in.Encoding == "base64" {
		out.Text = base64.StdEncoding.EncodeToString(data)
	}
	if next < stream.Total {
		out.Next = next
	}
	return out, nil
}

// find returns the run or the cell of a handle, and waits for the end of a run.
func (s *Server) find(ctx context.Context, handle string, wait time.Duration) (*wire.RunInfo, error) {
	if id, cell, ok := strings.Cut(handle, "/"); ok {
		return s.client(ctx).Cell(ctx, id, cell)
	}
	return s.client(ctx).Wait(ctx, handle, wait)
}

// Handle is the input of tools about one run.
type Handle struct {
	Run string `json:"run" jsonschema:"handle of a run, or SESSION/N of a cell"`
}

// Done says that a tool has done its work.
type Done struct {
	Done string `json:"done"`
}

func (d *Done) text() string { return d.Done }

func (s *Server) cancelRun(ctx context.Context, _ *mcp.CallToolRequest, in Handle) (*Done, error) {
	info, err := s.find(ctx, in.Run, 0)
	switch {
	case err != nil:
		return nil, err
	case info.State.Over():
		return &Done{"the run was over: " + cmp.Or(info.Verdict, string(info.State))}, nil
	}
	if id, _, ok := strings.Cut(in.Run, "/"); ok {
		own, err := s.client(ctx).Sessions().Get(ctx, id)
		if err == nil {
			err = own.Interrupt()
		}
		return &Done{"interrupted"}, err
	}
	return &Done{"cancelled"}, s.client(ctx).Cancel(ctx, in.Run)
}

// errNeither is the error of a call that names nothing to explain.
var errNeither = errors.New("run: give the handle of a run, or language and error")

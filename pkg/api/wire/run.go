package wire

import (
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

// Run is a program to run and what it may use: the body of POST /v1/run and POST /v1/runs. Only code, files or a template must be given;
// what is left out is the default. Its tags are read by [Decode] and by the server's OpenAPI.
type Run struct {
	Language string `json:"language,omitempty" doc:"Language by name or alias; found out from file names, a shebang or project files without it." example:"python"`
	Code     string `json:"code,omitempty" doc:"The program, in one file." example:"print('hello')"`
	Name     string `json:"name,omitempty" doc:"What that file is called."`
	Files    []File `json:"files,omitempty" doc:"The program, as a tree of files; not together with code."`
	Entry    string `json:"entry,omitempty" doc:"The file of the tree that starts the program."`

	Template string         `json:"template,omitempty" doc:"A built-in template to fill in; the code is its variable code."`
	Vars     map[string]any `json:"vars,omitempty" doc:"Variables of the template."`
	Image    string         `json:"image,omitempty" doc:"Reference of an image to run on, in place of the server's own programs."`

	Args          []string          `json:"args,omitempty" doc:"Arguments of the program."`
	Stdin         string            `json:"stdin,omitempty" doc:"Its standard input."`
	StdinEncoding string            `json:"stdin_encoding,omitempty" enum:"text,base64" doc:"How stdin is written here."`
	Env           map[string]string `json:"env,omitempty" doc:"Variables, on top of a clean environment."`

	Timeout        Duration `json:"timeout,omitempty" doc:"Wall time of the run." example:"\"10s\""`
	Grace          Duration `json:"grace,omitempty" doc:"Time between SIGTERM and SIGKILL."`
	CPUs           Cores    `json:"cpus,omitempty" doc:"Cores, as a quota."`
	CPUTime        Duration `json:"cpu_time,omitempty" doc:"CPU time of all processes together."`
	Memory         Size     `json:"memory,omitempty" doc:"Memory; swap is off." example:"\"256MiB\""`
	Disk           Size     `json:"disk,omitempty" doc:"Size of /workspace, /tmp and $HOME together."`
	Inodes         Count    `json:"inodes,omitempty" doc:"Number of files there."`
	Pids           Count    `json:"pids,omitempty" doc:"Number of processes and threads."`
	OpenFiles      Count    `json:"open_files,omitempty" doc:"Number of open files per process."`
	OutputLimit    Size     `json:"output_limit,omitempty" doc:"Output kept per stream for the result, head and tail."`
	KillOnOutput   bool     `json:"kill_on_output,omitempty" doc:"End the program when it prints more than that."`
	CompileTimeout Duration `json:"compile_timeout,omitempty" doc:"Wall time of compiling."`
	CompileMemory  Size     `json:"compile_memory,omitempty" doc:"Memory of compiling."`

	In           []File            `json:"in,omitempty" doc:"Further files in the working directory, which are not part of the program."`
	Out          []string          `json:"out,omitempty" doc:"Patterns of files to bring back, such as *.png or results/**."`
	Network      string            `json:"network,omitempty" enum:"none,localhost" doc:"Network mode."`
	Workdir      string            `json:"workdir,omitempty" doc:"Working directory inside."`
	Scratch      string            `json:"scratch,omitempty" enum:"auto,disk,memory" doc:"Kind of scratch disk."`
	WritableRoot bool              `json:"writable_root,omitempty" doc:"Let it write anywhere on an image; changes are thrown away. Refused unless the operator allows it."`
	Hostname     string            `json:"hostname,omitempty" doc:"Host name inside."`
	UID          Count             `json:"uid,omitempty" doc:"User id inside; never root."`
	GID          Count             `json:"gid,omitempty" doc:"Group id inside; never root."`
	Require      string            `json:"require,omitempty" enum:"process,namespace,container,gvisor,microvm" doc:"Least tier to accept; not below the server's own floor."`
	Strict       bool              `json:"strict,omitempty" doc:"Refuse unless no control at all is missing."`
	Labels       map[string]string `json:"labels,omitempty" doc:"Labels of the sandbox, for whoever looks at it."`

	NoCache       bool     `json:"no_cache,omitempty" doc:"Compile even what was compiled before, and keep nothing."`
	Commands      []string `json:"commands,omitempty" doc:"shell: the only programs there are."`
	ForbidImports []string `json:"forbid_imports,omitempty" doc:"python: refuse a program that imports these; a lint, not a wall."`
	Release       bool     `json:"release,omitempty" doc:"rust: optimise."`
	Edition       string   `json:"edition,omitempty" doc:"rust: year of the edition."`
	Test          bool     `json:"test,omitempty" doc:"go, rust: run the tests, even if there is a main."`
	Setup         []string `json:"setup,omitempty" doc:"sql, postgres: which of files and in to run first."`

	TTY         *TTY `json:"tty,omitempty" doc:"Give it a terminal of this size."`
	Interactive bool `json:"interactive,omitempty" doc:"POST /v1/runs: standard input stays open for what WebSocket clients send."`
	Receipt     bool `json:"receipt,omitempty" doc:"Ask for a signed receipt, where the server gives any."`
	// Webhook is told of the end of an asynchronous run.
	Webhook *Webhook `json:"webhook,omitempty" doc:"POST /v1/runs: address that is told when the run is over, where the server does so."`

	// What is the operator's to give (D12). It is refused unless the server's configuration names it.
	Volumes         []string `json:"volumes,omitempty" doc:"host:dest[:ro|rw] of the server's own paths. Refused unless the operator allows it."`
	Workspace       string   `json:"workspace,omitempty" doc:"Name of a workspace of the server to have as /workspace. Refused unless the operator allows it."`
	WorkspaceCap    Size     `json:"workspace_cap,omitempty" doc:"Most that it may hold."`
	WorkspaceInodes Count    `json:"workspace_inodes,omitempty" doc:"Number of files it may hold."`
	Backend         string   `json:"backend,omitempty" doc:"Name of the backend. Refused unless the operator allows it."`
	Runtime         string   `json:"runtime,omitempty" doc:"Runtime of the backend. Refused unless the operator allows it."`
	PassEnv         []string `json:"pass_env,omitempty" doc:"Names of the server's own variables to pass on. Refused unless the operator allows them."`
}

// Webhook is an address that is sent what became of a run.
type Webhook struct {
	URL    string `json:"url" doc:"Where it is sent: https, and a public address unless the operator allows another."`
	Secret string `json:"secret,omitempty" doc:"Signs what is sent (HMAC-SHA256, as Standard Webhooks): 16 to 512 bytes, or whsec_ and base64."`
}

// TTY is the size of a terminal.
type TTY struct {
	Rows uint16 `json:"rows" minimum:"1" doc:"Lines."`
	Cols uint16 `json:"cols" minimum:"1" doc:"Columns."`
}

// File is one file: with its content, or one that was uploaded before.
type File struct {
	Path     string `json:"path" doc:"Relative, with slashes."`
	Content  string `json:"content,omitempty" doc:"What is in it."`
	Encoding string `json:"encoding,omitempty" enum:"text,base64" doc:"How content is written here."`
	Mode     string `json:"mode,omitempty" doc:"Permission bits, octal." example:"0755"`
	ID       string `json:"id,omitempty" doc:"In place of content: the id of a file uploaded by PUT /v1/files/{id}."`
}

// NewFile writes text as it is, and everything else as base64.
func NewFile(name string, mode fs.FileMode, data []byte) File {
	f := File{Path: name}
	f.Content, f.Encoding = sandbox.EncodeText(data)
	if mode != 0 {
		f.Mode = fmt.Sprintf("%04o", mode.Perm())
	}
	return f
}

// Uploads finds files that were uploaded before, by their ids.
type Uploads func(id string) (open func() (io.ReadCloser, error), err error)

// Request is the run as the engine takes it. What only a server can give (uploads, workspaces, backends) is not in it.
func (r *Run) Request() (executor.Request, error) { return r.RequestWith(nil) }

// RequestWith is Request on a server that has uploads.
func (r *Run) RequestWith(uploads Uploads) (executor.Request, error) {
	req := executor.Request{
		Language: r.Language, Code: r.Code, Name: r.Name, Entry: r.Entry, Image: r.Image, Args: r.Args, Env: r.Env, NoCache: r.NoCache,
		Limits: sandbox.Limits{
			Wall: time.Duration(r.Timeout), Grace: time.Duration(r.Grace), CPUs: float64(r.CPUs), CPUTime: time.Duration(r.CPUTime),
			Memory: sandbox.Size(r.Memory), Disk: sandbox.Size(r.Disk), Inodes: int(r.Inodes), Processes: int(r.Pids),
			OpenFiles: int(r.OpenFiles), Output: sandbox.Size(r.OutputLimit),
		},
		CompileLimits: sandbox.Limits{Wall: time.Duration(r.CompileTimeout), Memory: sandbox.Size(r.CompileMemory)},
		Policy: executor.Policy{
			Workdir: r.Workdir, WritableRoot: r.WritableRoot, Hostname: r.Hostname, Strict: r.Strict,
			KillOnOutput: r.KillOnOutput, Labels: r.Labels,
		},
		Options: executor.LanguageOptions{
			Commands: r.Commands, ForbidImports: r.ForbidImports, Release: r.Release, Edition: r.Edition, Test: r.Test, Setup: r.Setup,
		},
	}
	var err error
	if req.Files, err = files("files", r.Files, uploads); err != nil {
		return req, err
	}
	if req.Inputs, err = files("in", r.In, uploads); err != nil {
		return req, err
	}
	if err := r.policy(&req); err != nil {
		return req, err
	}
	for _, p := range r.Out {
		if err := checkPattern(p); err != nil {
			return req, err
		}
	}
	req.Outputs.Patterns = r.Out
	if req.Stdin, err = r.stdin(); err != nil {
		return req, err
	}
	if r.TTY != nil {
		if r.TTY.Rows == 0 || r.TTY.Cols == 0 {
			return req, sandbox.Invalid("tty", "a terminal of %d × %d can not show anything", r.TTY.Rows, r.TTY.Cols)
		}
		req.TTY = &sandbox.TTY{Rows: r.TTY.Rows, Cols: r.TTY.Cols}
	}
	return req, r.template(&req)
}

// policy reads what has a closed set of words.
func (r *Run) policy(req *executor.Request) (err error) {
	p := &req.Policy
	if r.Network != "" {
		if p.Network, err = sandbox.ParseNetwork(r.Network); err != nil {
			return err
		}
	}
	if r.Scratch != "" {
		if p.Scratch, err = sandbox.ParseScratch(r.Scratch); err != nil {
			return err
		}
	}
	if r.Require != "" {
		if p.Require, err = sandbox.ParseTier(r.Require); err != nil {
			return err
		}
	}
	for _, text := range r.Volumes {
		v, err := sandbox.ParseVolume(text)
		if err != nil {
			return err
		}
		p.Volumes = append(p.Volumes, v)
	}
	if r.UID != 0 || r.GID != 0 { // one alone leaves the other at its default; a zero would mean root
		p.User = sandbox.DefaultUser
		if r.UID != 0 {
			p.User.UID = int(r.UID)
		}
		if r.GID != 0 {
			p.User.GID = int(r.GID)
		}
	}
	return nil
}

// stdin is nil where nothing was given: an empty input.
func (r *Run) stdin() (io.Reader, error) {
	switch r.StdinEncoding {
	case "", "text":
		if r.Stdin == "" {
			return nil, nil
		}
		return strings.NewReader(r.Stdin), nil
	case "base64":
		data, err := base64.StdEncoding.DecodeString(r.Stdin)
		if err != nil {
			return nil, sandbox.Invalid("stdin", "%w", err)
		}
		return strings.NewReader(string(data)), nil
	}
	return nil, sandbox.Invalid("stdin_encoding", "unknown encoding %.40q; one of text, base64", r.StdinEncoding)
}

// template looks up the template that is to be filled in. Only those that come with the program: a client's own are filled in by the client,
// and the server's are nobody's business.
func (r *Run) template(req *executor.Request) error {
	if r.Template == "" {
		if len(r.Vars) > 0 {
			return sandbox.Invalid("vars", "they are of no use without a template")
		}
		return nil
	}
	t, err := template.Open().Get(r.Template, r.Language)
	if err != nil {
		return err
	}
	req.Template, req.Variables = t, r.Vars
	return nil
}

func files(field string, given []File, uploads Uploads) ([]executor.File, error) {
	if len(given) == 0 {
		return nil, nil
	}
	made := make([]executor.File, len(given))
	for i := range given {
		f := &given[i]
		made[i].Path = f.Path
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := f.content(at, &made[i], uploads); err != nil {
			return nil, err
		}
		if f.Mode == "" {
			continue
		}
		mode, err := strconv.ParseUint(f.Mode, 8, 32)
		if err != nil || fs.FileMode(mode)&^fs.ModePerm != 0 {
			return nil, sandbox.Invalid(at+".mode", "%.40q is not octal permission bits, such as 0755", f.Mode)
		}
		made[i].Mode = fs.FileMode(mode)
	}
	return made, nil
}

func (f *File) content(at string, into *executor.File, uploads Uploads) (err error) {
	switch {
	case f.ID != "" && (f.Content != "" || f.Encoding != ""):
		return sandbox.Invalid(at, "both content and the id of an uploaded file are given")
	case f.ID != "" && uploads == nil:
		return sandbox.Invalid(at+".id", "there are no uploaded files here")
	case f.ID != "":
		if into.Open, err = uploads(f.ID); err != nil {
			return &sandbox.Error{Op: at + ".id", Kind: sandbox.ErrInvalid, Err: err}
		}
		return nil
	}
	switch f.Encoding {
	case "", "text":
		into.Data = []byte(f.Content)
	case "base64":
		if into.Data, err = base64.StdEncoding.DecodeString(f.Content); err != nil {
			return sandbox.Invalid(at+".content", "%w", err)
		}
	default:
		return sandbox.Invalid(at+".encoding", "unknown encoding %.40q; one of text, base64", f.Encoding)
	}
	return nil
}

// checkPattern refuses a pattern that the engine would only refuse once the program has run.
func checkPattern(pattern string) error {
	inside := pattern
	if !path.IsAbs(inside) {
		inside = path.Join(sandbox.WorkspaceDir, inside)
	}
	if pattern == "" || strings.Contains("/"+pattern+"/", "/../") {
		return sandbox.Invalid("out", "%.80q names no files below %s; write it like *.png or results/**", pattern, strings.Join(sandbox.ScratchDirs(), ", "))
	}
	return sandbox.ValidatePattern(inside)
}

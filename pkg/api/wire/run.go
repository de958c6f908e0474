package wire

import (
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

// Run is a program to run and what it may use: the body of POST /v1/run and POST /v1/runs. Code, files or a template is required;
// an absent field has its default. [Decode] and the server's OpenAPI document read its tags and [Run.Settings].
type Run struct {
	Language string `json:"language,omitempty" doc:"Name or alias. Default: detected from names, shebang, project files." example:"python"`
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

	// The settings have the names and forms of their tables: sandbox.AllLimits and executor.Fields. See [Run.Settings].
	Limits        sandbox.Limits           `json:"-"`
	CompileLimits sandbox.Limits           `json:"-"`
	Policy        executor.Policy          `json:"-"`
	Options       executor.LanguageOptions `json:"-"`

	In      []File   `json:"in,omitempty" doc:"Further files in the working directory, which are not part of the program."`
	Out     []string `json:"out,omitempty" doc:"Patterns of files to bring back, such as *.png or results/**."`
	NoCache bool     `json:"no_cache,omitempty" doc:"Compile even what was compiled before, and keep nothing."`

	TTY         *TTY `json:"tty,omitempty" doc:"Give it a terminal of this size."`
	Interactive bool `json:"interactive,omitempty" doc:"POST /v1/runs: standard input stays open for what WebSocket clients send."`
	Receipt     bool `json:"receipt,omitempty" doc:"Ask for a signed receipt, where the server gives any."`
	// Webhook receives a request at the end of an asynchronous run.
	Webhook *Webhook `json:"webhook,omitempty" doc:"POST /v1/runs: address that is told when the run is over, where the server does so."`

	// The operator decides about these fields: the server refuses each of them unless its configuration allows it.
	Workspace       string   `json:"workspace,omitempty" doc:"Workspace of the server, at /workspace. Refused unless the operator allows it."`
	WorkspaceCap    Size     `json:"workspace_cap,omitempty" doc:"Most that it may hold."`
	WorkspaceInodes Count    `json:"workspace_inodes,omitempty" doc:"Number of files it may hold."`
	Backend         string   `json:"backend,omitempty" doc:"Name of the backend. Refused unless the operator allows it."`
	Runtime         string   `json:"runtime,omitempty" doc:"Runtime of the backend. Refused unless the operator allows it."`
	PassEnv         []string `json:"pass_env,omitempty" doc:"Variables of the server to pass on. Refused unless the operator allows them."`
}

// Webhook is an address that receives the end of a run.
type Webhook struct {
	URL    string `json:"url" doc:"Where it is sent: https, and a public address unless the operator allows another."`
	Secret string `json:"secret,omitempty" doc:"Key of the signature (HMAC-SHA256, Standard Webhooks): 16 to 512 bytes, or whsec_ and base64."`
}

// TTY is the size of a terminal.
type TTY struct {
	Rows uint16 `json:"rows" minimum:"1" doc:"Lines."`
	Cols uint16 `json:"cols" minimum:"1" doc:"Columns."`
}

// File is one file: with its content, or with the id of an earlier upload; or a symbolic link.
type File struct {
	Path     string `json:"path" doc:"Relative, with slashes."`
	Content  string `json:"content,omitempty" doc:"What is in it."`
	Encoding string `json:"encoding,omitempty" enum:"text,base64" doc:"How content is written here."`
	Mode     string `json:"mode,omitempty" doc:"Permission bits, octal." example:"0755"`
	ID       string `json:"id,omitempty" doc:"In place of content: the id of a file uploaded by PUT /v1/files/{id}."`
	Link     string `json:"link,omitempty" doc:"In place of content: the target of a symbolic link, relative and inside the directory."`
}

// NewFile returns a file with UTF-8 content as text, and with other content as base64.
func NewFile(name string, mode fs.FileMode, data []byte) File {
	f := File{Path: name}
	f.Content, f.Encoding = sandbox.EncodeText(data)
	if mode != 0 {
		f.Mode = fmt.Sprintf("%04o", mode.Perm())
	}
	return f
}

// Uploads opens an uploaded file by its id.
type Uploads func(id string) (open func() (io.ReadCloser, error), err error)

// Request returns the run as a request to the executor. It leaves out what only a server can give: uploads, workspaces, backends.
func (r *Run) Request() (executor.Request, error) { return r.RequestWith(nil) }

// RequestWith is Request for a server with uploads.
func (r *Run) RequestWith(uploads Uploads) (executor.Request, error) {
	req := executor.Request{
		Language: r.Language, Code: r.Code, Name: r.Name, Entry: r.Entry, Image: r.Image, Args: r.Args, Env: r.Env, NoCache: r.NoCache,
		Limits: r.Limits, CompileLimits: r.CompileLimits, Policy: r.Policy, Options: r.Options,
	}
	var err error
	if req.Files, err = files("files", r.Files, uploads); err != nil {
		return req, err
	}
	if req.Inputs, err = files("in", r.In, uploads); err != nil {
		return req, err
	}
	if err := checkWords(&req.Policy); err != nil {
		return req, err
	}
	for _, p := range r.Out {
		if err := executor.ValidateOutput(p); err != nil {
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

// checkWords refuses a word that is not in its closed set.
func checkWords(p *executor.Policy) error {
	if err := p.Network.Validate(); err != nil {
		return sandbox.Invalid("network", "%w", err)
	}
	if err := p.CompileNetwork.Validate(); err != nil {
		return sandbox.Invalid("compile-network", "%w", err)
	}
	if _, err := sandbox.ParseScratch(string(p.Scratch)); p.Scratch != "" && err != nil {
		return err
	}
	if _, err := sandbox.ParseTier(string(p.Require)); p.Require != "" && err != nil {
		return err
	}
	return nil
}

// stdin returns nil if the request has no standard input: the program then reads an empty one.
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
	return nil, sandbox.Invalid("stdin_encoding", "unknown encoding %.40q; use one of text, base64", r.StdinEncoding)
}

// template finds the template to fill in, among the built-in ones only: the client fills in its own templates, and the templates of
// the server's user are not for clients.
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
	case f.Link != "" && (f.ID != "" || f.Content != "" || f.Encoding != ""):
		return sandbox.Invalid(at, "both content and the target of a link are given")
	case f.Link != "":
		into.Link = f.Link
		return nil
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
		return sandbox.Invalid(at+".encoding", "unknown encoding %.40q; use one of text, base64", f.Encoding)
	}
	return nil
}

package executor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Options configure an Executor. The zero value is valid: every request searches for toolchains, and nothing is cached.
type Options struct {
	// Toolchains finds the programs of languages; nil is a finder without a store.
	Toolchains *toolchain.Finder
	// Cache keeps the products of compilers; nil keeps nothing.
	Cache *Cache
	// SharedCache lets requests with different keys (Asker.Key) use each other's compiled programs. A client can then find out by
	// timing what other clients have compiled.
	SharedCache bool
	// OwnKey is the Asker.Key of this process's own user, which shares compiled programs with requests that have no key.
	OwnKey string
	// Kit is the path of sandbox-kit on this machine, for languages that need it.
	Kit string
	// WarmDir is the directory of prepared files, such as Go's compiled standard library; by default a directory of the user's
	// cache.
	WarmDir string
	// OnPrepare is called before a preparation that takes long; it returns a function that is called after it.
	OnPrepare func(what string) (done func())
	// OnPreparationFailure is called once for each failed preparation: programs then start without the prepared files, and slower.
	OnPreparationFailure func(PreparationFailure)
	// Audit is the log of all runs, and EntryPoint the way in which they are requested; a nil Audit writes nothing.
	Audit      *audit.Log
	EntryPoint audit.EntryPoint
	// Languages are additional languages, as a languages.yaml defines them.
	Languages []*Language
	// Images finds Request.Image, and the image of a language without a toolchain on this machine; nil has no images.
	Images Images
	// Prestart lists in every sandbox.Spec the processes that will start in it (Ahead), for a manager whose backend has a pool.
	Prestart bool
	// Layers keeps installed packages, and Registries serves package registries to installations; without them no packages are installed.
	Layers     *deps.Store
	Registries deps.Registries
	// RegistriesFile is the configuration of Registries: another one is another set of layers.
	RegistriesFile string
	// InstallFrom are the registries from which requests may install; nil: all. InstallDisk is the disk of one installation, and Installations
	// how many there are at a time; 0: 4 GiB, and any number.
	InstallFrom   []string
	InstallDisk   sandbox.Size
	Installations int
	// DefaultImages are the images of languages, by name. They take precedence over the built-in ones; "none" is no image.
	DefaultImages map[string]string
}

// Executor runs programs in sandboxes of one Manager. Its methods may be called concurrently.
type Executor struct {
	manager   *sandbox.Manager
	opts      Options
	languages []*Language
	prepared  prepared.Store // files that toolchains prepare once
	installs  chan struct{}  // a place for each installation; nil: any number
}

// New returns an executor that uses a manager. The caller closes the manager.
func New(m *sandbox.Manager, o Options) *Executor {
	if o.Toolchains == nil {
		o.Toolchains = &toolchain.Finder{}
	}
	e := &Executor{
		manager: m, opts: o, languages: append(slices.Clip(o.Languages), builtin()...),
		prepared: prepared.Store{Root: o.WarmDir, OnFailure: o.OnPreparationFailure},
	}
	if o.Installations > 0 {
		e.installs = make(chan struct{}, o.Installations)
	}
	return e
}

// Plan returns what Execute would do, without doing it.
func (e *Executor) Plan(ctx context.Context, req Request) (*Plan, error) {
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		return nil, err
	}
	release()
	return plan, nil
}

// plan makes a plan, and leases its image until the caller calls release.
func (e *Executor) plan(ctx context.Context, req *Request) (_ *Plan, release func(), err error) {
	j, err := e.newJob(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			j.Image.Close()
		}
	}()
	if !req.session {
		if err := j.checkBlank(); err != nil {
			return nil, nil, err
		}
	}
	if err := e.chooseRoot(ctx, j); err != nil {
		return nil, nil, err
	}
	j.Kit, j.KitID, j.WarmDir = e.opts.Kit, stampOf(e.opts.Kit), e.prepared.Dir()
	if j.Language.Inspect != nil {
		if err := j.Language.Inspect(ctx, &j.Job); err != nil {
			return nil, nil, err
		}
	}
	var lease *deps.Lease
	var missing *installation
	if j.Layer = req.layer; j.Layer == nil {
		if lease, missing, err = e.findPackages(j); err != nil {
			return nil, nil, err
		}
	}
	if lease != nil {
		j.Layer = &lease.Layer
	}
	release = func() {
		j.Image.Close()
		if lease != nil {
			lease.Release()
		}
	}
	plan, err := newPlan(j, e.manager.Machine())
	if err != nil {
		if lease != nil {
			lease.Release()
		}
		return nil, nil, err
	}
	if !e.opts.SharedCache && req.Asker.Key != e.opts.OwnKey {
		plan.tenant = req.Asker.Key
	}
	if j.Language.Packages != nil && j.Image == nil && !asksForPackages(&req.Options) {
		plan.declared = j.declaredPackages
	}
	if plan.install = missing; missing != nil {
		plan.Notes = append(plan.Notes, "packages are installed first: "+language.Listed(missing.packages.Requirements))
	}
	return plan, release, nil
}

// stampOf distinguishes a file from a later one at the same path.
func stampOf(file string) string {
	st, err := os.Stat(file)
	if err != nil {
		return "" // the mount reports the error
	}
	return fmt.Sprintf("%d %d", st.Size(), st.ModTime().UnixNano())
}

// newJob finds the language, the files and the entry of a request.
func (e *Executor) newJob(req *Request) (*job, error) {
	if err := e.Fill(req); err != nil {
		return nil, err
	}
	j := &job{req: req, Job: language.Job{
		Request: language.Request{
			Language: req.Language, Code: req.Code, Name: req.Name, Entry: req.Entry,
			Args: req.Args, Env: req.Env, Options: req.Options, Tests: req.Tests, Inputs: req.Inputs,
		},
		Files: append([]File(nil), req.Files...), HostDir: req.HostDir, Manager: e.manager, Store: &e.prepared, Prestart: e.opts.Prestart,
	}}
	if req.Options.Module != "" {
		req.Language = cmp.Or(req.Language, "python")
	}
	switch {
	case req.session && req.Language == "":
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "lang", "--lang python", "a session needs a language")
	case req.session:
	case req.Options.Module == "" && req.Code == "" && len(req.Files) == 0: // a module may be one of the toolchain's own
		return nil, &sandbox.Error{Op: "code", Kind: sandbox.ErrInvalid, Err: errors.New("there is no code"), Hint: "give code or files"}
	case req.Code != "" && len(req.Files) > 0:
		return nil, sandbox.Invalid("code", "both code and files are given; leave out one of them")
	}
	var err error
	if req.Language != "" {
		if j.Language, err = e.lookUp(req.Language); err != nil {
			return nil, err
		}
	}
	if req.Code != "" {
		code := File{Path: req.Name, Data: []byte(req.Code)}
		if j.Language == nil {
			code.Path = cmp.Or(code.Path, "code")
			if j.Language, err = e.detect([]File{code}, code.Path, req.Options); err != nil {
				return nil, err
			}
		}
		if req.Name == "" {
			code.Path = j.Language.SourceOf(req.Language)
		}
		j.Files = []File{code}
	}
	if err := language.CheckNames("files", j.Files); err != nil {
		return nil, err
	}
	if err := language.CheckNames("in", req.Inputs); err != nil {
		return nil, err
	}
	if j.Language == nil {
		if j.Language, err = e.detect(j.Files, req.Entry, req.Options); err != nil {
			return nil, err
		}
	}
	asked := req.Options
	asked.Test = asked.Test && req.Tests == nil // the framework is known, and its language: bats is no option of shells
	if err := checkOptions(j.Language, asked); err != nil {
		return nil, err
	}
	if req.session {
		return j, nil
	}
	// Setup scripts can not be the entry.
	candidates := slices.DeleteFunc(slices.Clone(j.Files), func(f File) bool { return slices.Contains(req.Options.Setup, f.Path) })
	j.Entry, err = findEntry(j.Language, candidates, req.Entry, &req.Options)
	return j, err
}

// checkBlank refuses a program without a character of code, as the command line does for a file and for standard input. An entry that is a
// directory is blank if all its files of the language are.
func (j *job) checkBlank() error {
	blank, some := "", false
	for _, f := range j.Files {
		if f.Path != j.Entry && (language.Find(j.Files, j.Entry) != nil || !j.Language.Owns(f.Path)) {
			continue
		}
		text, err := f.Content()
		if err != nil {
			return err
		}
		some = some || len(bytes.TrimSpace(text)) > 0
		blank = cmp.Or(blank, f.Path)
	}
	if some || blank == "" {
		return nil
	}
	op := "code"
	if j.req.Code == "" {
		op = "read " + blank
	}
	err := errors.New("it is empty: there is no code to run")
	return &sandbox.Error{Op: op, Kind: sandbox.ErrInvalid, Err: err, Hint: "give code or files"}
}

// Execute runs a program to its end and returns the result. The error reports an invalid request or a failure of the sandbox. A
// program that does not compile, crashes, loops or is killed has a Result. If ctx is cancelled, Execute ends the program and
// returns a Result.
func (e *Executor) Execute(ctx context.Context, req Request) (*Result, error) {
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		return nil, err
	}
	defer release() // after the sandbox is deleted
	if req.OnPlan != nil {
		req.OnPlan(plan)
	}
	x := &execution{e: e, req: &req, plan: plan}
	if (e.opts.Audit != nil || req.Evidence) && req.Stdin != nil {
		x.input = newInputDigest(req.Stdin)
		req.Stdin = x.input
	}
	result, err := x.conclude(x.do(ctx))
	if err != nil {
		x.out.Close()
	}
	return result, err
}

// Event is an event of a running program, or at the end its result.
type Event struct {
	sandbox.Event
	Result *Result
}

// MarshalJSON writes one line of a stream.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		sandbox.EventDocument
		Result *Result `json:"result,omitempty"`
	}{e.Document(), e.Result})
}

// EventResult is the kind of the last event of a stream.
const EventResult sandbox.EventKind = "result"

// Stream runs a program and yields its events as they happen; the last event has the result. A caller that leaves the loop early
// cancels the program.
func (e *Executor) Stream(ctx context.Context, req Request) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events, over := make(chan Event), make(chan struct{})
		seen := req.OnEvent
		req.OnEvent = func(ev sandbox.Event) {
			if seen != nil {
				seen(ev)
			}
			ev.Data = append([]byte(nil), ev.Data...) // the caller may keep it
			select {
			case events <- Event{Event: ev}:
			case <-ctx.Done():
			case <-over: // events may arrive after the run was cancelled
			}
		}
		var (
			result *Result
			err    error
			last   uint64
		)
		go func() {
			defer close(over)
			result, err = e.Execute(ctx, req)
		}()
		for running := true; running; {
			select {
			case ev := <-events:
				last = ev.Seq
				if !yield(ev, nil) {
					cancel()
					<-over
					return
				}
			case <-over:
				running = false
			}
		}
		if err != nil {
			yield(Event{}, err)
			return
		}
		yield(Event{Event: sandbox.Event{Seq: last + 1, Time: time.Now(), Kind: EventResult}, Result: result}, nil)
	}
}

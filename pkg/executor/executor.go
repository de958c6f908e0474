package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Options configure an Executor. The zero value serves: toolchains are looked for anew, and nothing is cached.
type Options struct {
	// Toolchains finds the languages' programs; nil is a finder without a memory.
	Toolchains *toolchain.Finder
	// Cache keeps what compilers made; nil keeps nothing.
	Cache *Cache
	// SharedCache lets requests of different keys (Asker.Key) use each other's compiled programs. One key could then learn by the clock what
	// another has had compiled.
	SharedCache bool
	// OwnKey is the Asker.Key of this process's own user, which shares compiled programs with requests that have no key.
	OwnKey string
	// Kit is the path of our own tools on this machine, for languages that need them.
	Kit string
	// WarmDir is where toolchains keep what they prepare once, such as Go's standard library compiled; by default a directory of
	// the user's cache.
	WarmDir string
	// OnPrepare is called before a preparation that takes a while, and done after it.
	OnPrepare func(what string) (done func())
	// OnPreparationFailure is called once for each attempt to prepare something that failed: programs start without it, and later.
	OnPreparationFailure func(PreparationFailure)
	// Audit is the log that every run is written to, and EntryPoint the way by which its runs are requested; nil writes nothing.
	Audit      *audit.Log
	EntryPoint audit.EntryPoint
	// Languages are further ones, as a languages.yaml defines them.
	Languages []*Language
	// Images is where Request.Image is looked up, and the image of a language that has no toolchain here; nil has none.
	Images Images
	// Prestart says of every sandbox what will be started in it (sandbox.Spec.Ahead): for a manager whose backend has sandboxes ready.
	Prestart bool
	// DefaultImages are the images of languages, by name, before those that are built in; "none" is no image.
	DefaultImages map[string]string
}

// Executor runs programs in sandboxes of one Manager.
type Executor struct {
	manager   *sandbox.Manager
	opts      Options
	languages []*Language
	prepared  prepared.Store // what toolchains prepare once
}

// New makes an executor over a manager, which it does not own.
func New(m *sandbox.Manager, o Options) *Executor {
	if o.Toolchains == nil {
		o.Toolchains = &toolchain.Finder{}
	}
	return &Executor{
		manager: m, opts: o, languages: append(slices.Clip(o.Languages), builtin()...),
		prepared: prepared.Store{Root: o.WarmDir, OnFailure: o.OnPreparationFailure},
	}
}

// Plan says what Execute would do, without doing it.
func (e *Executor) Plan(ctx context.Context, req Request) (*Plan, error) {
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		return nil, err
	}
	release()
	return plan, nil
}

// plan makes a plan, and holds the image it stands on until release is called.
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
	if err := e.chooseRoot(ctx, j); err != nil {
		return nil, nil, err
	}
	j.Kit, j.KitID, j.WarmDir = e.opts.Kit, stampOf(e.opts.Kit), e.prepared.Dir()
	if j.Language.Inspect != nil {
		if err := j.Language.Inspect(ctx, &j.Job); err != nil {
			return nil, nil, err
		}
	}
	plan, err := newPlan(j, e.manager.Machine())
	if err == nil && !e.opts.SharedCache && req.Asker.Key != e.opts.OwnKey {
		plan.tenant = req.Asker.Key
	}
	return plan, j.Image.Close, err
}

// stampOf tells a file from the one that takes its place.
func stampOf(file string) string {
	st, err := os.Stat(file)
	if err != nil {
		return "" // mounting it reports that
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
			Args: req.Args, Env: req.Env, Options: req.Options, Inputs: req.Inputs,
		},
		Files: append([]File(nil), req.Files...), Manager: e.manager, Store: &e.prepared, Prestart: e.opts.Prestart,
	}}
	switch {
	case req.Code == "" && len(req.Files) == 0:
		return nil, sandbox.Invalid("code", "there is no code")
	case req.Code != "" && len(req.Files) > 0:
		return nil, sandbox.Invalid("code", "both code and files are given")
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
			if j.Language, err = e.detect([]File{code}, code.Path); err != nil {
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
		if j.Language, err = e.detect(j.Files, req.Entry); err != nil {
			return nil, err
		}
	}
	if err := checkOptions(j.Language, req.Options); err != nil {
		return nil, err
	}
	// Setup scripts are no candidates for the entry.
	candidates := slices.DeleteFunc(slices.Clone(j.Files), func(f File) bool { return slices.Contains(req.Options.Setup, f.Path) })
	j.Entry, err = findEntry(j.Language, candidates, req.Entry)
	return j, err
}

// Execute runs a program to its end and says what happened. The error is for a request that is wrong and for our own
// failures; a program that does not compile, crashes, loops or is killed is a Result. Cancelling ctx ends the program
// and still gives a Result.
func (e *Executor) Execute(ctx context.Context, req Request) (*Result, error) {
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		return nil, err
	}
	defer release() // the sandbox is gone by then
	if req.OnPlan != nil {
		req.OnPlan(plan)
	}
	x := &execution{e: e, req: &req, plan: plan}
	if (e.opts.Audit != nil || req.Evidence) && req.Stdin != nil {
		x.input = newWitnessed(req.Stdin)
		req.Stdin = x.input
	}
	result, err := x.conclude(x.do(ctx))
	if err != nil {
		x.out.Close()
	}
	return result, err
}

// Event is one thing that happened while a program ran, or at the end its result.
type Event struct {
	sandbox.Event
	Result *Result
}

// MarshalJSON writes what a stream of lines consists of.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		sandbox.EventDocument
		Result *Result `json:"result,omitempty"`
	}{e.Document(), e.Result})
}

// EventResult is the kind of the last event of a stream.
const EventResult sandbox.EventKind = "result"

// Stream runs a program and yields what happens while it happens; the last event carries the result. Whoever stops listening
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
			ev.Data = append([]byte(nil), ev.Data...) // the listener may keep it
			select {
			case events <- Event{Event: ev}:
			case <-ctx.Done():
			case <-over: // what was under way when the run was called off may come late
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

package executor

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

// warmBackend is a backend that records the processes of a cold run, and in the next run starts them before the sandbox has a file of the
// program. Tests check with it what a driver promises, without a pool.
type warmBackend struct {
	*native.Backend

	mu       sync.Mutex
	seen     []sandbox.Process // processes of the cold run
	ahead    bool
	compiled bool // the next run has nothing to compile
	served   int  // processes that were started before their request
}

func (u *warmBackend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	in, err := u.Backend.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	inst := in.(interface {
		sandbox.Instance
		sandbox.Filer
	})
	r := &rehearsed{Instance: inst, Filer: inst, u: u, waits: map[string]sandbox.Task{}}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.ahead {
		u.seen = nil
		return r, nil
	}
	for _, p := range u.seen {
		if p.Warm == nil || p.Phase == PhaseCompile && u.compiled {
			continue
		}
		if r.waits[p.Phase], err = awaitDriver(ctx, in, p); err != nil {
			_ = in.Destroy(context.WithoutCancel(ctx))
			return nil, err
		}
	}
	return r, nil
}

// awaitDriver starts a process in its driver and waits until that is ready.
func awaitDriver(ctx context.Context, in sandbox.Instance, p sandbox.Process) (sandbox.Task, error) {
	if len(p.Warm.Args) > 0 {
		p.Args = p.Warm.Args
	}
	if err := in.(sandbox.Filer).Put(ctx, p.Warm.Files); err != nil {
		return nil, err
	}
	task, err := in.Start(ctx, &p)
	if err != nil {
		return nil, err
	}
	got := make([]byte, len(p.Warm.Handshake))
	late := time.AfterFunc(2*time.Minute, func() { _ = task.Kill() })
	defer late.Stop()
	for n := 0; n < len(got); {
		stream, more, err := task.ReadOutput(got[n:])
		if n += more; err != nil || stream != 1 || string(got[:n]) != p.Warm.Handshake[:n] {
			return nil, fmt.Errorf("%s said %q instead of being ready: %w", p.Warm.Name, got[:n], err)
		}
	}
	return task, nil
}

type rehearsed struct {
	sandbox.Instance
	sandbox.Filer
	u     *warmBackend
	waits map[string]sandbox.Task
}

func (r *rehearsed) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	r.u.mu.Lock()
	defer r.u.mu.Unlock()
	if !r.u.ahead {
		r.u.seen = append(r.u.seen, *p)
	}
	task := r.waits[p.Phase]
	if task == nil {
		return r.Instance.Start(ctx, p)
	}
	delete(r.waits, p.Phase)
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	if err := json.NewEncoder(&b).Encode(map[string]any{"env": p.Env, "dir": p.Workdir, "args": p.Args}); err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(b.Bytes(), uint32(b.Len()-4))
	if _, err := task.Stdin().Write(b.Bytes()); err != nil {
		return nil, err
	}
	r.u.served++
	return task, nil
}

// twice runs a program cold and with its processes started ahead. Neither is given what the other has compiled.
type twice struct {
	u *warmBackend
	e *Executor
}

func newTwice(t *testing.T) *twice {
	t.Helper()
	e := realEngine(t)
	u := &warmBackend{Backend: shared.backend}
	m := sandbox.NewManager(u, sandbox.Options{})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	opts := e.opts
	opts.Cache = nil
	opts.Prestart = true
	return &twice{u, New(m, opts)}
}

// run returns what became of a program by both ways, and how many of its processes had been waiting.
func (w *twice) run(t *testing.T, req func() Request) (cold, warm *Result, served int) {
	t.Helper()
	var err error
	w.u.ahead = false
	if cold, err = w.e.Execute(t.Context(), req()); err != nil {
		t.Fatal(err)
	}
	w.u.ahead, w.u.served, w.u.compiled = true, 0, w.e.opts.Cache != nil
	if warm, err = w.e.Execute(t.Context(), req()); err != nil {
		t.Fatal(err)
	}
	return cold, warm, w.u.served
}

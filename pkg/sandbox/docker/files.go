package docker

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// place is a container's scratch: its helper opens what is there, as the sandbox's user.
type place struct{ s *session }

var _ files.Place = (*place)(nil)

// filePatience bounds a step of the helper's; contents may take as long as they take.
const filePatience = 30 * time.Second

func (p *place) context() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), filePatience, errSilent)
}

// gone makes the end of the container what files.Scratch knows as one that is deleted.
func gone(err error) error {
	if errors.Is(err, wire.ErrClosed) {
		return errors.Join(fs.ErrClosed, err)
	}
	return err
}

// done is the outcome in an answer.
func done(r reply) error {
	if r.kind != wire.KindDone {
		return wire.ErrMalformed
	}
	errno, err := wire.ParseDone(r.body)
	if err != nil || errno == 0 {
		return err
	}
	return errnoOf(uint32(errno))
}

// Create makes a new file. What goes wrong is told when it is closed: nobody waits for the helper before.
func (p *place) Create(name string, mode fs.FileMode) (io.WriteCloser, error) {
	w := &writer{p: p, answer: make(chan reply, 1)}
	w.id = p.s.open(func(kind wire.Kind, body []byte) {
		select {
		case w.answer <- reply{kind, append([]byte(nil), body...)}:
		default:
		}
	})
	w.out = p.s.conn.Outlet(wire.Stream(w.id, 0))
	if err := p.s.conn.Send(wire.KindCreate, w.id, wire.Path(uint32(mode.Perm()), name)); err != nil {
		p.s.forget(w.id)
		_ = w.out.Close()
		return nil, gone(p.s.explain(err))
	}
	return w, nil
}

// writer is a file that is being made.
type writer struct {
	p      *place
	id     uint32
	out    *wire.Outlet
	answer chan reply
	once   sync.Once
	err    error
}

func (w *writer) Write(b []byte) (int, error) {
	n, err := w.out.Write(b)
	if err != nil { // the helper has given up; why, it says itself
		if closeErr := w.Close(); closeErr != nil {
			err = closeErr
		}
	}
	return n, err
}

func (w *writer) Close() error {
	w.once.Do(func() {
		defer w.p.s.forget(w.id)
		_ = w.out.Close()
		ctx, cancel := w.p.context()
		defer cancel()
		select {
		case r := <-w.answer:
			w.err = done(r)
		case <-w.p.s.done:
			w.err = gone(w.p.s.explain(nil))
		case <-ctx.Done():
			w.err = context.Cause(ctx)
		}
	})
	return w.err
}

// Remove removes a file.
func (p *place) Remove(name string) error {
	ctx, cancel := p.context()
	defer cancel()
	r, err := p.s.ask(ctx, wire.KindRemove, wire.Path(0, name))
	if err != nil {
		return gone(err)
	}
	return done(r)
}

// Open opens what is there.
func (p *place) Open(name string) (*files.Content, error) {
	answers := make(chan reply, 2) // opened, done
	id := p.s.open(func(kind wire.Kind, body []byte) {
		select {
		case answers <- reply{kind, append([]byte(nil), body...)}:
		default:
		}
	})
	in := p.s.conn.Inlet(wire.Stream(id, 1))
	fail := func(err error) (*files.Content, error) {
		p.s.forget(id)
		_ = in.Close()
		return nil, gone(err)
	}
	if err := p.s.conn.Send(wire.KindOpen, id, wire.Path(0, name)); err != nil {
		return fail(p.s.explain(err))
	}
	ctx, cancel := p.context()
	defer cancel()
	var r reply
	select {
	case r = <-answers:
	case <-p.s.done:
		return fail(p.s.explain(nil))
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	}
	if r.kind == wire.KindDone {
		err := done(r)
		if err == nil {
			err = wire.ErrMalformed
		}
		return fail(err)
	}
	mode, size, err := wire.ParseOpened(r.body)
	if r.kind != wire.KindOpened || err != nil {
		return fail(wire.ErrMalformed)
	}
	return &files.Content{ReadCloser: &reader{Inlet: in, p: p, id: id}, Mode: mode, Size: size}, nil
}

// reader is a file that was opened.
type reader struct {
	*wire.Inlet
	p  *place
	id uint32
}

func (r *reader) Read(p []byte) (int, error) {
	deleted := &sandbox.Error{Backend: Name, Op: "take files", Kind: sandbox.ErrState, Err: errors.New("the sandbox is deleted")}
	select {
	case <-r.p.s.over: // also when all of it is here already: the same answer, however large the file is
		return 0, deleted
	default:
	}
	n, err := r.Inlet.Read(p)
	if errors.Is(err, wire.ErrClosed) {
		err = deleted
	}
	return n, err
}

func (r *reader) Close() error {
	r.p.s.forget(r.id)
	return r.Inlet.Close()
}

// List hands on the entries of a directory.
func (p *place) List(name string, want func(files.Entry) bool) error {
	var mu sync.Mutex
	var bodies [][]byte
	answer := make(chan reply, 1)
	id := p.s.open(func(kind wire.Kind, body []byte) {
		body = append([]byte(nil), body...)
		if kind == wire.KindEntries {
			mu.Lock()
			defer mu.Unlock()
			if len(bodies) < maxBatches {
				bodies = append(bodies, body)
			}
			return
		}
		select {
		case answer <- reply{kind, body}:
		default:
		}
	})
	defer p.s.forget(id)
	if err := p.s.conn.Send(wire.KindList, id, wire.Path(0, name)); err != nil {
		return gone(p.s.explain(err))
	}
	ctx, cancel := p.context()
	defer cancel()
	select {
	case r := <-answer:
		if err := done(r); err != nil {
			return err
		}
	case <-p.s.done:
		return gone(p.s.explain(nil))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, body := range bodies {
		enough := false
		err := wire.EachEntry(body, func(mode fs.FileMode, name string) bool {
			enough = !want(files.Entry{Name: name, Type: mode})
			return !enough
		})
		if err != nil || enough {
			return err
		}
	}
	return nil
}

// maxBatches bounds what a directory may fill our memory with, far beyond what anybody looks at.
const maxBatches = 2048

// Put makes files in the scratch.
func (i *instance) Put(ctx context.Context, list []sandbox.File) error {
	return i.files.Put(ctx, list)
}

// Take reads files out of the scratch.
func (i *instance) Take(ctx context.Context, s sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	return i.files.Take(ctx, s, each)
}

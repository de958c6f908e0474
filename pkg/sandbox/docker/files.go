package docker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// place is a container's scratch: the helper opens its files, as the sandbox's user.
type place struct{ s *connection }

var _ files.Place = (*place)(nil)

// fileTimeout bounds a step of the helper; the transfer of contents has no time limit.
const fileTimeout = 30 * time.Second

func (p *place) context() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), fileTimeout, errSilent)
}

// gone turns the end of the container into the error that files.Scratch reports as a deleted sandbox.
func gone(err error) error {
	if errors.Is(err, containerproto.ErrClosed) {
		return errors.Join(fs.ErrClosed, err)
	}
	return err
}

// doneError returns the error in a "done" answer, or that of the wait for it.
func doneError(r reply, err error) error {
	if err != nil {
		return err
	}
	if r.kind != containerproto.KindDone {
		return containerproto.ErrMalformed
	}
	errno, err := containerproto.ParseDone(r.body)
	if err != nil || errno == 0 {
		return err
	}
	return errnoOf(uint32(errno))
}

// Create makes a new file. Close reports errors: nothing waits for the helper before.
func (p *place) Create(name string, mode fs.FileMode) (io.WriteCloser, error) {
	return p.create(name, uint32(mode.Perm()))
}

// Link makes a symbolic link.
func (p *place) Link(name, target string) error {
	w, err := p.create(name, containerproto.LinkMode)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, target); err != nil {
		return err
	}
	return w.Close()
}

func (p *place) create(name string, mode uint32) (io.WriteCloser, error) {
	answer, sink := newReplySink(1)
	w := &writer{p: p, answer: answer, id: p.s.register(sink)}
	w.out = p.s.conn.Outlet(containerproto.Stream(w.id, 0))
	if err := p.s.conn.Send(containerproto.KindCreate, w.id, containerproto.Path(mode, name)); err != nil {
		p.s.unregister(w.id)
		_ = w.out.Close()
		return nil, gone(p.s.explain(err))
	}
	return w, nil
}

// writer is a file that is being written.
type writer struct {
	p      *place
	id     uint32
	out    *containerproto.Outlet
	answer chan reply
	once   sync.Once
	err    error
}

func (w *writer) Write(b []byte) (int, error) {
	n, err := w.out.Write(b)
	if err != nil { // the helper has stopped reading; its answer has the reason
		if closeErr := w.Close(); closeErr != nil {
			err = closeErr
		}
	}
	return n, err
}

func (w *writer) Close() error {
	w.once.Do(func() {
		defer w.p.s.unregister(w.id)
		_ = w.out.Close()
		ctx, cancel := w.p.context()
		defer cancel()
		w.err = gone(doneError(w.p.s.wait(ctx, w.answer)))
	})
	return w.err
}

// Remove removes a file.
func (p *place) Remove(name string) error {
	ctx, cancel := p.context()
	defer cancel()
	return gone(doneError(p.s.request(ctx, containerproto.KindRemove, containerproto.Path(0, name))))
}

// Open opens a file or directory.
func (p *place) Open(name string) (*files.Content, error) {
	answers, sink := newReplySink(2) // opened, done
	id := p.s.register(sink)
	in := p.s.conn.Inlet(containerproto.Stream(id, 1))
	fail := func(err error) (*files.Content, error) {
		p.s.unregister(id)
		_ = in.Close()
		return nil, gone(err)
	}
	if err := p.s.conn.Send(containerproto.KindOpen, id, containerproto.Path(0, name)); err != nil {
		return fail(p.s.explain(err))
	}
	ctx, cancel := p.context()
	defer cancel()
	r, err := p.s.wait(ctx, answers)
	if err != nil || r.kind == containerproto.KindDone {
		return fail(cmp.Or(doneError(r, err), containerproto.ErrMalformed))
	}
	mode, size, err := containerproto.ParseOpened(r.body)
	if r.kind != containerproto.KindOpened || err != nil {
		return fail(containerproto.ErrMalformed)
	}
	return &files.Content{ReadCloser: &reader{Inlet: in, p: p, id: id}, Mode: mode, Size: size}, nil
}

// reader is an opened file.
type reader struct {
	*containerproto.Inlet
	p  *place
	id uint32
}

func (r *reader) Read(p []byte) (int, error) {
	deleted := &sandbox.Error{Backend: Name, Op: "take files", Kind: sandbox.ErrState, Err: errors.New("the sandbox is deleted")}
	select {
	case <-r.p.s.over: // also when all data has arrived: the same answer, however large the file is
		return 0, deleted
	default:
	}
	n, err := r.Inlet.Read(p)
	if errors.Is(err, containerproto.ErrClosed) {
		err = deleted
	}
	return n, err
}

func (r *reader) Close() error {
	r.p.s.unregister(r.id)
	return r.Inlet.Close()
}

// List passes the entries of a directory to want until it returns false.
func (p *place) List(name string, want func(files.Entry) bool) error {
	var mu sync.Mutex
	var bodies [][]byte
	answer, sink := newReplySink(1)
	id := p.s.register(func(kind containerproto.Kind, body []byte) {
		if kind != containerproto.KindEntries {
			sink(kind, body)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if len(bodies) < maxBatches {
			bodies = append(bodies, bytes.Clone(body))
		}
	})
	defer p.s.unregister(id)
	if err := p.s.conn.Send(containerproto.KindList, id, containerproto.Path(0, name)); err != nil {
		return gone(p.s.explain(err))
	}
	ctx, cancel := p.context()
	defer cancel()
	if err := doneError(p.s.wait(ctx, answer)); err != nil {
		return gone(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, body := range bodies {
		enough := false
		err := containerproto.EachEntry(body, func(mode fs.FileMode, name string) bool {
			enough = !want(files.Entry{Name: name, Type: mode})
			return !enough
		})
		if err != nil || enough {
			return err
		}
	}
	return nil
}

// maxBatches bounds the memory for one directory, far beyond files.MaxEntries.
const maxBatches = 2048

// Put makes files in the scratch.
func (i *instance) Put(ctx context.Context, list []sandbox.File) error {
	return i.files.Put(ctx, list)
}

// Take reads files out of the scratch.
func (i *instance) Take(ctx context.Context, s sandbox.Selection,
	each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	return i.files.Take(ctx, s, each)
}

package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Part is a directory of a scratch.
type Part struct {
	Name string
	Mode uint32
	At   string // its path in the sandbox
}

// Parts are the directories of every scratch, in the order in which they are mounted.
var Parts = []Part{{"workspace", 0o755, sandbox.WorkspaceDir}, {"tmp", 0o1777, sandbox.TmpDir}, {"home", 0o755, sandbox.HomeDir}}

// Beneath returns the path in a scratch of a path of the sandbox; ok is false for a path outside of the scratch.
func Beneath(p string) (string, bool) {
	for _, part := range Parts {
		if rest, ok := strings.CutPrefix(p, part.At); ok && (rest == "" || rest[0] == '/') {
			return part.Name + rest, true
		}
	}
	return "", false
}

// Place is a scratch whose files can be opened. Paths are relative to it and clean, and no link on them is followed.
type Place interface {
	// Create makes a new file, and the directories on its path. It replaces an entry of that name unless that is a directory.
	Create(p string, mode fs.FileMode) (io.WriteCloser, error)
	// Link makes a symbolic link, and the directories on its path. It replaces an entry as Create does.
	Link(p, target string) error
	// Remove removes a file.
	Remove(p string) error
	// Open opens a file or directory, and never blocks.
	Open(p string) (*Content, error)
	// List passes the entries of a directory to want until it returns false.
	List(p string, want func(Entry) bool) error
}

// CloseWaiter is implemented by a Place where a file that was just closed may still be open elsewhere for a moment.
type CloseWaiter interface {
	// WaitClosed returns when no process has a file open that was made here and closed.
	WaitClosed() error
}

// Content is an opened file or directory, and its state at that time.
type Content struct {
	io.ReadCloser
	Mode fs.FileMode
	Size int64
	// Elsewhere: it may have another name, outside of the scratch.
	Elsewhere bool
}

// Entry is an entry of a directory. An unknown type is fs.ModeIrregular.
type Entry struct {
	Name string
	Type fs.FileMode
}

// Scratch is a Place with the words of its backend for errors.
type Scratch struct {
	Place   Place
	Backend string
	Full    string // the remedy for a full scratch
	// Failure adds the next step to an error that the host caused; nil adds none.
	Failure func(op, stage string, err error) error
	// Lives ends with the sandbox and cancels every call: open files would keep the scratch from being removed. nil
	// is a scratch that open files do not keep.
	Lives context.Context
}

// withLifetime returns a context that ends with the sandbox, too.
func (s *Scratch) withLifetime(ctx context.Context) (context.Context, func(), error) {
	if s.Lives == nil {
		return ctx, func() {}, nil
	}
	gone := &sandbox.Error{Backend: s.Backend, Op: "files", Kind: sandbox.ErrState, Err: errors.New("the sandbox is deleted")}
	if s.Lives.Err() != nil {
		return nil, nil, gone
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.Lives, func() { cancel(gone) })
	return ctx, func() {
		stop()
		cancel(nil)
	}, nil
}

// Put makes files. It stops at the first that can not be made, and removes that one.
func (s *Scratch) Put(ctx context.Context, files []sandbox.File) error {
	ctx, done, err := s.withLifetime(ctx)
	if err != nil {
		return err
	}
	defer done()
	for i := range files {
		f := &files[i]
		err := ctx.Err()
		if err == nil {
			err = s.put(ctx, f)
		}
		if err != nil {
			return s.explain("put "+f.Path, err)
		}
	}
	return s.waitClosed(files)
}

// waitClosed makes sure that the files can be executed: the kernel refuses to execute a file that is open for writing.
func (s *Scratch) waitClosed(files []sandbox.File) error {
	place, ok := s.Place.(CloseWaiter)
	if !ok || !slices.ContainsFunc(files, func(f sandbox.File) bool { return f.Mode&0o111 != 0 }) {
		return nil
	}
	if err := place.WaitClosed(); err != nil {
		return s.explain("put files", err)
	}
	return nil
}

// explain gives an error its kind and, where one is known, the next step.
func (s *Scratch) explain(op string, err error) error {
	if known := new(*sandbox.Error); errors.As(err, known) && (*known).Kind != nil {
		return err
	}
	out := &sandbox.Error{Backend: s.Backend, Op: op, Stage: "scratch", Err: err}
	source := new(*unreadable)
	switch {
	case errors.As(err, source):
		out.Kind, out.Stage = sandbox.ErrInvalid, ""
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		out.Kind, out.Hint = sandbox.ErrRefused, s.Full
	case errors.Is(err, syscall.ELOOP):
		out.Kind, out.Err = sandbox.ErrRefused, fmt.Errorf("the path has a symbolic link, which is not followed: %w", err)
	case errors.Is(err, syscall.EXDEV):
		out.Kind, out.Err = sandbox.ErrRefused, fmt.Errorf("the path is on another file system than the scratch: %w", err)
	case errors.Is(err, syscall.EISDIR):
		out.Kind, out.Hint = sandbox.ErrInvalid, "another name: a directory is not replaced by a file"
	case errors.Is(err, syscall.ENOTDIR):
		out.Kind, out.Hint = sandbox.ErrInvalid, "another name: a file is where a directory would have to be"
	case errors.Is(err, syscall.ENAMETOOLONG):
		out.Kind = sandbox.ErrInvalid
	case errors.Is(err, fs.ErrClosed):
		out.Kind, out.Err = sandbox.ErrState, errors.New("the sandbox is deleted")
	case s.Failure != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return s.Failure(op, "scratch", err)
	}
	return out
}

func (s *Scratch) put(ctx context.Context, f *sandbox.File) (err error) {
	p, ok := Beneath(f.Path)
	if !ok {
		return sandbox.Invalid("file", "path %q lies in none of %s", f.Path, strings.Join(sandbox.ScratchDirs(), ", "))
	}
	if f.Link != "" {
		return s.Place.Link(p, f.Link)
	}
	var from io.ReadCloser
	if f.Data == nil && f.Open != nil {
		if from, err = f.Open(); err != nil {
			return &unreadable{err}
		}
		closeSource := sync.OnceFunc(func() { _ = from.Close() }) // a source must not be closed twice
		defer closeSource()
		stop := context.AfterFunc(ctx, closeSource) // closing the source ends a read that waits for it
		defer stop()
	}
	to, err := s.Place.Create(p, cmp.Or(f.Mode, 0o644))
	if err != nil {
		return err
	}
	if from == nil {
		if len(f.Data) > 0 {
			_, err = to.Write(f.Data)
		}
	} else {
		err = fill(ctx, to, from)
	}
	if closeErr := to.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		return nil
	}
	_ = s.Place.Remove(p) // no incomplete file stays
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// chunk is how much is copied between two checks of the context.
const chunk = 4 << 20

var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// unreadable is an error of the source, not of the scratch.
type unreadable struct{ err error }

func (u *unreadable) Error() string { return "read its content: " + u.err.Error() }
func (u *unreadable) Unwrap() error { return u.err }

// fill copies a source to its end, within the kernel where that is possible.
func fill(ctx context.Context, to io.Writer, from io.Reader) error {
	if source, ok := from.(*os.File); ok {
		if target, ok := to.(*os.File); ok {
			if done, err := fillFile(ctx, target, source); done || err != nil {
				return err
			}
		}
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := from.Read(*buf)
		if n > 0 {
			if _, err := to.Write((*buf)[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &unreadable{err}
		}
	}
}

// inside is the sandbox's name for a path of its scratch.
func inside(part Part, p string) string { return path.Join(part.At, strings.TrimPrefix(p, part.Name)) }

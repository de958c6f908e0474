package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Bounds of the work that a program can cause.
const (
	MaxEntries = 1 << 18 // entries of directories, read in one Take
	MaxUntaken = 1000    // entries in the list of files that were not taken
)

// Take passes the selected files to each, in the order of their paths. It returns the files that it left out, and stops at
// the first error of each.
func (s *Scratch) Take(ctx context.Context, sel sandbox.Selection,
	each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	ctx, done, err := s.withLifetime(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	w := &walk{Scratch: s, sel: sel, each: each}
	for _, part := range slices.SortedFunc(slices.Values(Parts), func(a, b Part) int { return cmp.Compare(a.At, b.At) }) {
		w.part, w.glob = part, nil
		for _, p := range sel.Patterns {
			if rest, ok := strings.CutPrefix(p, part.At); ok && (rest == "" || rest[0] == '/') {
				w.glob.add(strings.TrimPrefix(rest, "/"))
			}
		}
		if w.glob == nil {
			continue
		}
		err := w.tree(ctx)
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			return w.untaken, err
		}
	}
	return w.untaken, nil
}

// walk is one Take.
type walk struct {
	*Scratch
	sel  sandbox.Selection
	each func(f sandbox.File, size sandbox.Size, r io.Reader) error

	part    Part
	glob    glob
	looked  int // entries read
	files   int // files taken
	bytes   uint64
	untaken []sandbox.Untaken
}

var errEnough = errors.New("too many entries")

// level is a directory of the walk. Levels are kept in a list, not on the stack (F14).
type level struct {
	path    string
	entries []found // in order, still to do
}

// found is an entry that can match.
type found struct {
	Entry
	spots          []spot
	matched, named bool
}

// order is the sort key by path: a directory sorts with a slash at its end.
func (f *found) order() string {
	if f.Type.IsDir() {
		return f.Name + "/"
	}
	return f.Name
}

func (w *walk) tree(ctx context.Context) error {
	first, err := w.listMatching(w.part.Name, w.glob.top())
	if err != nil {
		return err
	}
	stack := []level{first}
	for len(stack) > 0 {
		if err := ctx.Err(); err != nil {
			return w.explain("take files", context.Cause(ctx))
		}
		top := &stack[len(stack)-1]
		if len(top.entries) == 0 {
			stack = stack[:len(stack)-1]
			continue
		}
		f := top.entries[0]
		top.entries = top.entries[1:]
		p := path.Join(top.path, f.Name)
		isDir := f.Type.IsDir()
		if !isDir && (f.matched || f.named) {
			if isDir, err = w.takeEntry(ctx, p, &f); err != nil {
				return err
			}
		}
		if isDir {
			next, err := w.listMatching(p, f.spots)
			if err != nil {
				return err
			}
			stack = append(stack, next)
		}
	}
	return nil
}

// listMatching lists the entries of a directory that can match.
func (w *walk) listMatching(p string, spots []spot) (level, error) {
	l := level{path: p}
	consider := func(e Entry) bool {
		f := found{Entry: e}
		if f.spots, f.matched, f.named = w.glob.step(spots, e.Name); f.matched || len(f.spots) > 0 {
			l.entries = append(l.entries, f)
		}
		return true
	}
	if name, ok := w.glob.only(spots); ok {
		consider(Entry{name, fs.ModeIrregular})
		return l, nil
	}
	enough := false
	err := w.Place.List(p, func(e Entry) bool {
		w.looked++
		if enough = w.looked > max(MaxEntries, 4*w.sel.MaxFiles); enough {
			return false
		}
		return consider(e)
	})
	if err != nil {
		return l, w.leaveOutUnopened(p, err)
	}
	if enough {
		w.leaveOut(inside(w.part, p), fmt.Sprintf("more than %d entries; the rest was not read", w.looked-1))
		return l, errEnough
	}
	slices.SortFunc(l.entries, func(a, b found) int { return cmp.Compare(a.order(), b.order()) })
	return l, nil
}

// takeEntry takes an entry if it matches. isDir: it is a directory.
func (w *walk) takeEntry(ctx context.Context, p string, f *found) (isDir bool, err error) {
	if f.Type != 0 && f.Type != fs.ModeIrregular { // no need to open it
		if f.matched || f.Type == fs.ModeSymlink { // a link in place of a directory is reported
			w.leaveOut(inside(w.part, p), kind(f.Type))
		}
		return false, nil
	}
	if f.Type == 0 && !f.matched {
		return false, nil // a file where the pattern has a directory
	}
	if w.files >= w.sel.MaxFiles && f.Type == 0 {
		w.leaveOut(inside(w.part, p), fmt.Sprintf("%d files were taken already, which is the most", w.files))
		return false, nil
	}
	c, err := w.Place.Open(p)
	if err != nil {
		return false, w.leaveOutUnopened(p, err)
	}
	defer c.Close()
	at, reason := inside(w.part, p), ""
	switch left := uint64(w.sel.MaxBytes) - w.bytes; {
	case c.Mode.IsDir():
		return true, nil
	case !f.matched:
		return false, nil
	case !c.Mode.IsRegular():
		reason = kind(c.Mode)
	case c.Elsewhere:
		reason = "it has more than one name (hard links), and may be a file of the host"
	case w.files >= w.sel.MaxFiles:
		reason = fmt.Sprintf("%d files were taken already, which is the most", w.files)
	case uint64(c.Size) > left:
		reason = fmt.Sprintf("it has %v, and of %v in all only %v are left", sandbox.Size(c.Size), w.sel.MaxBytes, sandbox.Size(left))
	default:
		return false, w.passFile(ctx, at, c)
	}
	w.leaveOut(at, reason)
	return false, nil
}

// passFile passes a file to the caller of Take: as many bytes as it had when it was opened.
func (w *walk) passFile(ctx context.Context, at string, c *Content) error {
	release := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer release()
	w.files++
	w.bytes += uint64(c.Size)
	r := &io.LimitedReader{R: c.ReadCloser, N: c.Size}
	err := w.each(sandbox.File{Path: at, Mode: c.Mode.Perm()}, sandbox.Size(c.Size), r)
	if ctx.Err() != nil {
		return w.explain("take "+at, context.Cause(ctx))
	}
	if err != nil {
		return err
	}
	var more [1]byte
	switch n, err := c.Read(more[:]); {
	case n > 0 && r.N == 0:
		w.leaveOut(at, fmt.Sprintf("it grew while it was read; its first %v were taken", sandbox.Size(c.Size)))
	case n == 0 && r.N > 0 && errors.Is(err, io.EOF):
		w.leaveOut(at, fmt.Sprintf("it shrank while it was read; %v of %v were taken", sandbox.Size(c.Size-r.N), sandbox.Size(c.Size)))
	}
	return nil
}

// leaveOutUnopened records why an entry could not be opened. An error of the host is returned instead.
func (w *walk) leaveOutUnopened(p string, err error) error {
	at := inside(w.part, p)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR): // removed or replaced meanwhile
	case errors.Is(err, syscall.ELOOP):
		w.leaveOut(at, kind(fs.ModeSymlink))
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		w.leaveOut(at, "a socket or a device, not a file")
	case errors.Is(err, syscall.EAGAIN):
		w.leaveOut(at, "a program has a lease on it, or renames a directory of its path")
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EXDEV), errors.Is(err,
		syscall.ENAMETOOLONG), errors.Is(err, syscall.ETXTBSY):
		var errno syscall.Errno
		errors.As(err, &errno)
		w.leaveOut(at, errno.Error())
	default:
		return w.explain("take "+at, err)
	}
	return nil
}

func (w *walk) leaveOut(at, reason string) {
	switch n := len(w.untaken); {
	case n < MaxUntaken:
		w.untaken = append(w.untaken, sandbox.Untaken{Path: at, Reason: reason})
	case n == MaxUntaken:
		w.untaken = append(w.untaken, sandbox.Untaken{Path: at, Reason: "this and perhaps others: the list ends here"})
	}
}

func kind(mode fs.FileMode) string {
	switch mode.Type() {
	case fs.ModeSymlink:
		return "a symbolic link, which is not followed"
	case fs.ModeNamedPipe:
		return "a FIFO, not a file"
	case fs.ModeSocket:
		return "a socket, not a file"
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "a device, not a file"
	}
	return "not a regular file"
}

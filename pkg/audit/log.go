package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Defaults of Options.
const (
	DefaultMaxSize = 64 * sandbox.MiB
	DefaultWait    = 2 * time.Second
)

// Options configures a Log; the zero value is useful.
type Options struct {
	Sync     bool          // entries survive a power cut; every Append waits for the disk
	KeepCode bool          // keep the code itself, not only its hash
	MaxSize  sandbox.Size  // of one file; 0 is DefaultMaxSize
	Wait     time.Duration // the longest wait for other writers; 0 is DefaultWait
}

// Log is an audit log. It keeps no file open between two calls, and needs no closing. All methods are safe for concurrent use.
type Log struct {
	dir, name string
	options   Options
	turn      chan struct{} // serializes this process's goroutines before they compete for the file lock
}

// DefaultPath returns $XDG_STATE_HOME/sandbox-run/audit.jsonl.
func DefaultPath() (string, error) {
	dir, err := userdir.State()
	if err != nil {
		return "", &sandbox.Error{Op: "audit log", Err: err}
	}
	return filepath.Join(dir, "audit.jsonl"), nil
}

// Open returns the log at path; an empty path means DefaultPath. It refuses a log that belongs to another user. The first Append
// makes a log that does not exist.
func Open(path string, o Options) (*Log, error) {
	if path == "" {
		var err error
		if path, err = DefaultPath(); err != nil {
			return nil, err
		}
	}
	if o.Wait < 0 {
		return nil, sandbox.Invalid("audit log", "a wait of %v; it can not be negative", o.Wait)
	}
	absolute, err := filepath.Abs(path)
	if err != nil || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0) {
		return nil, sandbox.Invalid("audit log", "%q does not name a file", path)
	}
	o.MaxSize, o.Wait = cmp.Or(o.MaxSize, DefaultMaxSize), cmp.Or(o.Wait, DefaultWait)
	l := &Log{dir: filepath.Dir(absolute), name: filepath.Base(absolute), options: o, turn: make(chan struct{}, 1)}
	if err := l.checkOwner(); err != nil {
		return nil, err
	}
	return l, nil
}

// checkOwner refuses before a run what Append would refuse after it.
func (l *Log) checkOwner() error {
	dir, err := userdir.OpenDir(l.dir, userdir.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return l.failed(err)
	}
	defer dir.Close()
	file, err := dir.Open(l.name, userdir.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return l.failed(err)
	}
	return file.Close()
}

// Path returns the absolute path of the current file.
func (l *Log) Path() string { return filepath.Join(l.dir, l.name) }

func (l *Log) headName() string { return l.name + ".head" }

func (l *Log) failed(err error) error {
	e := &sandbox.Error{Op: "audit log", Err: err}
	if errors.Is(err, errors.ErrUnsupported) {
		e.Kind = sandbox.ErrUnsupported
	}
	if errors.Is(err, userdir.ErrBusy) {
		e.Err = fmt.Errorf("%w; waited %v", err, l.options.Wait)
		e.Hint = "find the sandbox-run process that hangs or is stopped, and end it"
	}
	return e
}

// Append writes an entry completely, or returns an error and writes nothing. It sets Seq, Prev and Hash. It blocks for at most
// Options.Wait while other writers have the lock.
func (l *Log) Append(e Entry) error {
	_, err := l.Record(e)
	return err
}

// Link is one entry's place in the chain. A caller that keeps it can check later that the log still has this very entry there.
type Link struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// Record is Append that also returns the entry's place in the chain.
func (l *Log) Record(e Entry) (Link, error) {
	if e.Kind == "" {
		e.Kind = KindRun
	}
	e.Repaired, e.Pruned = nil, nil // only the log itself sets these
	e = e.bounded(l.options.KeepCode)
	if err := l.withLock(func(w *writer) error { return w.append(&e) }); err != nil {
		return Link{}, err
	}
	return Link{Seq: e.Seq, Hash: e.Hash}, nil
}

// withLock calls write with the exclusive lock of the log, which excludes this process's goroutines and other processes.
func (l *Log) withLock(write func(w *writer) error) error {
	deadline := time.Now().Add(l.options.Wait)
	select {
	case l.turn <- struct{}{}:
	default:
		timer := time.NewTimer(l.options.Wait)
		defer timer.Stop()
		select {
		case l.turn <- struct{}{}:
		case <-timer.C:
			return l.failed(fmt.Errorf("another goroutine of this process writes: %w", userdir.ErrBusy))
		}
	}
	defer func() { <-l.turn }()

	w, err := l.openWriter(deadline)
	if err != nil {
		return l.failed(err)
	}
	defer w.close()
	if err := write(w); err != nil {
		return l.failed(err)
	}
	return nil
}

// writer holds the open files and the lock of the log.
type writer struct {
	log      *Log
	dir      *userdir.Dir
	headFile *os.File
	file     *os.File
	size     int64
	lead     string // written before the next entry: the newline that a killed writer left out
	last     link   // the entry the next one follows
}

// openWriter takes the lock, finds the end of the chain and repairs it where the head and the log differ.
func (l *Log) openWriter(deadline time.Time) (_ *writer, err error) {
	w := &writer{log: l}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if err := w.lock(deadline); err != nil {
		return nil, err
	}
	if err := w.open(); err != nil {
		return nil, err
	}
	known, err := readHead(w.headFile)
	if err == nil && w.size > 0 && known.Size == w.size {
		w.last = link{Seq: known.Seq, Hash: known.Hash}
		return w, nil
	}
	if err != nil && !errors.Is(err, errHeadSpoilt) {
		return nil, err
	}
	return w, w.repairLog(known, err != nil)
}

// lock opens and locks the head. When another process removes the file during the wait, the lock is worthless and lock tries again.
func (w *writer) lock(deadline time.Time) (err error) {
	for {
		if w.dir, err = userdir.OpenDir(w.log.dir, userdir.Write); err != nil {
			return err
		}
		if w.headFile, err = w.dir.Open(w.log.headName(), userdir.Write); err != nil {
			return err
		}
		if err = userdir.Lock(w.headFile, false, time.Until(deadline)); err != nil {
			return err
		}
		if w.dir.Is(w.log.headName(), w.headFile) {
			return nil
		}
		w.close()
		w.dir, w.headFile = nil, nil
		if time.Now().After(deadline) {
			return fmt.Errorf("the head file is removed repeatedly: %w", userdir.ErrBusy)
		}
	}
}

// open opens the current file.
func (w *writer) open() (err error) {
	if w.file, err = w.dir.Open(w.log.name, userdir.Append); err != nil {
		return err
	}
	info, err := w.file.Stat()
	if err != nil {
		return err
	}
	w.size = info.Size()
	return nil
}

func (w *writer) close() {
	if w.file != nil {
		_ = w.file.Close()
	}
	if w.headFile != nil {
		_ = w.headFile.Close() // releases the lock
	}
	if w.dir != nil {
		_ = w.dir.Close()
	}
}

// append writes the entry and then the head. On failure it removes its own bytes.
func (w *writer) append(e *Entry) error {
	e.Seq, e.Prev = w.last.Seq+1, w.last.Hash
	if e.Prev == "" {
		e.Prev = strings.Repeat("0", hashLen)
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC()
	if y := e.Time.Year(); y < 0 || y > 9999 {
		return fmt.Errorf("entry time: year %d is outside 0 to 9999", y)
	}
	line, err := e.line()
	if err != nil {
		return err
	}
	created := w.size == 0
	if w.size > 0 && w.size+int64(len(line)) > int64(w.log.options.MaxSize) {
		if err := w.rotate(); err != nil {
			return err
		}
		created = true
	}
	text := append([]byte(w.lead), line...)
	if _, err := w.file.Write(text); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", w.log.Path(), cause(err)), w.file.Truncate(w.size))
	}
	now := head{Seq: e.Seq, Hash: e.Hash, Size: w.size + int64(len(text))}
	if err := writeHead(w.headFile, now); err != nil {
		return errors.Join(err, w.file.Truncate(w.size))
	}
	w.size, w.lead, w.last = now.Size, "", link{Seq: e.Seq, Hash: e.Hash}
	if !w.log.options.Sync {
		return nil
	}
	err = errors.Join(w.file.Sync(), w.headFile.Sync())
	if created {
		err = errors.Join(err, w.dir.Sync())
	}
	return err
}

// rotate renames the current file to the number of its last entry, and begins a new one.
func (w *writer) rotate() error {
	aside := rotatedName(w.log.name, w.last.Seq)
	if f, err := w.dir.Open(aside, userdir.Read); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			_ = f.Close()
		}
		return nil // never replace a file; the current one grows instead
	}
	if w.lead != "" { // complete the last line before the rename
		if _, err := w.file.WriteString(w.lead); err != nil {
			return fmt.Errorf("write %s: %w", w.log.Path(), cause(err))
		}
		w.lead = ""
	}
	if err := w.dir.Rename(w.log.name, aside); err != nil {
		return err
	}
	_ = w.file.Close()
	w.file = nil
	return w.open()
}

// cause strips the path from an os.PathError; the caller's message has it already.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

const rotatedDigits = 20

func rotatedName(name string, last uint64) string {
	return fmt.Sprintf("%s.%0*d", name, rotatedDigits, last)
}

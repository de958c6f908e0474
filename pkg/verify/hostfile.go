package verify

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// HostFile is a file of this machine that may be replaced. Its directory stays open until Close.
type HostFile struct {
	Name string // as it was given
	// Content is what the file had when it was opened; nil: there was no file.
	Content []byte

	dir  *os.Root
	base string
	mode fs.FileMode
	was  fs.FileInfo
}

// lockTimeout is how long one replacement waits for another one in the same directory.
const lockTimeout = 10 * time.Second

// OpenFile reads a regular file of at most that many bytes. With create, the file may be missing. The caller closes it.
func OpenFile(name string, most int64, create bool) (*HostFile, error) {
	invalid := func(why error) error {
		return &sandbox.Error{Op: "read " + name, Kind: sandbox.ErrInvalid, Err: why, Hint: "ls -ld " + sandbox.ShellQuote(name)}
	}
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return nil, invalid(cause(err))
	}
	f := &HostFile{Name: name, dir: dir, base: filepath.Base(name), mode: 0o644}
	f.Content, f.was, err = f.read(most)
	if errors.Is(err, fs.ErrNotExist) && create {
		return f, nil
	}
	if err != nil {
		_ = dir.Close()
		return nil, invalid(cause(err))
	}
	f.mode = f.was.Mode().Perm()
	return f, nil
}

// cause removes the path from an error of the file system.
func cause(err error) error {
	if e := new(fs.PathError); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// Close closes the directory. It may be called twice.
func (f *HostFile) Close() { _ = f.dir.Close() }

// read reads the file as it is now. It follows no link, and does not wait for a pipe.
func (f *HostFile) read(most int64) ([]byte, fs.FileInfo, error) {
	st, err := f.dir.Lstat(f.base)
	if err != nil {
		return nil, nil, err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		return nil, nil, errors.New("it is a symbolic link; name the file itself")
	}
	if !st.Mode().IsRegular() {
		return nil, nil, errors.New("it is not a regular file")
	}
	opened, err := f.dir.OpenFile(f.base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer opened.Close()
	if st, err = opened.Stat(); err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, nil, errors.New("it is not a regular file any more")
	}
	text, err := io.ReadAll(io.LimitReader(opened, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	if text == nil {
		text = []byte{}
	}
	return text, st, err
}

// Replace gives the file another content in one step, with its mode and its owner. It refuses a file that has changed since it was opened.
// Replacements in the same directory wait for each other.
func (f *HostFile) Replace(content []byte) (err error) {
	fail := func(err error) error { return &sandbox.Error{Op: "write " + f.Name, Err: cause(err)} }
	if runtime.GOOS != "windows" { // it locks no directories
		d, err := f.dir.Open(".")
		if err != nil {
			return fail(err)
		}
		defer d.Close()
		if err := userdir.Lock(d, false, lockTimeout); err != nil {
			return fail(err)
		}
	}
	temporary := fmt.Sprintf(".%.40s.%s", f.base, rand.Text())
	to, err := f.dir.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			_ = f.dir.Remove(temporary)
		}
	}()
	_, err = to.Write(content)
	if err == nil && f.was != nil {
		err = keepOwner(to, f.was)
	}
	if err == nil {
		err = to.Chmod(f.mode) // after the owner: a change of it removes bits
	}
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return fail(err)
	}
	if err = f.unchanged(); err != nil {
		return err
	}
	if err = f.dir.Rename(temporary, f.base); err != nil {
		return fail(err)
	}
	return nil
}

// unchanged refuses a file that is not as it was when it was opened.
func (f *HostFile) unchanged() error {
	now, st, err := f.read(max(int64(len(f.Content)), 1))
	same := err == nil && f.was != nil && os.SameFile(st, f.was) && st.Mode() == f.was.Mode() && bytes.Equal(now, f.Content) ||
		f.was == nil && errors.Is(err, fs.ErrNotExist)
	if same {
		return nil
	}
	return &sandbox.Error{Op: "write " + f.Name, Kind: sandbox.ErrState, Err: errors.New("the file has changed meanwhile; it is left as it is"),
		Hint: "the same command again, after a look at the file"}
}

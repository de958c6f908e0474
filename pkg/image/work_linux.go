package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// work is a directory for making or removing files. It is locked while its process lives; a directory with a free lock is left by
// a killed process.
type work struct {
	dir  string
	lock *os.File
}

// The contents of a work directory: a root with its marks, and the files that layers have replaced.
const (
	treeName  = "tree"
	trashName = "trash"
)

// removalTime bounds the removal of one tree. The next collection removes the rest.
const removalTime = 10 * time.Minute

func (s *Store) newWork() (*work, error) {
	for range 16 {
		dir := s.path(workDir, rand.Text())
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		w, err := claim(dir)
		if err == nil {
			// Directories inherit the set-group-id bit of the parent; those of an image must not have it unless the image says so.
			if err := w.lock.Chmod(0o700); err != nil {
				w.close()
				return nil, err
			}
			return w, nil
		}
		if !errors.Is(err, userdir.ErrBusy) && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		// A collection came between the two calls.
	}
	return nil, fmt.Errorf("no directory in %s can be kept", s.path(workDir))
}

// claim locks a work directory, unless another process has the lock.
func claim(dir string) (*work, error) {
	f, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	if err = userdir.Lock(f, false, 0); err == nil && !sameDir(dir, f) {
		err = unix.ENOENT
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &work{dir: dir, lock: f}, nil
}

// close removes the directory with its contents.
func (w *work) close() {
	ctx, cancel := context.WithTimeout(context.Background(), removalTime)
	defer cancel()
	_ = removal.Tree(ctx, w.dir) // the next collection removes the rest
	_ = w.lock.Close()
}

// discard moves a file of the store into the directory, for removal.
func (w *work) discard(path string) error {
	err := os.Rename(path, filepath.Join(w.dir, rand.Text()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

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

// work is a directory in which something is made or removed. It is locked for as long as its maker lives; one whose lock can be
// had was left by a process that was killed.
type work struct {
	dir  string
	lock *os.File
}

// What is in a work directory: a root with its marks, and what layers have replaced.
const (
	treeName  = "tree"
	trashName = "trash"
)

// removalTime bounds the removal of one tree. What is left then is the next collector's.
const removalTime = 10 * time.Minute

func (s *Store) newWork() (*work, error) {
	for range 16 {
		dir := s.path(workDir, rand.Text())
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		w, err := claim(dir)
		if err == nil {
			// Directories inherit the mark of a directory whose files belong to its group; an image's do not have it unless they say so.
			if err := w.lock.Chmod(0o700); err != nil {
				w.close()
				return nil, err
			}
			return w, nil
		}
		if !errors.Is(err, userdir.ErrBusy) && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		// A collector came between the two calls.
	}
	return nil, fmt.Errorf("no directory in %s can be kept", s.path(workDir))
}

// claim locks a work directory, unless another process has it.
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

// close removes the directory with what is in it.
func (w *work) close() {
	ctx, cancel := context.WithTimeout(context.Background(), removalTime)
	defer cancel()
	_ = removal.Tree(ctx, w.dir) // what is left, the next collector removes
	_ = w.lock.Close()
}

// discard moves something of the store here, to be removed with the rest.
func (w *work) discard(path string) error {
	err := os.Rename(path, filepath.Join(w.dir, rand.Text()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

package prepared

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// File writes a file of ours, such as a driver, where sandboxes can be shown it, and returns its path; "" where that fails. It is a
// file of the host, not of the scratch: threads and later phases may open it again.
func (s *Store) File(name string, text []byte) string {
	s.filesMu.Lock()
	defer s.filesMu.Unlock()
	if file, ok := s.files[name]; ok {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file, err := writeFile(s.Dir(), name, text)
	if err != nil {
		return "" // the program starts cold
	}
	if s.files == nil {
		s.files = map[string]string{}
	}
	s.files[name] = file
	return file
}

// writeFile makes the file, named after its content. Any number of processes may do so at once.
func writeFile(dir, name string, text []byte) (string, error) {
	if dir == "" {
		return "", os.ErrNotExist
	}
	dir = filepath.Join(dir, "drivers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := CheckOwned(dir); err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	file := filepath.Join(dir, hex.EncodeToString(sum[:8])+"-"+name)
	if there, err := OpenRegular(file); err == nil {
		defer there.Close()
		if st, err := there.Stat(); err == nil && st.Size() == int64(len(text)) {
			return file, nil
		}
	}
	temporary, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return "", err
	}
	defer os.Remove(temporary.Name()) // renamed by then
	_, err = temporary.Write(text)
	if err == nil {
		err = temporary.Chmod(0o644) // the sandbox's user is another one
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", err
	}
	return file, os.Rename(temporary.Name(), file)
}

// Take copies what a sandbox has made, a file or all files below a directory, into a directory of the host. The copies are readable by
// every user a sandbox may have: they hold no secrets. keep, where there is one, chooses files by their names below from. The caller
// holds the lock. incomplete is for files that could not be taken.
func Take(
	ctx context.Context, m *sandbox.Manager, id string, from sandbox.Selection, dir string, keep func(string) bool,
) (incomplete, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	left, err := m.Take(ctx, id, from, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		name, below := strings.CutPrefix(f.Path, from.Patterns[0]+"/")
		if !below {
			name = path.Base(f.Path)
		}
		if keep != nil && !keep(name) {
			return nil
		}
		half := path.Join(path.Dir(name), ".new") // a file has its name when it is whole
		out, err := root.OpenFile(half, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		if err = errors.Join(err, out.Chmod(0o644), out.Close()); err != nil {
			return err
		}
		return root.Rename(half, name)
	})
	if len(left) > 0 {
		incomplete = fmt.Errorf("%s: %s", left[0].Path, left[0].Reason)
	}
	return incomplete, err
}

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

// File writes a file of this program, such as a driver, to a place that sandboxes can show, and returns its path; "" on failure.
// It is a file of the host, not of the scratch: threads and later phases may open it again.
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

// writeFile makes the file, named after its content. Any number of processes may call it at once.
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
	defer os.Remove(temporary.Name()) // after the rename there is nothing to remove
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

// Take copies a file, or all files below a directory, out of a sandbox into a directory of the host. Every user of a sandbox can
// read the copies, which have no secrets. keep, if set, selects files by their names below from. The caller has the lock.
// incomplete reports files that could not be copied.
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
		half := path.Join(path.Dir(name), ".new") // a file gets its name when it is complete
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

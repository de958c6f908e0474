package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// A delivery is two files: ID.body, which never changes, and ID.json, its state, which is written last and removed first. So a crash leaves
// a body without a head, or a temporary file; the next start removes both.
const (
	headSuffix = ".json"
	bodySuffix = ".body"
)

// head is ID.json. It has the secret, so the directory is private.
type head struct {
	Owner    string    `json:"owner,omitempty"`
	URL      string    `json:"url"`
	Secret   string    `json:"secret,omitempty"`
	Attempts int       `json:"attempts"`
	Since    time.Time `json:"since"`
	Next     time.Time `json:"next"`
}

type store struct{ dir *userdir.Dir }

func openStore(path string) (*store, error) {
	dir, err := userdir.OpenDir(path, userdir.Write)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(path)
	if err == nil && st.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("webhook: %s has secrets, and other users can read it (mode %04o); try: chmod 700 %s", path, st.Mode().Perm(), path)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return &store{dir}, nil
}

// validID reports whether an id is a valid part of a file name.
func validID(id string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	return id != "" && len(id) <= 128 && strings.Trim(id, letters) == ""
}

// put stores a delivery; when it returns nil, a crash does not lose it.
func (s *store) put(id string, h head, body func(io.Writer) error) error {
	if err := s.dir.Replace(id+bodySuffix, true, body); err != nil {
		return err
	}
	return s.putHead(id, h)
}

func (s *store) putHead(id string, h head) error {
	return s.dir.Replace(id+headSuffix, true, func(w io.Writer) error { return json.NewEncoder(w).Encode(h) })
}

func (s *store) head(id string) (h head, err error) {
	f, err := s.dir.Open(id+headSuffix, userdir.Read)
	if err != nil {
		return h, err
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, 64<<10)).Decode(&h)
	return h, err
}

// body opens a body; the caller closes it.
func (s *store) body(id string) (f *os.File, size int64, err error) {
	if f, err = s.dir.Open(id+bodySuffix, userdir.Read); err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() > maxBody {
		err = fmt.Errorf("webhook: %s is larger than %d bytes", id+bodySuffix, maxBody)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// remove removes a delivery.
func (s *store) remove(id string) error {
	err := s.dir.Remove(id + headSuffix)
	return errors.Join(err, s.dir.Remove(id+bodySuffix))
}

// load calls each for every stored delivery, and removes incomplete files that a crash left. Files that can not be read stay, and are in
// the error.
func (s *store) load(each func(id string, h head, size int64)) error {
	names, err := s.dir.Names()
	if err != nil {
		return err
	}
	var errs []error
	heads := map[string]bool{}
	for _, name := range names {
		id, ok := strings.CutSuffix(name, headSuffix)
		if !ok || !validID(id) {
			continue
		}
		heads[id] = true
		h, err := s.head(id)
		if err != nil {
			errs = append(errs, fmt.Errorf("webhook: %s: %w", name, err))
			continue
		}
		size := int64(0)
		if f, n, err := s.body(id); err == nil { // the attempt reports a missing body
			_ = f.Close()
			size = n
		}
		each(id, h, size)
	}
	for _, name := range names {
		id, body := strings.CutSuffix(name, bodySuffix)
		if strings.HasSuffix(name, userdir.Temporary) || body && !heads[id] {
			errs = append(errs, s.dir.Remove(name))
		}
	}
	return errors.Join(errs...)
}

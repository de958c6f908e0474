package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// A delivery is two files: ID.body, which never changes, and ID.json, its state, which is written last and removed first. So a crash leaves
// a body without a head, or a temporary file; the next start removes both.
const (
	headSuffix = ".json"
	bodySuffix = ".body"
	tempSuffix = ".new"
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

type store struct{ root *os.Root }

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if st, err := os.Stat(dir); err != nil {
		return nil, err
	} else if perm := st.Mode().Perm(); perm&0o077 != 0 && os.PathSeparator == '/' {
		return nil, fmt.Errorf("webhook: %s has secrets, and other users can read it (mode %04o); try: chmod 700 %s", dir, perm, dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &store{root}, nil
}

// validID reports whether an id is a valid part of a file name.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, c := range []byte(id) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// put stores a delivery; when it returns nil, a crash does not lose it.
func (s *store) put(id string, h head, body func(io.Writer) error) error {
	if err := s.write(id+bodySuffix, body); err != nil {
		return err
	}
	return s.putHead(id, h)
}

func (s *store) putHead(id string, h head) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return s.write(id+headSuffix, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// write replaces a file atomically.
func (s *store) write(name string, content func(io.Writer) error) (err error) {
	temp := name + tempSuffix
	f, err := s.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = content(f)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = s.root.Rename(temp, name)
	}
	if err != nil {
		_ = s.root.Remove(temp)
		return err
	}
	return s.sync()
}

// sync writes the directory's entries to disk.
func (s *store) sync() error {
	d, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && os.PathSeparator == '/' {
		return err
	}
	return nil
}

func (s *store) head(id string) (h head, err error) {
	data, err := s.read(id+headSuffix, 64<<10)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	return h, err
}

// body opens a body; the caller closes it.
func (s *store) body(id string) (f *os.File, size int64, err error) {
	if f, err = s.root.Open(id + bodySuffix); err != nil {
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

func (s *store) read(name string, most int64) ([]byte, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("webhook: %s is larger than %d bytes", name, most)
	}
	return data, err
}

// remove removes a delivery.
func (s *store) remove(id string) error {
	err := s.root.Remove(id + headSuffix)
	return errors.Join(err, s.root.Remove(id+bodySuffix))
}

// load calls each for every stored delivery, and removes incomplete files that a crash left. Files that can not be read stay, and are in
// the error.
func (s *store) load(each func(id string, h head, size int64)) error {
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	heads := map[string]bool{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), headSuffix)
		if !ok || !validID(id) {
			continue
		}
		heads[id] = true
		h, err := s.head(id)
		if err != nil {
			errs = append(errs, fmt.Errorf("webhook: %s: %w", e.Name(), err))
			continue
		}
		size := int64(0)
		if st, err := s.root.Stat(id + bodySuffix); err == nil { // the attempt reports a missing body
			size = st.Size()
		}
		each(id, h, size)
	}
	for _, e := range entries {
		id, body := strings.CutSuffix(e.Name(), bodySuffix)
		if strings.HasSuffix(e.Name(), tempSuffix) || body && !heads[id] {
			errs = append(errs, s.root.Remove(e.Name()))
		}
	}
	return errors.Join(errs...)
}

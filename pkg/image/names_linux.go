package image

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A name is a symbolic link, because the kernel replaces one atomically and reads it in one call. Its text is "HEX NAME"; its
// file name is a hash of NAME, which may be longer than a file name can be. The digest of an image's manifest is stored as the
// name "@sha256:…", and so are those of the indexes that led to it.

// digestNames returns these names of an image.
func (r *record) digestNames() []string {
	names := []string{"@" + r.Digest}
	for _, index := range r.Indexes {
		names = append(names, "@"+index)
	}
	return names
}

func (s *Store) namePath(name string) string {
	sum := sha256.Sum256([]byte(name))
	return s.path(namesDir, hex.EncodeToString(sum[:16]))
}

// readName returns the id of the image with a name.
func (s *Store) readName(name string) (id string, err error) {
	id, is, err := readLink(unix.AT_FDCWD, s.namePath(name))
	if err != nil {
		return "", err
	}
	if is != name {
		return "", ErrNotFound
	}
	return id, nil
}

func readLink(dir int, path string) (id, name string, err error) {
	var text [maxLink]byte
	n, err := unix.Readlinkat(dir, path, text[:])
	if errors.Is(err, unix.ENOENT) {
		return "", "", ErrNotFound
	}
	if err != nil {
		return "", "", fmt.Errorf("read the name %s: %w", path, err)
	}
	hex, name, is := strings.Cut(string(text[:n]), " ")
	if !is || len(hex) != 64 || !isHex(hex) {
		return "", "", fmt.Errorf("%s is no name of an image; remove it", path)
	}
	return digestPrefix + hex, name, nil
}

// maxLink is more than the length of an id and the longest name.
const maxLink = 1024

// writeName gives a name to an image, and removes it from another one. The caller has the index lock.
func (s *Store) writeName(name, id string) error {
	hex, err := digestHex(id)
	if err != nil {
		return err
	}
	fresh := s.path(namesDir, "."+rand.Text())
	if err := os.Symlink(hex+" "+name, fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, s.namePath(name)); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return nil
}

// removeName removes a name, if that image has it. The caller has the index lock.
func (s *Store) removeName(name, id string) error {
	if has, err := s.readName(name); err != nil || has != id {
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	}
	return os.Remove(s.namePath(name))
}

// allNames returns the names of every image, sorted, without the digests of manifests.
func (s *Store) allNames() (map[string][]string, error) {
	names := map[string][]string{}
	err := s.eachName(func(id, name string) error {
		if !strings.HasPrefix(name, "@") {
			names[id] = append(names[id], name)
		}
		return nil
	})
	for _, of := range names {
		slices.Sort(of)
	}
	return names, err
}

func (s *Store) eachName(visit func(id, name string) error) error {
	dir, err := os.Open(s.path(namesDir))
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e, ".") {
			continue // unfinished, or left by a killed process
		}
		id, name, err := readLink(int(dir.Fd()), e)
		if errors.Is(err, ErrNotFound) {
			continue // removed meanwhile
		}
		if err == nil {
			err = visit(id, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) namesOf(id string) ([]string, error) {
	names, err := s.allNames()
	return names[id], err
}

// Tag gives an image another name. A name of another image moves to this one.
func (s *Store) Tag(ref, name string) (*Image, error) {
	to, err := ParseReference(name)
	if err != nil {
		return nil, err
	}
	if to.Digest != "" {
		return nil, sandbox.Invalid("image name", "%q: a digest is what an image has, not what it can be called", shorten(name))
	}
	if err := s.tag(ref, to.String()); err != nil {
		return nil, notFound(ref, err)
	}
	return s.Lookup(to.String())
}

func (s *Store) tag(ref, name string) error {
	index, err := s.lock(indexLock, false, indexTimeout)
	if err != nil {
		return err
	}
	defer index.Close()
	r, err := s.lookup(ref)
	if err != nil {
		return err
	}
	if err := s.writeName(name, r.ID); err != nil {
		return err
	}
	return syncDir(s.path(namesDir))
}

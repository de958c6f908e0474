package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The store's directories.
const (
	blobsDir   = "blobs"
	imagesDir  = "images"
	namesDir   = "names"
	rootsDir   = "roots"
	partialDir = "partial"
	workDir    = "work"

	contentLock = "content.lock"
	indexLock   = "index.lock"
)

// Timeouts of locks. Processes hold the index lock for moments, and the exclusive content lock only while they remove blobs.
const (
	indexTimeout   = 10 * time.Second
	contentTimeout = time.Minute
	rootTimeout    = 2 * time.Second
)

// Store is a directory of images. It keeps no file open between calls, so it needs no Close. Several goroutines and processes may
// use it.
type Store struct {
	// Limits bounds added images; change it before the store is shared.
	Limits Limits
	dir    string
}

// DefaultDir returns the directory of images: /var/lib/sandbox-run/images for root, below XDG_DATA_HOME for other users.
func DefaultDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/sandbox-run/images", nil
	}
	data, err := userdir.Data()
	return filepath.Join(data, "images"), err
}

// Open opens a store, and makes a missing one. It must belong to the user, and no other user may be able to write to it. An empty
// dir is DefaultDir.
func Open(dir string) (*Store, error) {
	s, err := open(dir)
	return s, failed("image store", err)
}

func open(dir string) (_ *Store, err error) {
	if dir == "" {
		if dir, err = DefaultDir(); err != nil {
			return nil, err
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	d, err := userdir.OpenDir(dir, userdir.Write)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(d.Fd(), &st); err != nil {
		return nil, err
	}
	isStore := !slices.ContainsFunc(storeDirs(), func(name string) bool {
		var part unix.Stat_t
		return unix.Fstatat(d.Fd(), name, &part, unix.AT_SYMLINK_NOFOLLOW) != nil || part.Mode&unix.S_IFMT != unix.S_IFDIR
	})
	if !isStore {
		if err := unused(dir); err != nil {
			return nil, err
		}
	}
	// Other users of this machine must not be able to execute or write the files of untrusted images.
	if st.Mode&0o077 != 0 {
		if err := unix.Fchmod(d.Fd(), 0o700); err != nil {
			return nil, fmt.Errorf("make %s private: %w", dir, err)
		}
	}
	if !isStore {
		for _, name := range storeDirs() {
			if err := unix.Mkdirat(d.Fd(), name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
				return nil, fmt.Errorf("make %s: %w", filepath.Join(dir, name), err)
			}
		}
	}
	return &Store{dir: dir}, nil
}

// storeDirs lists the directories of a store.
func storeDirs() []string {
	return []string{blobsDir, imagesDir, namesDir, rootsDir, partialDir, workDir}
}

// unused refuses a directory with other files: a store makes its directory private, and removes files that belong to no image. An
// incomplete store is valid.
func unused(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	known := append(storeDirs(), contentLock, indexLock, "pulled", "lost+found") // notes of package remote; the top of a file system
	names, err := f.Readdirnames(len(known) + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return sandbox.Errorf(sandbox.ErrInvalid, "image store", "a directory that is new or empty",
				"%s holds %q and is no store of images", dir, shorten(name))
		}
	}
	return nil
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// lock takes one of the store's two locks. Closing the file releases it.
func (s *Store) lock(name string, shared bool, timeout time.Duration) (*os.File, error) {
	f, err := os.OpenFile(s.path(name), os.O_RDWR|os.O_CREATE, 0o600)
	return lockOpened(f, err, shared, timeout)
}

// lockExisting takes a lock for a caller that only reads. Without a lock file the store was never changed, and lockExisting
// returns nil.
func (s *Store) lockExisting(name string, timeout time.Duration) (*os.File, error) {
	f, err := os.Open(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return lockOpened(f, err, false, timeout)
}

func lockOpened(f *os.File, err error, shared bool, timeout time.Duration) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	if err := userdir.Lock(f, shared, timeout); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// record is images/HEX.json: the image without its names, with the data for unpacking and exporting it again.
type record struct {
	Image
	Parts []part `json:"parts"`
}

// part is a layer, lowest first.
type part struct {
	Digest    string `json:"digest"`
	DiffID    string `json:"diff_id"`
	MediaType string `json:"media_type"`
	Size      int64  `json:"size"`     // of the blob
	Unpacked  int64  `json:"unpacked"` // of the archive in it
}

func (s *Store) readRecord(id string) (*record, error) {
	hex, err := digestHex(id)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(s.path(imagesDir, hex+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil || r.ID != id {
		return nil, fmt.Errorf("%s is damaged; remove it and take the image in again", s.path(imagesDir, hex+".json"))
	}
	return &r, nil
}

// writeFile replaces a small file atomically, also across a power cut.
func writeFile(path string, text []byte) error {
	fresh := filepath.Join(filepath.Dir(path), "."+rand.Text())
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Has reports whether the store has a blob.
func (s *Store) Has(digest string) bool {
	hex, err := digestHex(digest)
	if err != nil {
		return false
	}
	info, err := os.Lstat(s.path(blobsDir, hex))
	return err == nil && info.Mode().IsRegular()
}

// Blob opens a blob as received: a manifest, a configuration or a layer.
func (s *Store) Blob(digest string) (io.ReadCloser, error) { return s.openBlob(digest) }

func (s *Store) openBlob(digest string) (*os.File, error) {
	hex, err := digestHex(digest)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(s.path(blobsDir, hex))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w; pull or import the image again", digest, ErrNotFound)
	}
	return f, err
}

// Lookup finds an image by NAME[:TAG], NAME@sha256:…, sha256:…, its id, or a prefix of its id (at least four digits).
func (s *Store) Lookup(ref string) (*Image, error) {
	r, err := s.lookup(ref)
	if err != nil {
		return nil, notFound(ref, err)
	}
	if r.Names, err = s.namesOf(r.ID); err != nil {
		return nil, failed("image "+shorten(ref), err)
	}
	return &r.Image, nil
}

func notFound(ref string, err error) error {
	if !errors.Is(err, ErrNotFound) {
		return failed("image "+shorten(ref), err)
	}
	return sandbox.Errorf(ErrNotFound, "image "+shorten(ref), "sandbox-run image list", "it is not in the store")
}

func (s *Store) lookup(ref string) (*record, error) {
	if hex, is := strings.CutPrefix(ref, digestPrefix); is {
		if len(hex) == 64 {
			return s.byDigest(ref)
		}
		return s.byPrefix(hex)
	}
	parsed, invalid := ParseReference(ref)
	if invalid == nil {
		r, err := s.byName(parsed)
		if !errors.Is(err, ErrNotFound) {
			return r, err
		}
	}
	if r, err := s.byPrefix(ref); !errors.Is(err, ErrNotFound) {
		return r, err
	}
	if invalid != nil {
		return nil, invalid
	}
	return nil, ErrNotFound
}

func (s *Store) byName(ref Reference) (*record, error) {
	if ref.Digest != "" {
		// The digest decides, whatever the name is.
		return s.byDigest(ref.Digest)
	}
	id, err := s.readName(ref.String())
	if err != nil {
		return nil, err
	}
	return s.readRecord(id)
}

// byDigest finds an image by the digest of its configuration, of its manifest, or of an index that led to it.
func (s *Store) byDigest(digest string) (*record, error) {
	if _, err := digestHex(digest); err != nil {
		return nil, err
	}
	r, err := s.readRecord(digest)
	if !errors.Is(err, ErrNotFound) {
		return r, err
	}
	id, err := s.readName("@" + digest)
	if err != nil {
		return nil, err
	}
	return s.readRecord(id)
}

const shortestPrefix = 4

func (s *Store) byPrefix(prefix string) (*record, error) {
	if len(prefix) < shortestPrefix || len(prefix) > 64 || !isHex(prefix) {
		return nil, ErrNotFound
	}
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, digestPrefix+prefix) })
	switch len(ids) {
	case 0:
		return nil, ErrNotFound
	case 1:
		return s.readRecord(ids[0])
	}
	return nil, fmt.Errorf("%w: %d images have an id that begins so; give more of it", ErrAmbiguous, len(ids))
}

// ids returns the ids of all images, sorted.
func (s *Store) ids() ([]string, error) {
	entries, err := os.ReadDir(s.path(imagesDir))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if hex, is := strings.CutSuffix(e.Name(), ".json"); is && len(hex) == 64 && isHex(hex) {
			ids = append(ids, digestPrefix+hex)
		}
	}
	return ids, nil
}

// List returns all images by name; images without a name come last.
func (s *Store) List() ([]*Image, error) {
	records, err := s.records()
	if err != nil {
		return nil, failed("image list", err)
	}
	var images []*Image
	for _, r := range records {
		images = append(images, &r.Image)
	}
	slices.SortStableFunc(images, func(a, b *Image) int {
		if (len(a.Names) == 0) != (len(b.Names) == 0) {
			return len(b.Names) - len(a.Names)
		}
		return slices.Compare(a.Names, b.Names)
	})
	return images, nil
}

func (s *Store) records() ([]*record, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	names, err := s.allNames()
	if err != nil {
		return nil, err
	}
	var records []*record
	for _, id := range ids {
		r, err := s.readRecord(id)
		if errors.Is(err, ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		r.Names = names[id]
		records = append(records, r)
	}
	return records, nil
}

// failed adds the operation to an error, once. It returns nil without an error.
func failed(op string, err error) error {
	var e *sandbox.Error
	if err == nil || errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e = &sandbox.Error{Op: op, Err: err}
	switch {
	case errors.Is(err, ErrInvalid), errors.Is(err, ErrTooLarge):
		e.Kind = sandbox.ErrRefused
	case errors.Is(err, ErrInUse), errors.Is(err, userdir.ErrBusy):
		e.Kind = sandbox.ErrState
	case errors.Is(err, ErrAmbiguous):
		e.Kind = sandbox.ErrInvalid
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Hint = "sandbox-run image prune, or a store on another disk"
	case errors.Is(err, unix.EROFS):
		e.Hint = "SANDBOX_RUN_IMAGES=DIRECTORY, for a store that can be written to"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Hint = "SANDBOX_RUN_IMAGES=DIRECTORY, for a store of your own"
	}
	return e
}

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// These files are in roots/HEX, beside the root. Unpacking does not wait for the disk. Until a sync has succeeded, a root is
// valid only until the next boot: after a power cut its files may be empty.
const (
	rootName   = "root"
	bootName   = "boot"   // the boot during which the root was unpacked
	syncedName = "synced" // the root is on the disk
)

// Lease protects an unpacked image from removal.
type Lease struct {
	dir   string
	held  *os.File
	once  sync.Once
	close error
}

// Dir returns the image's root: sandboxes may read it, and no process may write to it.
func (l *Lease) Dir() string { return l.dir }

// Close ends the lease. A second call does nothing. The end of the process ends the lease, too.
func (l *Lease) Close() error {
	l.once.Do(func() { l.close = l.held.Close() })
	return l.close
}

// Touch notes that the image is used now: see LastUse. On a disk that can only be read, it does nothing.
func (l *Lease) Touch() {
	now := unix.NsecToTimeval(time.Now().UnixNano())
	_ = unix.Futimes(int(l.held.Fd()), []unix.Timeval{now, now})
}

// LastUse returns the time of the last Touch of an image, or that of its unpacking; zero for one that is not unpacked.
func (s *Store) LastUse(img *Image) time.Time {
	hex, err := digestHex(img.ID)
	if err != nil {
		return time.Time{}
	}
	st, err := os.Stat(s.path(rootsDir, hex))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// Use leases an image for sandboxes. It unpacks an image again whose files a power cut may have damaged.
func (s *Store) Use(img *Image) (*Lease, error) {
	hex, err := digestHex(img.ID)
	if err != nil {
		return nil, failed("use image", err)
	}
	l, err := s.lease(hex)
	if errors.Is(err, ErrNotFound) {
		if err = s.restore(context.Background(), img.ID); err == nil {
			l, err = s.lease(hex)
		}
	}
	if err != nil {
		return nil, notFound(img.ID, err)
	}
	return l, nil
}

// lease takes the shared lock of a complete root. The lock is valid only while the directory has its name.
func (s *Store) lease(hex string) (*Lease, error) {
	path := s.path(rootsDir, hex)
	held, err := openDir(path)
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	err = userdir.Lock(held, true, rootTimeout)
	if err == nil && !sameDir(path, held) || errors.Is(err, userdir.ErrBusy) {
		err = ErrNotFound // being removed, or just removed
	}
	if err == nil && !isWhole(held) {
		err = ErrNotFound
	}
	if err != nil {
		_ = held.Close()
		return nil, err
	}
	return &Lease{dir: filepath.Join(path, rootName), held: held}, nil
}

func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func sameDir(path string, dir *os.File) bool {
	var named, opened unix.Stat_t
	return unix.Lstat(path, &named) == nil && unix.Fstat(int(dir.Fd()), &opened) == nil &&
		named.Dev == opened.Dev && named.Ino == opened.Ino
}

// isWhole reports whether the files of a root have their content.
func isWhole(dir *os.File) bool {
	var st unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), syncedName, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return true
	}
	then, err := os.ReadFile(filepath.Join(dir.Name(), bootName))
	if err != nil {
		return false
	}
	now, err := thisBoot()
	return err == nil && bytes.Equal(then, now)
}

func thisBoot() ([]byte, error) { return os.ReadFile("/proc/sys/kernel/random/boot_id") }

// syncRoots waits until all roots are on the disk and records that: this root, and those of killed processes.
func (s *Store) syncRoots() error {
	entries, err := os.ReadDir(s.path(rootsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.syncRoot(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// syncRoot waits until a root is on the disk and records that.
func (s *Store) syncRoot(hex string) error {
	dir, err := openDir(s.path(rootsDir, hex))
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), syncedName, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil
	}
	if !isWhole(dir) {
		return nil // of an earlier boot: the disk has what it has
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir.Name(), err)
	}
	fd, err := unix.Openat(int(dir.Fd()), syncedName, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("note that %s is on the disk: %w", dir.Name(), err)
	}
	return unix.Close(fd)
}

// restore unpacks an image again from its blobs.
func (s *Store) restore(ctx context.Context, id string) error {
	r, err := s.readRecord(id)
	if err != nil {
		return err
	}
	content, err := s.lock(contentLock, true, contentTimeout)
	if err != nil {
		return err
	}
	defer content.Close()
	w, err := s.newWork()
	if err != nil {
		return err
	}
	defer w.close()
	u, err := s.newUnpacker(w.dir)
	if err != nil {
		return err
	}
	defer u.close()
	for _, p := range r.Parts {
		if _, err := s.unpackPart(ctx, u, p); err != nil {
			return err
		}
	}
	if err := u.seal(ctx); err != nil {
		return err
	}
	index, err := s.lock(indexLock, false, indexTimeout)
	if err != nil {
		return err
	}
	defer index.Close()
	if _, err := s.readRecord(id); err != nil {
		return err // removed meanwhile
	}
	return s.showRoot(w, id)
}

// showRoot moves an unpacked root to its place, unless a valid one is there. The caller has the index lock.
func (s *Store) showRoot(w *work, id string) error {
	hex, err := digestHex(id)
	if err != nil {
		return err
	}
	path := s.path(rootsDir, hex)
	if l, err := s.lease(hex); err == nil {
		return l.Close() // another process was faster
	} else if !errors.Is(err, ErrNotFound) {
		return err
	}
	if err := os.Rename(path, filepath.Join(w.dir, "old")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	boot, err := thisBoot()
	if err != nil {
		return err
	}
	tree := filepath.Join(w.dir, treeName)
	if err := os.WriteFile(filepath.Join(tree, bootName), boot, 0o600); err != nil {
		return err
	}
	return os.Rename(tree, path)
}

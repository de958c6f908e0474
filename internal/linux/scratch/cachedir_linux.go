package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
)

// DefaultCacheDir is the directory of formatted image files and of the files behind disks when Options.CacheDir is
// empty.
const DefaultCacheDir = "/var/cache/sandbox-run"

// cacheDirs are the cache directories that this process has opened; in practice one. They stay open for the process's
// life, so that a disk needs no look-up, and a directory that is replaced afterwards is not used.
var cacheDirs openDirs

type openDirs struct {
	mu   sync.Mutex
	open map[string]*cacheDir
}

type cacheDir struct {
	path string
	at   *os.File

	mu        sync.Mutex // guards templates; locked while one is made, so that it is made once
	templates map[[2]uint64]*template
}

func (r *openDirs) get(path string) (*cacheDir, error) {
	if path == "" {
		path = DefaultCacheDir
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.open[path]; d != nil && d.linked() {
		return d, nil
	}
	at, err := openCacheDir(path)
	if err != nil {
		return nil, err
	}
	if r.open == nil {
		r.open = map[string]*cacheDir{}
	}
	d := &cacheDir{path: path, at: at, templates: map[[2]uint64]*template{}}
	r.open[path] = d // a removed directory stays with its users until the garbage collector closes it
	return d, nil
}

// linked is false for a deleted directory.
func (d *cacheDir) linked() bool {
	var st unix.Stat_t
	return unix.Fstat(int(d.at.Fd()), &st) == nil && st.Nlink > 0
}

// openCacheDir opens the directory, which it makes if missing, and refuses one that another user could write to: a user
// who can change an image file can give the kernel a crafted file system.
func openCacheDir(path string) (*os.File, error) {
	fail := func(op string, err error) (*os.File, error) {
		return nil, fmt.Errorf("scratch: %s cache directory %s: %w%s", op, path, err, hintFor(err))
	}
	if !filepath.IsAbs(path) {
		return fail("open", fmt.Errorf("not an absolute path: %w", unix.EINVAL))
	}
	dir, op, err := registry.OpenPrivate(path, true)
	if op == "use" {
		err = fmt.Errorf("%w (fix: chown %d %s && chmod 0700 %s)", err, unix.Geteuid(), path, path)
	}
	if err != nil {
		return fail(op, err)
	}
	return dir, nil
}

// unnamed makes a file without a name: it is gone with its last user, however this process ends.
func (d *cacheDir) unnamed() (*os.File, error) {
	// By the descriptor of the verified directory, not by its path.
	fd, err := unix.Openat(int(d.at.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		hint := hintFor(err)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
			hint = "; its file system has no O_TMPFILE: use a cache directory on ext4, xfs, btrfs or tmpfs"
		}
		return nil, fmt.Errorf("scratch: make an unnamed file in %s: %w%s", d.path, err, hint)
	}
	return os.NewFile(uintptr(fd), "scratch backing"), nil
}

// link gives an unnamed file its name, and replaces an existing file. Of two processes that do so at once, one wins.
func (d *cacheDir) link(f *os.File, name string) error {
	at := int(d.at.Fd())
	for range 100 {
		err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), at, name, unix.AT_SYMLINK_FOLLOW)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return unix.EEXIST
}

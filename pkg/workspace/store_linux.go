package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Workspace is a workspace in use. Until Close, no other process can open it.
type Workspace struct {
	name string
	path string // without symbolic links
	dir  *os.File
	// floor is the free space that stays on the file system during Watch; 0 is the default.
	floor uint64
	// project is the id whose quota is the cap; 0 if the cap is polled, for the reason in gap.
	project uint32
	gap     sandbox.Gap

	mu     sync.Mutex // guards the fields below
	store  *userdir.Dir
	lock   *os.File
	meta   metadata
	used   Usage // the last measurement, and what Put has added since
	closed bool
}

// Name returns the name of the workspace.
func (w *Workspace) Name() string { return w.name }

// Volume returns the workspace as a writable volume at /workspace.
func (w *Workspace) Volume() sandbox.Volume {
	v := sandbox.Volume{Source: w.path, Target: sandbox.WorkspaceDir, Writable: true, Cap: w.meta.Cap, CapGap: w.gap}
	if w.project != 0 {
		v.Quota = w
	}
	return v
}

// Cap returns the most bytes and files of the workspace.
func (w *Workspace) Cap() (sandbox.Size, int) { return w.meta.Cap, w.meta.Inodes }

// Open locks a workspace for this process, and makes it if it does not exist. An empty store is DefaultStore. Open refuses a
// workspace that has more than its cap, and one that another run uses for longer than Options.Wait.
func Open(ctx context.Context, store, name string, o Options) (_ *Workspace, err error) {
	if err := errors.Join(CheckName(name), o.validate()); err != nil {
		return nil, err
	}
	w := &Workspace{name: name, floor: uint64(o.Floor)}
	defer func() {
		if err != nil {
			w.release()
		}
	}()
	if w.store, err = openStore(store, userdir.Write); err != nil {
		return nil, failed(name, err)
	}
	settle, err := reserve(w.store, name, o)
	if err != nil {
		return nil, err
	}
	defer settle()
	if w.lock, err = acquire(ctx, w.store, name, o.Wait); err != nil {
		return nil, err
	}
	if w.meta, err = readMetadata(w.store, name); err != nil {
		return nil, failed(name, err)
	}
	if w.dir, err = openTree(w.store, name, true); err != nil {
		return nil, failed(name, err)
	}
	if w.path, err = os.Readlink(fdPath(w.dir)); err != nil {
		return nil, failed(name, err)
	}
	if o.Cap != 0 {
		w.meta.Cap = o.Cap
	}
	if o.Inodes != 0 {
		w.meta.Inodes = o.Inodes
	}
	if w.used, err = w.Usage(ctx); err != nil {
		return nil, err
	}
	if most := w.bound(); w.used.Bytes > most.bytes || w.used.Inodes > most.inodes || w.used.Hidden > 0 {
		return nil, w.refusal(w.used.over(w.meta.Cap, w.meta.Inodes))
	}
	if err := w.enforceCap(ctx); err != nil {
		return nil, err
	}
	if err := w.note(); err != nil {
		return nil, failed(name, err)
	}
	return w, nil
}

const (
	// storeLock is the lock of the process that adds a workspace to a store with bounds.
	storeLock    = ".store.lock"
	storeTimeout = 10 * time.Second
)

// reserve refuses a workspace for which the store has no room. It locks the store against other additions until the caller calls settle.
func reserve(store *userdir.Dir, name string, o Options) (settle func(), err error) {
	if o.Most == (Most{}) {
		return func() {}, nil
	}
	f, err := store.Open(storeLock, userdir.Write)
	if err != nil {
		return nil, failed(name, err)
	}
	if err := userdir.Lock(f, false, storeTimeout); err != nil {
		_ = f.Close()
		return nil, failed(name, err)
	}
	settle = func() { _ = f.Close() }
	if err := o.Most.fits(store, name, o.Cap); err != nil {
		settle()
		return nil, err
	}
	return settle, nil
}

// fits returns an error if the store has no room for a workspace with that cap.
func (m Most) fits(store *userdir.Dir, name string, most sandbox.Size) error {
	names, err := store.Names()
	if err != nil {
		return failed(name, err)
	}
	others, taken, own := 0, sandbox.Size(0), sandbox.Size(0)
	for _, other := range names {
		if CheckName(other) != nil || !isDir(store, other) {
			continue // not a workspace
		}
		meta, err := readMetadata(store, other)
		switch {
		case err != nil:
			return failed(other, err)
		case other == name:
			own = meta.Cap
		default:
			others++
			taken += meta.Cap
		}
	}
	switch {
	case most == 0 && own == 0:
		most = DefaultCap
	case most == 0:
		most = own
	}
	refused := func(op, format string, args ...any) error {
		return sandbox.Errorf(sandbox.ErrRefused, op, "use an existing workspace, or a smaller cap",
			"%w: "+format, append([]any{ErrMost}, args...)...)
	}
	switch {
	case own == 0 && m.Workspaces > 0 && others >= m.Workspaces:
		return refused("workspace", "there are %d, as many as may be", others)
	case most > own && m.Bytes > 0 && taken+most > m.Bytes:
		return refused("workspace-cap", "%s beside the %s of %d others are above %s, the most of all together", most, taken, others, m.Bytes)
	}
	return nil
}

// refusal returns the error for a workspace that exceeds its cap.
func (w *Workspace) refusal(what string) error {
	hint := "--workspace-cap or --workspace-inodes with more, or sandbox-run workspace rm " + w.name
	return sandbox.Errorf(sandbox.ErrRefused, "workspace "+w.name, hint, "it %s", what)
}

// note writes the time of use and the cap to the metadata.
func (w *Workspace) note() error {
	now := time.Now().UTC().Truncate(time.Second)
	if w.meta.Created.IsZero() {
		w.meta.Created = now
	}
	w.meta.LastUsed = now
	pid := []byte(strconv.Itoa(os.Getpid()) + "\n")
	if err := w.lock.Truncate(0); err != nil {
		return err
	}
	if _, err := w.lock.WriteAt(pid, 0); err != nil {
		return err
	}
	return writeMetadata(w.store, w.name, w.meta)
}

// Close releases the lock. A second call does nothing.
func (w *Workspace) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.meta.LastUsed = time.Now().UTC().Truncate(time.Second)
	err := writeMetadata(w.store, w.name, w.meta)
	_ = w.lock.Truncate(0) // the lock decides; the pid in the file is only for messages
	w.release()
	return failed(w.name, err)
}

func (w *Workspace) release() {
	for _, f := range []*os.File{w.dir, w.lock} {
		if f != nil {
			_ = f.Close()
		}
	}
	if w.store != nil {
		_ = w.store.Close()
	}
}

func failed(name string, err error) error {
	var e *sandbox.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &sandbox.Error{Op: "workspace " + name, Err: err}
}

func openStore(store string, purpose userdir.Purpose) (*userdir.Dir, error) {
	if store == "" {
		var err error
		if store, err = DefaultStore(); err != nil {
			return nil, err
		}
	}
	store, err := filepath.Abs(store)
	if err != nil {
		return nil, err
	}
	return userdir.OpenDir(store, purpose)
}

// leastTimeout outlasts processes that only check whether a workspace is in use.
const leastTimeout = 50 * time.Millisecond

// acquire takes the lock of a name. It tries again if the lock file was removed while it waited.
func acquire(ctx context.Context, store *userdir.Dir, name string, wait time.Duration) (*os.File, error) {
	deadline := time.Now().Add(max(wait, leastTimeout))
	for {
		f, err := store.Open(lockName(name), userdir.Write)
		if err != nil {
			return nil, failed(name, err)
		}
		err = userdir.Lock(f, false, min(time.Until(deadline), leastTimeout))
		if err == nil && store.Is(lockName(name), f) {
			return f, nil
		}
		pid := holder(f)
		_ = f.Close()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && !errors.Is(err, userdir.ErrBusy):
			return nil, failed(name, err)
		case time.Now().After(deadline):
			return nil, inUse(name, pid, wait)
		}
	}
}

// holder returns the pid in a lock file, or 0.
func holder(f *os.File) int {
	var text [20]byte
	n, _ := f.ReadAt(text[:], 0) // an empty file gives 0 as well
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

const maxMetadata = 4096

func readMetadata(store *userdir.Dir, name string) (metadata, error) {
	fresh := metadata{Cap: DefaultCap, Inodes: DefaultInodes}
	f, err := store.Open(metaName(name), userdir.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	if err != nil {
		return fresh, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMetadata))
	if err != nil {
		return fresh, err
	}
	m, err := parseMetadata(text)
	if err != nil {
		return fresh, fmt.Errorf("%s: %w; remove that file, and it has the default cap again", f.Name(), err)
	}
	return m, nil
}

// writeMetadata replaces the file atomically: a reader finds the old one or the new one.
func writeMetadata(store *userdir.Dir, name string, m metadata) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	fresh := metaName(name) + ".new"
	f, err := store.Open(fresh, userdir.Write)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(append(text, '\n'), 0); err != nil {
		return err
	}
	return store.Rename(fresh, metaName(name))
}

// openTree opens the directory of a workspace. An earlier program may have changed its mode.
func openTree(store *userdir.Dir, name string, create bool) (*os.File, error) {
	if create {
		if err := unix.Mkdirat(store.Fd(), name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make %s: %w", filepath.Join(store.Path(), name), err)
		}
	}
	fd, err := openBeneath(store.Fd(), name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Join(store.Path(), name), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != unix.Geteuid() && create {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("use %s: it belongs to user %d, not to %d", filepath.Join(store.Path(), name), st.Uid, unix.Geteuid())
	}
	if create && st.Mode&0o7777 != 0o700 {
		if err := unix.Fchmod(fd, 0o700); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("chmod %s: %w", filepath.Join(store.Path(), name), err)
		}
	}
	return os.NewFile(uintptr(fd), filepath.Join(store.Path(), name)), nil
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// List returns the workspaces of a store, by name. An empty store is DefaultStore; a store that does not exist has none.
func List(ctx context.Context, store string) ([]Info, error) {
	dir, err := openStore(store, userdir.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &sandbox.Error{Op: "workspaces", Err: err}
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, &sandbox.Error{Op: "workspaces", Err: err}
	}
	slices.Sort(names)
	var infos []Info
	for _, name := range names {
		if CheckName(name) != nil || !isDir(dir, name) {
			continue // not a workspace
		}
		info, err := describe(ctx, dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, failed(name, err)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// Show returns the description of one workspace.
func Show(ctx context.Context, store, name string) (Info, error) {
	dir, err := openStoreOf(store, name)
	if err != nil {
		return Info{}, err
	}
	defer dir.Close()
	info, err := describe(ctx, dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, unknown(name)
	}
	return info, failed(name, err)
}

// openStoreOf opens the store of an existing workspace.
func openStoreOf(store, name string) (*userdir.Dir, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	dir, err := openStore(store, userdir.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unknown(name)
	}
	return dir, failed(name, err)
}

func isDir(dir *userdir.Dir, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir.Fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

func describe(ctx context.Context, store *userdir.Dir, name string) (Info, error) {
	info := Info{Name: name, Path: filepath.Join(store.Path(), name)}
	tree, err := openTree(store, name, false)
	if err != nil {
		return info, err
	}
	defer tree.Close()
	m, err := readMetadata(store, name)
	if err != nil {
		return info, err
	}
	info.Cap, info.Inodes, info.Created, info.LastUsed = m.Cap, m.Inodes, m.Created, m.LastUsed
	if f, err := store.Open(lockName(name), userdir.Read); err == nil {
		defer f.Close()
		if errors.Is(userdir.Lock(f, true, 0), userdir.ErrBusy) {
			info.Locked, info.LockedBy = true, holder(f)
		}
	}
	if ownsProject(tree, m) {
		if info.Usage, info.Enforced, err = readProject(tree, m.Project); err == nil && info.Enforced {
			return info, nil
		}
	}
	// The size is exact up to a bound, so that a huge tree can not keep the caller waiting.
	info.Usage, err = countTree(ctx, int(tree.Fd()), bound{bytes: 1 << 62, inodes: max(2*m.Inodes, 1<<20)})
	return info, err
}

// Remove removes a workspace and its files. It refuses a workspace in use. If ctx ends first, a second call removes the rest.
func Remove(ctx context.Context, store, name string) error {
	dir, err := openStoreOf(store, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if !isDir(dir, name) {
		return unknown(name)
	}
	lock, err := acquire(ctx, dir, name, 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	dropProject(dir, name)
	if err := removal.Tree(ctx, filepath.Join(dir.Path(), name)); err != nil {
		return &sandbox.Error{Op: "workspace " + name, Err: err,
			Hint: "sandbox-run workspace rm " + name + ", which removes the rest"}
	}
	// The lock goes last: until then no process can make the workspace again.
	return failed(name, errors.Join(dir.Remove(metaName(name)+".new"), dir.Remove(metaName(name)), dir.Remove(lockName(name))))
}

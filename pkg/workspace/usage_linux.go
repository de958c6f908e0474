package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/quota"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Usage looks at what the workspace holds. Where the kernel enforces the cap, it is what the kernel has counted: deleted files that are
// open are in it, and a file with two names counts once. Otherwise counting stops where the cap is exceeded: then it is Partial.
func (w *Workspace) Usage(ctx context.Context) (u Usage, err error) {
	if w.project != 0 {
		u, _, err = readProject(w.dir, w.project)
	} else {
		u, err = look(ctx, int(w.dir.Fd()), w.bound())
	}
	if err != nil {
		return u, failed(w.name, err)
	}
	return u, nil
}

// bound is where a look stops. What ext4 needs to find the blocks of files is not refused at the cap, and must not make a full
// workspace unusable.
func (w *Workspace) bound() bound {
	b := bound{bytes: w.meta.Cap, inodes: w.meta.Inodes}
	if w.meta.Project != 0 {
		b.bytes += b.bytes / metadataShare
	}
	return b
}

// How often Watch looks, and how often in a row it may fail to see everything.
const (
	leastPause   = 250 * time.Millisecond
	pausePerLook = 20 // a look may cost a twentieth of the time
	hurryPerLook = 3  // and a quarter of it while the file system fills quickly
	blindLooks   = 8
	// spacePause is how often the free space of the file system is asked for. That costs two microseconds.
	spacePause = 10 * time.Millisecond
)

// Watch looks at the workspace again and again until ctx ends, and calls over once, the first time it holds more than its
// cap, or hides what it holds for several looks in a row. It looks at once when the file system has lost more space than was left below the
// cap. It returns after that call, or when ctx ends; an error means that it could not look, or that the file system is
// below its floor of free space (scratch.ErrFloor), by whatever filled it, and that nothing is watched any more: the run is to end.
func (w *Workspace) Watch(ctx context.Context, over func(Usage)) error {
	ticker := time.NewTicker(spacePause)
	defer ticker.Stop()
	// The store's space is the file system's; in a directory with a quota the kernel reports what is left of that.
	before, _, err := scratch.Space(w.store.Fd())
	if err != nil {
		return failed(w.name, err)
	}
	w.mu.Lock()
	left := uint64(w.meta.Cap - min(w.meta.Cap, w.used.Bytes))
	w.mu.Unlock()
	failures, hidden := 0, 0
	due, hurry := time.Now().Add(leastPause), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		free, floor, err := scratch.Space(w.store.Fd())
		if err != nil {
			return failed(w.name, err)
		}
		if w.floor != 0 {
			floor = w.floor
		}
		begin := time.Now()
		switch {
		case free < floor:
			return failed(w.name, fmt.Errorf("%w: %d bytes are free, the disk floor is %d", scratch.ErrFloor, free, floor))
		case w.project != 0, begin.Before(due) && (begin.Before(hurry) || before-min(before, free) <= left):
			continue
		}
		u, err := w.Usage(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if failures++; failures == blindLooks {
				return err
			}
		default:
			failures, before, left = 0, free, uint64(w.meta.Cap-min(w.meta.Cap, u.Bytes))
			if hidden++; u.Hidden == 0 {
				hidden = 0
			}
			if u.Bytes > w.meta.Cap || u.Inodes > w.meta.Inodes || hidden == blindLooks {
				over(u)
				return nil
			}
		}
		took := time.Since(begin)
		due, hurry = time.Now().Add(max(leastPause, pausePerLook*took)), time.Now().Add(hurryPerLook*took)
	}
}

// bound is where a look stops.
type bound struct {
	bytes  sandbox.Size
	inodes int
}

// look counts what is in a directory tree that hostile code may be changing meanwhile. It goes down one directory at a time,
// each opened beneath the one before, and back up by "..", believed only if that is the very directory it came from: so
// depth costs a few words and no descriptor, beyond those kept for the first levels. What has moved away is Hidden.
func look(ctx context.Context, root int, most bound) (Usage, error) {
	return walkTree(root, &looker{ctx: ctx, most: most})
}

func walkTree(root int, l *looker) (Usage, error) {
	l.linked = map[uint64]struct{}{}
	err := l.walk(root)
	for _, f := range l.stack {
		if f.fd >= 0 {
			_ = unix.Close(f.fd)
		}
	}
	if errors.Is(err, errEnough) {
		l.usage.Partial, err = true, nil
	}
	return l.usage, err
}

const (
	keptLevels = 32 // whose descriptors are kept
	nameBatch  = 256
)

var errEnough = errors.New("more than the bound")

type looker struct {
	ctx     context.Context
	most    bound
	usage   Usage
	linked  map[uint64]struct{} // inodes with several names: as many as are counted, at most
	stack   []level
	waiting int    // directories on the stack that were not looked into yet
	project uint32 // that what is found gets, but for the root; 0 is none
}

// level is a directory on the way down.
type level struct {
	fd       int // -1 where it is not kept
	dev, ino uint64
	subs     []string
}

func (l *looker) walk(root int) error {
	fd, err := unix.Openat(root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := l.enter(fd); err != nil {
		return err
	}
	for l.waiting > 0 {
		top := &l.stack[len(l.stack)-1]
		if len(top.subs) == 0 {
			if err := l.climb(); err != nil {
				return err
			}
			continue
		}
		name := top.subs[len(top.subs)-1]
		top.subs = top.subs[:len(top.subs)-1]
		l.waiting--
		fd, err := openBeneath(top.fd, name)
		switch {
		case err == nil:
			if err := l.enter(fd); err != nil {
				return err
			}
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // it has just become something else
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
			return err
		default:
			l.usage.Hidden++
		}
	}
	return nil
}

// enter counts what is in a directory and puts it on the stack, which owns the descriptor from then on.
func (l *looker) enter(fd int) error {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	l.stack = append(l.stack, level{fd: fd, dev: st.Dev, ino: st.Ino})
	if err != nil {
		return err
	}
	if above := len(l.stack) - 2; above >= keptLevels {
		_ = unix.Close(l.stack[above].fd)
		l.stack[above].fd = -1
	}
	l.usage.Bytes += sandbox.Size(st.Blocks) * 512
	if len(l.stack) > 1 { // the workspace itself is not one of its files
		l.usage.Inodes++
		if l.project != 0 {
			if err := quota.SetProject(fd, l.project, true); err != nil {
				return err
			}
		}
	}
	return l.count(&l.stack[len(l.stack)-1])
}

// count looks at the entries of one directory.
func (l *looker) count(at *level) error {
	own, err := unix.Openat(at.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(own), ".")
	defer dir.Close()
	for {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(nameBatch)
		for _, name := range names {
			if err := l.entry(at, name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // the directory itself is gone
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *looker) entry(at *level, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // it is gone again
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		at.subs = append(at.subs, name)
		l.waiting++
	} else {
		l.usage.Inodes++
		_, again := l.linked[st.Ino]
		if again {
			l.usage.again++
		} else {
			l.usage.Bytes += sandbox.Size(st.Blocks) * 512
		}
		if st.Nlink > 1 {
			l.linked[st.Ino] = struct{}{}
		}
		if l.project != 0 && st.Mode&unix.S_IFMT == unix.S_IFREG {
			if err := tagFile(at.fd, name, l.project); err != nil {
				return err
			}
		}
	}
	// Directories that wait count already, or a wide tree of them would cost memory without bound.
	if l.usage.Bytes > l.most.bytes || l.usage.Inodes+l.waiting > l.most.inodes {
		l.usage.Inodes += l.waiting
		return errEnough
	}
	return nil
}

// climb leaves the directory on top for the one it was entered from, or the nearest above it that can still be found.
func (l *looker) climb() error {
	done := l.stack[len(l.stack)-1]
	l.stack = l.stack[:len(l.stack)-1]
	defer unix.Close(done.fd)
	parent := &l.stack[len(l.stack)-1]
	if parent.fd >= 0 {
		return nil
	}
	fd, err := unix.Openat(done.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Dev == parent.dev && st.Ino == parent.ino {
			parent.fd = fd
			return nil
		}
		_ = unix.Close(fd)
	}
	// It was moved meanwhile. What waits between here and the nearest descriptor is lost to this look.
	for l.stack[len(l.stack)-1].fd < 0 {
		lost := l.stack[len(l.stack)-1]
		l.stack = l.stack[:len(l.stack)-1]
		l.waiting -= len(lost.subs)
		l.usage.Hidden += len(lost.subs)
	}
	l.usage.Hidden++
	return nil
}

// openBeneath opens a directory in a directory: never a link, never another file system. One that its owner has closed is
// opened for him, since he is us; a program could hide there what it holds otherwise.
func openBeneath(at int, name string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: beneath,
	}
	fd, err := openat2(at, name, how)
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	how.Flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	closed, pathErr := openat2(at, name, how)
	if pathErr != nil {
		return -1, pathErr
	}
	defer unix.Close(closed)
	var st unix.Stat_t
	if unix.Fstat(closed, &st) != nil || int(st.Uid) != unix.Geteuid() {
		return -1, err
	}
	// By its descriptor: what the name means may change at any moment.
	link := "/proc/self/fd/" + strconv.Itoa(closed)
	if err := unix.Chmod(link, st.Mode&0o7777|0o500); err != nil {
		return -1, fmt.Errorf("open a closed directory: %w", err)
	}
	return unix.Open(link, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func openat2(at int, name string, how unix.OpenHow) (fd int, err error) {
	for range 100 {
		fd, err = unix.Openat2(at, name, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) { // EAGAIN: something was renamed meanwhile
			break
		}
	}
	return fd, err
}

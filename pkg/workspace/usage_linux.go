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

// Usage measures the workspace. If the kernel enforces the cap, Usage is the kernel's count: it includes deleted files that are
// open, and counts a file with two names once. Otherwise counting stops above the cap, and the result is Partial.
func (w *Workspace) Usage(ctx context.Context) (u Usage, err error) {
	if w.project != 0 {
		u, _, err = readProject(w.dir, w.project)
	} else {
		u, err = countTree(ctx, int(w.dir.Fd()), w.bound())
	}
	return u, failed(w.name, err)
}

// bound is where a count stops. ext4 does not refuse blocks that describe extents at the cap; these must not make a full
// workspace unusable.
func (w *Workspace) bound() bound {
	b := bound{bytes: w.meta.Cap, inodes: w.meta.Inodes}
	if w.meta.Project != 0 {
		b.bytes += b.bytes / metadataShare
	}
	return b
}

// The intervals of Watch, and how many counts in a row may be incomplete.
const (
	leastPause   = 250 * time.Millisecond
	pausePerLook = 20 // a count may take a twentieth of the time
	hurryPerLook = 3  // and a quarter of it while the file system fills quickly
	blindLooks   = 8
	// spacePause is the interval between two queries for free space, which take two microseconds each.
	spacePause = 10 * time.Millisecond
)

// Watch measures the workspace until ctx ends. It calls over once, when the workspace first exceeds its cap or several counts in
// a row find hidden directories, and then returns. It measures at once when the file system has lost more space than was left
// below the cap. An error means that the workspace can not be measured, or that the file system is below its floor of free space
// (scratch.ErrFloor). Watch then observes nothing any more, and the caller has to end the run.
func (w *Workspace) Watch(ctx context.Context, over func(Usage)) error {
	ticker := time.NewTicker(spacePause)
	defer ticker.Stop()
	// The store's free space is that of the file system; in a directory with a quota, the kernel reports what is left of the quota.
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
			if most := w.bound(); u.Bytes > most.bytes || u.Inodes > most.inodes || hidden == blindLooks {
				over(u)
				return nil
			}
		}
		took := time.Since(begin)
		due, hurry = time.Now().Add(max(leastPause, pausePerLook*took)), time.Now().Add(hurryPerLook*took)
	}
}

// bound is where a count stops.
type bound struct {
	bytes  sandbox.Size
	inodes int
}

// countTree counts a directory tree that a hostile program may be changing. It descends one directory at a time, opens each beneath
// its parent, and returns by "..", which it accepts only if that is the directory it came from. So depth costs a few words and no
// descriptor, except for the first levels. Directories that have moved away count as Hidden.
func countTree(ctx context.Context, root int, most bound) (Usage, error) {
	return walkTree(root, &treeCounter{ctx: ctx, most: most})
}

func walkTree(root int, l *treeCounter) (Usage, error) {
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
	keptLevels = 32 // levels whose descriptors stay open
	nameBatch  = 256
)

var errEnough = errors.New("more than the bound")

type treeCounter struct {
	ctx     context.Context
	most    bound
	usage   Usage
	linked  map[uint64]struct{} // inodes with several names; bounded by the count
	stack   []level
	waiting int    // directories on the stack that are not read yet
	project uint32 // id for every entry except the root; 0: none
}

// level is one directory of the descent.
type level struct {
	fd       int // -1 if it is closed
	dev, ino uint64
	subs     []string
}

func (l *treeCounter) walk(root int) error {
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
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // replaced meanwhile
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
			return err
		default:
			l.usage.Hidden++
		}
	}
	return nil
}

// enter counts the entries of a directory and pushes it on the stack, which then owns the descriptor.
func (l *treeCounter) enter(fd int) error {
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
	if len(l.stack) > 1 { // the workspace's directory does not count as one of its files
		l.usage.Inodes++
		if l.project != 0 {
			if err := quota.SetProject(fd, l.project, true); err != nil {
				return err
			}
		}
	}
	return l.count(&l.stack[len(l.stack)-1])
}

// count counts the entries of one directory.
func (l *treeCounter) count(at *level) error {
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
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // the directory was removed
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *treeCounter) entry(at *level, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // removed meanwhile
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
	// Waiting directories count already; otherwise a wide tree takes memory without bound.
	if l.usage.Bytes > l.most.bytes || l.usage.Inodes+l.waiting > l.most.inodes {
		l.usage.Inodes += l.waiting
		return errEnough
	}
	return nil
}

// climb returns to the parent of the top directory, or to the nearest ancestor that can still be found.
func (l *treeCounter) climb() error {
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
	// The directory has moved. This count misses the entries between here and the nearest open descriptor.
	for l.stack[len(l.stack)-1].fd < 0 {
		lost := l.stack[len(l.stack)-1]
		l.stack = l.stack[:len(l.stack)-1]
		l.waiting -= len(lost.subs)
		l.usage.Hidden += len(lost.subs)
	}
	l.usage.Hidden++
	return nil
}

// openBeneath opens a directory in a directory: never a link, never another file system. It makes a directory without read
// permission readable, because a program could hide files there; this process is its owner.
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
	// By its descriptor: a program can change the meaning of the name at any time.
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
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) { // EAGAIN: a rename happened meanwhile
			break
		}
	}
	return fd, err
}

package zygote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// PathsVariable is set in the environment of an interpreter whose driver writes its import paths to standard output: a
// NUL, and another after every path. Only the driver may print.
const PathsVariable = "SANDBOX_RUN_PATHS"

// maxPaths bounds the output of a driver.
const maxPaths = 4 << 20

// isolated makes Python load only its standard library: no .pth file, no sitecustomize. The file that follows is
// executed.
const isolated = "-IS"

// trustedImports makes the interpreter list its import paths, in a process without capabilities, and checks that only
// root can change all of them. A directory is checked with its whole content: the imports of a module are known only
// after it has run.
//
// Code of another user could list any paths. So every file is checked before it is executed: first the library beside
// the interpreter, then the paths that the interpreter lists with that library alone, and then those that it lists when
// it has started as a zygote does.
func (o *Options) trustedImports(ctx context.Context) error {
	t := tree{ctx: ctx, seen: map[[2]uint64]bool{}}
	resolved, err := follow(o.Args[0])
	if err != nil {
		return err
	}
	for _, file := range []string{o.Args[0], resolved} {
		home := path.Dir(path.Dir(file))
		libraries, _ := filepath.Glob(home + "/lib*/*python*") // fails for patterns only
		if err := o.check(&t, append(libraries, home+"/pyvenv.cfg", path.Dir(file)+"/pyvenv.cfg")); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{o.Args[0], isolated, o.Files[0].Path}, o.Args} {
		paths, err := o.importPaths(ctx, args)
		if err == nil {
			err = o.check(&t, paths)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check checks the paths that an interpreter has listed.
func (o *Options) check(t *tree, paths []string) error {
	for _, p := range paths {
		if !path.IsAbs(p) {
			p = path.Join(o.Dir, p)
		}
		p = path.Clean(p)
		if slices.ContainsFunc(o.Scratch, func(dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }) {
			continue // its own, and empty but for the driver
		}
		// Where a path is missing, only root can create it: its parent directories were checked.
		if err := t.check(p); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// importPaths executes the interpreter and returns its driver's output.
func (o *Options) importPaths(ctx context.Context, args []string) ([]string, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(p[1]), "paths")
	defer theirs.Close()
	ours, err := pollable(p[0], "paths")
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		return nil, err
	}
	defer null.Close()
	program := o.program()
	program.Args = args
	program.Stdio, program.Env = [3]int{int(null.Fd()), p[1], p[1]}, append(slices.Clone(o.Env), PathsVariable+"=1")
	pid, stage, err := clone.StartProgram(program)
	if err != nil {
		return nil, fmt.Errorf("execute %s (stage %s): %w", o.Args[0], stage, err)
	}
	_ = theirs.Close()
	stop := context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	text, err := io.ReadAll(io.LimitReader(ours, maxPaths))
	pidfd, pidErr := unix.PidfdOpen(pid, 0) // it is not reaped yet, so the pid is still valid
	if pidErr != nil {
		go spawn.Reap(pid) // the removal of its cgroup ends it
		return nil, fmt.Errorf("pidfd: %w", pidErr)
	}
	_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	_ = unix.Close(pidfd)
	spawn.Reap(pid)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("read what the interpreter imports from: %w", err)
	}
	said, rest, ok := bytes.Cut(text, []byte{0})
	paths := strings.Split(strings.TrimSuffix(string(rest), "\x00"), "\x00")
	switch {
	case len(said) > 0 && ok:
		return nil, fmt.Errorf("the interpreter prints at its start, and each of its forks would: %.1000q", said)
	case !ok || paths[0] == "":
		return nil, fmt.Errorf("the interpreter does not say what it imports from; it says: %.1000q", said)
	}
	return paths, nil
}

// tree records the checked files of an interpreter.
type tree struct {
	ctx  context.Context
	seen map[[2]uint64]bool // directories, by device and inode
}

// check returns an error unless only root may change a file, or a directory with its whole content, and its parent
// directories.
func (t *tree) check(p string) error {
	if err := trusted(p); err != nil {
		return err
	}
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	dir := os.NewFile(uintptr(fd), p)
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	id := [2]uint64{st.Dev, st.Ino}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || t.seen[id] {
		return nil
	}
	t.seen[id] = true
	if err := t.ctx.Err(); err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		at := path.Join(p, name)
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if err := rootsOwn(at, &st); err != nil {
			return err
		}
		if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFDIR || kind == unix.S_IFLNK {
			if err := t.check(at); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

// rootsOwn returns an error unless a file is root's and no other user may write to it. An access control list that lets
// another user write shows in the group's bits.
func rootsOwn(p string, st *unix.Stat_t) error {
	if st.Uid == 0 && (st.Mode&unix.S_IFMT == unix.S_IFLNK || st.Mode&0o022 == 0) {
		return nil
	}
	return &sandbox.Untrusted{Path: p, UID: st.Uid, GID: st.Gid, Mode: st.Mode & 0o7777}
}

// trusted returns an error unless a file, and every directory and link of its path, is root's and only root may write to
// it.
func trusted(file string) error {
	_, err := follow(file)
	return err
}

// follow does the same as trusted, and returns the path without links.
func follow(file string) (string, error) {
	at, rest := "/", strings.TrimPrefix(path.Clean(file), "/")
	var open error // why the directory before is not only root's
	for links := 0; ; {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			if open != nil { // any user can create files there
				return "", open
			}
			return "", fmt.Errorf("%s: %w", at, err)
		}
		// In a directory with the sticky bit, other users can neither remove nor rename root's files.
		sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Uid == 0 && st.Mode&unix.S_ISVTX != 0 && rest != ""
		if open = rootsOwn(at, &st); open != nil && !sticky {
			return "", open
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			target, err := os.Readlink(at)
			if links++; err != nil || links > maxLinks {
				return "", fmt.Errorf("%s: %w", at, unix.ELOOP)
			}
			if at = path.Dir(at); path.IsAbs(target) {
				at = "/"
			}
			rest = strings.TrimLeft(target+"/"+rest, "/") // not cleaned: .. leads out of where a link leads
			continue
		}
		if rest == "" {
			return at, nil
		}
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		rest = strings.TrimLeft(rest, "/")
		at = path.Join(at, name) // which has no links, so that .. is the one above
	}
}

const maxLinks = 40

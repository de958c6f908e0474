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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// PathsVariable is set in the environment of an interpreter whose driver is to write what it imports from to its standard output: a NUL,
// and after every path another. Nothing but the driver may print.
const PathsVariable = "SANDBOX_RUN_PATHS"

// maxPaths bounds what a driver may write.
const maxPaths = 4 << 20

// isolated has Python load its standard library and nothing else: no .pth file, no sitecustomize. The file that follows is executed.
const isolated = "-IS"

// trustedImports has the interpreter name what it imports from, in a process without capabilities, and makes sure that all of it is
// only root's to change. A directory is looked at with all that lies in it: what a module imports is known only when it has run.
//
// Code of another user would name what it likes. So nothing is executed before it was looked at: first the library beside the interpreter,
// then what the interpreter names when it has loaded only that, and then what it names when it has started as a zygote does.
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

// check looks at what an interpreter has named.
func (o *Options) check(t *tree, paths []string) error {
	for _, p := range paths {
		if !path.IsAbs(p) {
			p = path.Join(o.Dir, p)
		}
		p = path.Clean(p)
		if slices.ContainsFunc(o.Scratch, func(dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }) {
			continue // its own, and empty but for the driver
		}
		// Where there is nothing, only root can put something: the directories on the way were looked at.
		if err := t.check(p); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// importPaths executes the interpreter for what its driver says.
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
	wait := func() {
		for {
			if _, err := unix.Wait4(pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}
	pidfd, pidErr := unix.PidfdOpen(pid, 0) // it is not waited for yet, so the number is still its own
	if pidErr != nil {
		go wait() // its cgroup is removed with all that is in it
		return nil, fmt.Errorf("pidfd: %w", pidErr)
	}
	_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	_ = unix.Close(pidfd)
	wait()
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
		return nil, fmt.Errorf("the interpreter prints at its start, which every program would have to: %.1000q", said)
	case !ok || paths[0] == "":
		return nil, fmt.Errorf("the interpreter does not say what it imports from; it says: %.1000q", said)
	}
	return paths, nil
}

// tree is what was looked at of an interpreter's files.
type tree struct {
	ctx  context.Context
	seen map[[2]uint64]bool // directories, by device and inode
}

// check makes sure that only root may change a file, or a directory with all that lies in it, and what leads there.
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

// rootsOwn makes sure that a file is root's and that no other user may write to it. An access control list that lets another user write
// shows in the group's bits.
func rootsOwn(p string, st *unix.Stat_t) error {
	if st.Uid == 0 && (st.Mode&unix.S_IFMT == unix.S_IFLNK || st.Mode&0o022 == 0) {
		return nil
	}
	return &sandbox.Untrusted{Path: p, UID: st.Uid, GID: st.Gid, Mode: st.Mode & 0o7777}
}

// trusted makes sure that a file, and every directory and link on the way to it, is root's and nobody else's to write.
func trusted(file string) error {
	_, err := follow(file)
	return err
}

// follow is trusted, and returns the path without links.
func follow(file string) (string, error) {
	at, rest := "/", strings.TrimPrefix(path.Clean(file), "/")
	var open error // why the directory before is not only root's
	for links := 0; ; {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			if open != nil { // any user can put something there
				return "", open
			}
			return "", fmt.Errorf("%s: %w", at, err)
		}
		// In a directory with the sticky bit, other users can neither remove nor rename what is root's.
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

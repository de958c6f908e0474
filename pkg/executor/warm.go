package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// What toolchains prepare once lies in directories of the user's own, one per toolchain:
//
//	WarmDir/go-0a1b2c…/lock     held by whoever fills it
//	                   used     shared by whoever shows it to a sandbox; its time is that of the last use
//	                   …        what was prepared
//
// It is made on the host, from the toolchain's own parts and nothing else (D8), and sandboxes only ever read it.

// maxWarm is how many toolchains' directories there may be. Each is bounded by what a toolchain consists of.
const maxWarm = 4

const (
	warmLock = "lock"
	warmUsed = "used"
	// goneSuffix is on what is being removed.
	goneSuffix = ".gone"
)

// warmDir is where toolchains keep what they prepare, or "" where there is no such place.
func (e *Executor) warmDir() string {
	dir := e.opts.WarmDir
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(cache, "sandbox-run", "warm")
	}
	return unlinked(dir)
}

// unlinked is a path without the links on the way to it, as mounts have to be named. What does not exist yet has none.
func unlinked(dir string) string {
	real, err := filepath.EvalSymlinks(dir) //nolint:forbidigo // the user's own directory; whoever mounts it follows no link
	if err == nil {
		return real
	}
	if parent := filepath.Dir(dir); parent != dir && errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(unlinked(parent), filepath.Base(dir))
	}
	return dir
}

func warmDirOf(dir string, t *toolchain.Toolchain) string {
	return filepath.Join(dir, t.Name+"-"+t.ID)
}

// onHost is where a path of the sandbox lies on the host.
func onHost(t *toolchain.Toolchain, inside string) string {
	for _, m := range t.Mounts {
		if inside == m.Target {
			return m.Source
		}
		if rest, ok := strings.CutPrefix(inside, m.Target+"/"); ok {
			return filepath.Join(m.Source, rest)
		}
	}
	return inside
}

// useWarm makes the directory if need be, and keeps it from being removed until release is called.
func useWarm(dir string) (release func(), err error) {
	name := filepath.Join(dir, warmUsed)
	for range 3 {
		if err = os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		var used *os.File
		if used, err = lockFile(context.Background(), name, true); errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		} else if err != nil {
			return nil, err
		}
		if isStill(used, name) {
			now := time.Now()
			_ = os.Chtimes(name, now, now) // if not, it goes a little sooner
			return func() { _ = used.Close() }, nil
		}
		_ = used.Close()
		err = errLocked
	}
	return nil, err
}

// fillWarm announces what is about to be prepared and prepares it, in one process at a time.
func fillWarm(ctx context.Context, dir, what string, on prepareHook, fill func() error) error {
	done := on.begin(what)
	defer done()
	lock, err := lockFile(ctx, filepath.Join(dir, warmLock), false)
	if err != nil {
		return err
	}
	defer lock.Close()
	return fill()
}

// workshop is an empty directory for a toolchain to prepare something in. It is called under the lock: there is one at a time.
func workshop(ctx context.Context, dir string) (home string, leave func(), err error) {
	home = filepath.Join(dir, "home")
	if err := removeTree(ctx, home); err != nil {
		return "", nil, err
	}
	if err := os.Mkdir(home, 0o700); err != nil {
		return "", nil, err
	}
	return home, func() { _ = removeTree(context.WithoutCancel(ctx), home) }, nil // if not, the next one does
}

// runTool runs a program of a toolchain's on the host, at home in a directory. Its error has the first line of what it said.
func runTool(ctx context.Context, t *toolchain.Toolchain, cmd *exec.Cmd, home string) error {
	_, err := hearTool(ctx, t, cmd, home)
	return err
}

// hearTool does what runTool does, and returns what was said.
func hearTool(ctx context.Context, t *toolchain.Toolchain, cmd *exec.Cmd, home string) (string, error) {
	cmd.Dir, cmd.WaitDelay = home, 5*time.Second
	cmd.Env = append(cmd.Env, "PATH=/usr/local/bin:/usr/bin:/bin", "HOME="+home)
	for k, v := range t.Env {
		cmd.Env = append(cmd.Env, k+"="+onHost(t, v))
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := toolchain.RunAlone(ctx, cmd)
	if err == nil || ctx.Err() != nil {
		return said.String(), ctx.Err()
	}
	first, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
	return "", fmt.Errorf("%w: %s", err, first)
}

// isStill reports whether a file has its name: what was locked may have been removed while we waited.
func isStill(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(name)
	return err == nil && os.SameFile(mine, there)
}

// dropWarm removes the directories that were not used for longest, besides one's own.
func dropWarm(ctx context.Context, own string) {
	type kept struct {
		dir  string
		used time.Time
	}
	top := filepath.Dir(own)
	entries, _ := os.ReadDir(top)
	var others []kept
	for _, e := range entries {
		dir := filepath.Join(top, e.Name())
		if strings.HasSuffix(dir, goneSuffix) {
			_ = removeTree(ctx, dir) // somebody did not come to the end of it
			continue
		}
		if st, err := os.Stat(filepath.Join(dir, warmUsed)); err == nil && dir != own {
			others = append(others, kept{dir, st.ModTime()})
		}
	}
	slices.SortFunc(others, func(a, b kept) int { return b.used.Compare(a.used) })
	for i, k := range others {
		if i < maxWarm-1 {
			continue
		}
		used, err := tryLockFile(filepath.Join(k.dir, warmUsed))
		if err != nil {
			continue // somebody uses it
		}
		// A new one may take its place as soon as the name is free.
		if gone := k.dir + goneSuffix; os.Rename(k.dir, gone) == nil {
			_ = removeTree(ctx, gone) // what is left, the next one removes
		}
		_ = used.Close()
	}
}

// lockPatience is how often a lock that somebody has is tried.
const lockPatience = 50 * time.Millisecond

// lockFile waits for a lock, until the context ends. Closing the file gives it back.
func lockFile(ctx context.Context, name string, shared bool) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := tryLock(f, shared)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, errLocked) {
			_ = f.Close()
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPatience):
		}
	}
}

// tryLockFile takes a lock for itself alone, or fails at once.
func tryLockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(f, false); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// errLocked: somebody else has it.
var errLocked = errors.New("it is locked")

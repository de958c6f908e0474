// Package prepared keeps what toolchains prepare once on the host, such as a compiled standard library, so that programs start sooner.
//
// What. Directories of the user, one per toolchain, with locks, a bound on their number, and marks of failed preparations:
//
//	WarmDir/go-0a1b2c…/lock           held by the process that fills the directory
//	                   used           locked, shared, while a sandbox shows the directory; its time is that of the last use
//	                   NAME           what was prepared
//	                   NAME.failed    a Failure
//	        drivers/0a1b2c…-NAME      files of ours that sandboxes show
//
// Place in the flow. Packages of pkg/executor/lang fill the directories when a plan is prepared; sandboxes mount them read-only. The
// content is made from the toolchain's own parts and nothing else (D8).
//
// Lifecycle. [Use] keeps a directory from being removed until it is released. [DropOthers] removes the least recently used ones.
//
// Concurrency. Any number of processes share the directories; flock decides. A [Store] may be used from any number of goroutines.
//
// Limits. At most four toolchains have a directory. Nothing is prepared on systems other than Linux. Preparation counts against no limit
// of a run: Options.OnPrepare of the executor is called while it lasts. Where it fails, programs run without the prepared files and notes
// say so, except for PostgreSQL's cluster, which is needed. A failure is marked on disk, and the pause before the next attempt grows.
package prepared

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

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// maxDirs is how many toolchains have a directory. Each directory is bounded by what a toolchain consists of.
const maxDirs = 4

const (
	lockName = "lock"
	usedName = "used"
	// goneSuffix is on directories that are being removed.
	goneSuffix = ".gone"
)

// Hook is called before a preparation that takes a while; the returned function is called after it.
type Hook func(what string) (done func())

// Begin calls the hook, if there is one.
func (h Hook) Begin(what string) (done func()) {
	if h == nil {
		return func() {}
	}
	return h(what)
}

// Dir is the directory of all toolchains, without links in its path; "" where the user has no cache directory.
func (s *Store) Dir() string {
	dir := s.Root
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(cache, "sandbox-run", "warm")
	}
	return unlinked(dir)
}

// unlinked is a path without symbolic links, as mounts have to be named. Components that do not exist stay as they are.
func unlinked(dir string) string {
	real, err := filepath.EvalSymlinks(dir) //nolint:forbidigo // the user's own directory; the backend that mounts it follows no link
	if err == nil {
		return real
	}
	if parent := filepath.Dir(dir); parent != dir && errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(unlinked(parent), filepath.Base(dir))
	}
	return dir
}

// ToolchainDir is the directory of one toolchain below the directory of all.
func ToolchainDir(dir string, t *toolchain.Toolchain) string {
	return filepath.Join(dir, t.Name+"-"+t.ID)
}

// HostPath is the host's path of a toolchain's file that has the path inside in the sandbox.
func HostPath(t *toolchain.Toolchain, inside string) string {
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

// Use makes a toolchain's directory if need be, and keeps it from being removed until release is called.
func Use(dir string) (release func(), err error) {
	name := filepath.Join(dir, usedName)
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
		if hasName(used, name) {
			now := time.Now()
			_ = os.Chtimes(name, now, now) // on failure the directory is removed a little sooner
			return func() { _ = used.Close() }, nil
		}
		_ = used.Close()
		err = userdir.ErrBusy
	}
	return nil, err
}

// Fill announces a preparation and runs it with the directory's lock held: one process at a time.
func Fill(ctx context.Context, dir, what string, on Hook, fill func() error) error {
	done := on.Begin(what)
	defer done()
	lock, err := lockFile(ctx, filepath.Join(dir, lockName), false)
	if err != nil {
		return err
	}
	defer lock.Close()
	return fill()
}

// WorkDir makes an empty directory in which a toolchain prepares something. The caller holds the lock and calls remove at the end.
func WorkDir(ctx context.Context, dir string) (work string, remove func(), err error) {
	work = filepath.Join(dir, "home")
	if err := RemoveTree(ctx, work); err != nil {
		return "", nil, err
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return "", nil, err
	}
	return work, func() { _ = RemoveTree(context.WithoutCancel(ctx), work) }, nil // on failure the next call removes it
}

// RunTool runs a toolchain's program on the host with work as its directory and HOME, and returns its output. The error of a program
// that fails has the first line of its output.
func RunTool(ctx context.Context, t *toolchain.Toolchain, cmd *exec.Cmd, work string) (string, error) {
	cmd.Dir, cmd.WaitDelay = work, 5*time.Second
	cmd.Env = append(cmd.Env, "PATH=/usr/local/bin:/usr/bin:/bin", "HOME="+work)
	for k, v := range t.Env {
		cmd.Env = append(cmd.Env, k+"="+HostPath(t, v))
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := toolchain.RunAlone(ctx, cmd)
	if err == nil || ctx.Err() != nil {
		return output.String(), ctx.Err()
	}
	first, _, _ := strings.Cut(strings.TrimSpace(output.String()), "\n")
	return "", fmt.Errorf("%w: %s", err, first)
}

// hasName reports whether an open file still has its name: the file may have been removed while its lock was waited for.
func hasName(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(name)
	return err == nil && os.SameFile(mine, there)
}

// DropOthers removes the least recently used toolchain directories beside own, so that at most maxDirs are left.
func DropOthers(ctx context.Context, own string) {
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
			_ = RemoveTree(ctx, dir) // an interrupted removal
			continue
		}
		if st, err := os.Stat(filepath.Join(dir, usedName)); err == nil && dir != own {
			others = append(others, kept{dir, st.ModTime()})
		}
	}
	slices.SortFunc(others, func(a, b kept) int { return b.used.Compare(a.used) })
	for i, k := range others {
		if i < maxDirs-1 {
			continue
		}
		used, err := tryLockFile(filepath.Join(k.dir, usedName), false, 0)
		if err != nil {
			continue // a sandbox shows it
		}
		// The name is free at once: another process may prepare the toolchain anew.
		if gone := k.dir + goneSuffix; os.Rename(k.dir, gone) == nil {
			_ = RemoveTree(ctx, gone) // the next call removes what is left
		}
		_ = used.Close()
	}
}

// lockFile waits for a lock until the context ends. Closing the file releases it.
func lockFile(ctx context.Context, name string, shared bool) (*os.File, error) {
	for {
		f, err := tryLockFile(name, shared, lockTimeout)
		if err == nil || !errors.Is(err, userdir.ErrBusy) {
			return f, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// lockTimeout is how long one attempt to take a lock waits.
const lockTimeout = 50 * time.Millisecond

// tryLockFile takes a lock within a timeout, or fails with userdir.ErrBusy.
func tryLockFile(name string, shared bool, timeout time.Duration) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := userdir.Lock(f, shared, timeout); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

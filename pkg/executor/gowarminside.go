package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

const (
	// goCacheMade is where an image's go command compiles its standard library, in a sandbox of its own.
	goCacheMade = sandbox.TmpDir + "/go-build"
	// goWarmDir is the module it does so for.
	goWarmDir = sandbox.HomeDir + "/warm"
	// What is taken out is bounded: all of the standard library is about 3000 files in 200 MiB.
	maxGoCache      = 1 * sandbox.GiB
	maxGoCacheFiles = 20_000
)

// buildInside has the go command of an image compile packages of its own standard library, in a sandbox of that image, and takes what it made
// out of it. It is shown to sandboxes of that very image and no others (D8): they could have made it themselves.
func (w *goWarmth) buildInside(ctx context.Context, packages []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, warmPatience)
	defer cancel()
	m := w.engine.manager
	limits, _ := sandbox.Limits{
		Wall: warmPatience, CPUs: float64(m.Machine().CPUs), Memory: 2 * sandbox.GiB, Disk: 2 * sandbox.GiB, Inodes: 256 << 10, Processes: 500, OpenFiles: 4096,
	}.Clamp(m.Machine())
	spec := sandbox.Spec{Require: w.require, Workdir: sandbox.WorkspaceDir, Limits: limits}
	w.image.Apply(&spec)
	id, err := m.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Delete(context.WithoutCancel(ctx), id)) }()
	// As a module, for the same reason as outside (see build).
	if err := m.Put(ctx, id, []sandbox.File{{Path: goWarmDir + "/go.mod", Data: []byte("module warm\n")}}); err != nil {
		return err
	}
	env := goEnv(goCacheMade)
	env["GOPATH"], env["GOMODCACHE"] = sandbox.HomeDir+"/go", ""
	for k, v := range w.tool.Env {
		env[k] = v
	}
	args := slices.Concat([]string{w.tool.Path, "build"}, goFlags(w.tool.Version), packages)
	r, err := m.Run(ctx, id, sandbox.Process{Args: args, Env: env, Workdir: goWarmDir}, sandbox.IO{})
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case !r.Success():
		first, _, _ := strings.Cut(strings.TrimSpace(string(r.Stderr.Bytes())), "\n")
		return fmt.Errorf("go build: %w: %s", failure(r), first)
	}
	return w.takeOut(ctx, id)
}

// takeOut adds to the cache what was compiled. An entry that is there already is the same: its name is a digest of what it is made of.
func (w *goWarmth) takeOut(ctx context.Context, id string) error {
	root, err := os.OpenRoot(w.buildDir())
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = w.engine.manager.Take(ctx, id, sandbox.Selection{Patterns: []string{goCacheMade}, MaxFiles: maxGoCacheFiles, MaxBytes: maxGoCache}, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		name := strings.TrimPrefix(f.Path, goCacheMade+"/")
		if !isGoCacheEntry(name) {
			return nil
		}
		half := path.Join(path.Dir(name), ".new") // one at a time: this is under the lock
		out, err := root.OpenFile(half, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		if err = errors.Join(err, out.Chmod(0o644), out.Close()); err != nil {
			return err
		}
		return root.Rename(half, name)
	})
	return err // an entry that could not be taken is compiled anew
}

// isGoCacheEntry: two digits, a directory; sixty-four, and what kind of entry it is.
func isGoCacheEntry(name string) bool {
	dir, file, _ := strings.Cut(name, "/")
	digest, kind, _ := strings.Cut(file, "-")
	return len(dir) == 2 && len(digest) == 64 && strings.HasPrefix(digest, dir) && strings.Trim(digest, "0123456789abcdef") == "" && (kind == "a" || kind == "d")
}

// hasSource reports whether a package's sources are in the toolchain's standard library.
func (w *goWarmth) hasSource(p string) bool {
	at := path.Join(w.tool.Home, "src", p)
	var st fs.FileInfo
	if w.image == nil {
		info, err := os.Stat(onHost(w.tool, at))
		return err == nil && info.IsDir()
	}
	root, err := os.OpenRoot(w.image.Dir)
	if err != nil {
		return false
	}
	defer root.Close()
	st, err = toolchain.StatIn(root, at)
	return err == nil && st.IsDir()
}

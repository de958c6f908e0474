package golang

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// libraryCache is a build cache with the packages of the standard library that programs have needed so far. The user's own go
// command fills it from its own sources; sandboxes see it read-only, so that only the program itself is compiled.
// A package that is missing from it, or damaged, is compiled in the sandbox: slower, with the same result.
type libraryCache struct {
	dir      string
	tool     *toolchain.Toolchain
	packages []string   // imports of the program
	modules  []goModule // modules whose imports count too

	// The toolchain of an image needs these:
	manager *sandbox.Manager
	image   *language.Image // nil is this machine
	require sandbox.Tier    // the lowest tier that the run accepts
}

// goFirst are compiled with the first program: nearly all programs need most of them.
const goFirst = "bufio bytes context encoding/json errors fmt io maps math math/rand os slices sort strconv strings sync time unicode/utf8"

// fillTimeout bounds one preparation. All of the standard library takes a slow machine some minutes.
const fillTimeout = 15 * time.Minute

// trimmedEvery is the interval at which the go command trims its cache.
const trimmedEvery = 24 * time.Hour

func (w *libraryCache) buildDir() string { return filepath.Join(w.dir, "build") }
func (w *libraryCache) listFile() string { return filepath.Join(w.dir, "warmed") }

// prepare fills the cache with the packages that the program needs. Without a cache, the sandbox compiles them.
func (w *libraryCache) prepare(ctx context.Context, p *language.Plan, compiling bool, on prepared.Hook) (func(), error) {
	w.require = p.Spec.Require
	release, err := prepared.Use(w.dir)
	if err == nil {
		if err = w.makeDirs(); err != nil {
			release()
		}
	}
	if err != nil {
		w.removeFrom(p, err)
		return func() {}, nil
	}
	if !compiling {
		return release, nil
	}
	if err := errors.Join(w.keepFromTrimming(), w.fill(ctx, on)); err != nil {
		if ctx.Err() != nil {
			release()
			return nil, err
		}
		p.Notes = append(p.Notes, "Go's standard library could not be compiled beforehand, which makes this slow: "+err.Error())
	}
	return release, nil
}

// makeDirs makes the directories of a build cache, which the go command can not make in the sandbox.
func (w *libraryCache) makeDirs() error {
	if _, err := os.Stat(filepath.Join(w.buildDir(), "ff")); err == nil {
		if _, err := os.Stat(w.directDir()); err == nil {
			return nil
		}
	}
	dirs := []string{w.buildDir(), w.directDir()}
	for i := range 256 {
		dirs = append(dirs, filepath.Join(w.buildDir(), fmt.Sprintf("%02x", i)))
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(dir, 0o755); err != nil { // independent of the umask
			return err
		}
	}
	return nil
}

// keepFromTrimming marks the cache as trimmed a short while ago. On the host, the go command would remove entries that were not
// used for some days, although sandboxes use them; in the sandbox, it would read the whole cache each time.
func (w *libraryCache) keepFromTrimming() error {
	name := filepath.Join(w.buildDir(), "trim.txt")
	if st, err := os.Stat(name); err == nil && time.Since(st.ModTime()).Abs() < trimmedEvery/2 {
		return nil
	}
	now := time.Now()
	if err := os.WriteFile(name, []byte(strconv.FormatInt(now.Unix(), 10)), 0o644); err != nil {
		return err
	}
	return errors.Join(os.Chmod(name, 0o644), os.Chtimes(name, now, now))
}

// removeFrom changes a plan so that it needs no prepared cache.
func (w *libraryCache) removeFrom(p *language.Plan, why error) {
	p.Notes = append(p.Notes, "Go's standard library is compiled anew: "+why.Error())
	p.Spec.Root.Add = slices.DeleteFunc(slices.Clone(p.Spec.Root.Add),
		func(m sandbox.Mount) bool { return m.Target == goCacheDir || m.Target == goDirectDir })
	for i := range p.Phases {
		if again := p.Phases[i].Again; again != nil {
			p.Phases[i].Process.Args = again.Args
		}
		if env := p.Phases[i].Process.Env; env["GOCACHE"] != "" {
			env = maps.Clone(env)
			env["GOCACHE"] = sandbox.TmpDir + "/go-build"
			p.Phases[i].Process.Env, p.Phases[i].Again = env, nil
		}
	}
}

func (w *libraryCache) fill(ctx context.Context, on prepared.Hook) error {
	if have := w.read(); len(w.missing(have)) == 0 && len(w.unread(have)) == 0 && (w.image != nil || w.knowsDirect()) {
		return nil
	}
	return prepared.Fill(ctx, w.dir, "compiling Go's standard library, once", on, func() error { return w.compileMissing(ctx) })
}

// compileMissing compiles the missing packages. The caller holds the lock.
func (w *libraryCache) compileMissing(ctx context.Context) error {
	have := w.read() // another process may have compiled them meanwhile
	for _, m := range w.unread(have) {
		w.packages = append(w.packages, m.imports()...)
		have[m.id()] = true
	}
	missing := w.missing(have)
	if len(have) == 0 {
		prepared.DropOthers(ctx, w.dir)
		missing = slices.Compact(slices.Sorted(slices.Values(append(missing, strings.Fields(goFirst)...))))
	}
	build := w.build
	if w.image != nil {
		build = w.buildInside
		// A package without sources, as in older versions, would fail the whole build.
		missing = slices.DeleteFunc(missing, func(p string) bool { return !w.hasSource(p) })
	}
	if len(missing) > 0 {
		if err := build(ctx, missing); err != nil {
			return err
		}
	}
	for _, p := range missing {
		have[p] = true
	}
	if w.image == nil {
		if err := w.learnDirect(ctx, have); ctx.Err() != nil {
			return err
		} // on failure the go command builds
	}
	return w.write(have)
}

// missing returns the packages of the standard library that are not in the cache yet, according to its sources.
func (w *libraryCache) missing(have map[string]bool) []string {
	var all []string
	for _, p := range w.packages {
		if !have[p] && !slices.Contains(all, p) && isStandardName(p) && w.hasSource(p) {
			all = append(all, p)
		}
	}
	return all
}

// isStandardName reports whether a path can be that of a package in the standard library: it becomes an argument of a command.
func isStandardName(p string) bool {
	if p == "testing/internal/testdeps" { // every test imports it
		return true
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "cmd" || part == "internal" || part == "vendor" || part == "testdata" || part == "builtin" {
			return false
		}
	}
	return p != "unsafe" && p != "C" && strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789/") == ""
}

func (w *libraryCache) unread(have map[string]bool) []goModule {
	var all []goModule
	for _, m := range w.modules {
		if !have[m.id()] && (m.archive() != nil || m.dir != "") {
			all = append(all, m)
		}
	}
	return all
}

// build compiles packages of the standard library into the cache.
func (w *libraryCache) build(ctx context.Context, packages []string) error {
	// A module of its own, so that no go.mod further up counts. Only for a module does the go command write the index of the
	// packages that it reads in the sandbox.
	_, err := w.runGo(ctx, "go.mod", "module warm\n", slices.Concat([]string{"build"}, goFlags(w.tool.Version), packages))
	if err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	return nil
}

// runGo runs a go command that fills the cache, in a directory with one file, and returns its output. Users of sandboxes must be able to
// read the cache, independent of the umask.
func (w *libraryCache) runGo(ctx context.Context, file, text string, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	home, remove, err := prepared.WorkDir(ctx, w.dir)
	if err != nil {
		return "", err
	}
	defer remove()
	if err := os.WriteFile(filepath.Join(home, file), []byte(text), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", `umask 022 && exec "$@"`, "go", prepared.HostPath(w.tool, w.tool.Path)}, args...)...)
	cmd.Env = []string{"TMPDIR=" + home, "GOPATH=" + home + "/go"}
	for k, v := range goEnv(w.buildDir()) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return prepared.RunTool(ctx, w.tool, cmd, home)
}

// read returns the packages in the cache, and the modules whose imports are in it.
func (w *libraryCache) read() map[string]bool {
	have := map[string]bool{}
	text, err := os.ReadFile(w.listFile())
	if err != nil {
		return have
	}
	for name := range strings.FieldsSeq(string(text)) {
		have[name] = true
	}
	return have
}

func (w *libraryCache) write(have map[string]bool) error {
	text := strings.Join(slices.Sorted(maps.Keys(have)), "\n") + "\n"
	half := w.listFile() + ".new" // under the lock
	if err := os.WriteFile(half, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(half, w.listFile())
}

// maxModuleSource bounds what is read of one file of a module.
const maxModuleSource = 4 << 20

// imports returns the imports of a module's packages. A module that can not be read has none: the go command reports the error.
func (m *goModule) imports() []string {
	if m.dir != "" {
		root, err := os.OpenRoot(m.dir)
		if err != nil {
			return nil
		}
		defer root.Close()
		return importsBelow(root.FS())
	}
	r, err := m.archive().Open()
	if err != nil {
		return nil
	}
	defer r.Close()
	f, ok := r.(*os.File)
	if !ok {
		return nil
	}
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	archive, err := zip.NewReader(f, st.Size())
	if err != nil {
		return nil
	}
	return importsBelow(archive)
}

// importsBelow returns the imports of all sources in a tree, without those that can not be read.
func importsBelow(tree fs.FS) []string {
	all := map[string]bool{}
	_ = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || !entry.Type().IsRegular() {
			return nil
		}
		f, err := tree.Open(name)
		if err != nil {
			return nil
		}
		defer f.Close()
		src, err := io.ReadAll(io.LimitReader(f, maxModuleSource+1))
		if err != nil || len(src) > maxModuleSource {
			return nil
		}
		for _, i := range importsOf(src) {
			all[i] = true
		}
		return nil
	})
	return slices.Sorted(maps.Keys(all))
}

const (
	// goCacheMade is where an image's go command compiles its standard library, in a sandbox of its own.
	goCacheMade = sandbox.TmpDir + "/go-build"
	// goWarmDir is the directory of the module for that.
	goWarmDir = sandbox.HomeDir + "/warm"
	// The copy out is bounded: all of the standard library is about 3000 files in 200 MiB.
	maxGoCache      = 1 * sandbox.GiB
	maxGoCacheFiles = 20_000
)

// buildInside compiles packages of an image's standard library with the image's go command, in a sandbox on that image, and
// copies the products out. Only sandboxes on the same image see them: they could have made them themselves.
func (w *libraryCache) buildInside(ctx context.Context, packages []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	m := w.manager
	limits, _ := sandbox.Limits{
		Wall: fillTimeout, CPUs: float64(m.Machine().CPUs), Memory: 2 * sandbox.GiB, Disk: 2 * sandbox.GiB,
		Inodes: 256 << 10, Processes: 500, OpenFiles: 4096,
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
	maps.Copy(env, w.tool.Env)
	args := slices.Concat([]string{w.tool.Path, "build"}, goFlags(w.tool.Version), packages)
	r, err := m.Run(ctx, id, sandbox.Process{Args: args, Env: env, Workdir: goWarmDir}, sandbox.IO{})
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case !r.Success():
		first, _, _ := strings.Cut(strings.TrimSpace(string(r.Stderr.Bytes())), "\n")
		return fmt.Errorf("go build: %w: %s", language.VerdictError(r), first)
	}
	// An existing entry is equal: its name is a digest of its sources. An entry that could not be copied is compiled again.
	made := sandbox.Selection{Patterns: []string{goCacheMade}, MaxFiles: maxGoCacheFiles, MaxBytes: maxGoCache}
	_, err = prepared.Take(ctx, m, id, made, w.buildDir(), isGoCacheEntry)
	return err
}

// isGoCacheEntry: two digits, a directory; sixty-four, and what kind of entry it is.
func isGoCacheEntry(name string) bool {
	dir, file, _ := strings.Cut(name, "/")
	digest, kind, _ := strings.Cut(file, "-")
	return len(dir) == 2 && len(digest) == 64 && strings.HasPrefix(digest, dir) && strings.Trim(digest, "0123456789abcdef") == "" &&
		(kind == "a" || kind == "d")
}

// hasSource reports whether a package's sources are in the toolchain's standard library.
func (w *libraryCache) hasSource(p string) bool {
	at := path.Join(w.tool.Home, "src", p)
	if w.image == nil {
		st, err := os.Stat(prepared.HostPath(w.tool, at))
		return err == nil && st.IsDir()
	}
	root, err := os.OpenRoot(w.image.Dir)
	if err != nil {
		return false
	}
	defer root.Close()
	st, err := toolchain.StatIn(root, at)
	return err == nil && st.IsDir()
}

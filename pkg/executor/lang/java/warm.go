package java

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// jdkFiles is what makes Java start sooner: an archive of javac's own classes, as the virtual machine reads them fastest, which takes
// a third off what compiling a small program costs; and, where programs are waited for, the driver by which machines do so (see
// javadriver.go), with an archive of its own. The user's own JDK makes it all, from programs of ours; a machine that an archive does
// not fit ignores it.
//
//	WarmDir/java-0a1b2c…/jdk-2/javac.jsa         for a javac that is started cold
//	                     jdk-2-ahead/javac.jsa   the same
//	                                 driver.jar  what waits
//	                                 driver.jsa  for a compiler that waits
//	                                 burn        how many identity hash codes a runner has to take (see Runner)
//	                                 …           what the driver reads
type jdkFiles struct {
	dir     string
	tool    *toolchain.Toolchain
	manager *sandbox.Manager
	store   *prepared.Store
	driver  bool         // is needed too
	require sandbox.Tier // as little as the run accepts
}

const (
	// javaDir is where it is shown.
	javaDir     = language.ToolDir + "/java"
	javaArchive = "javac.jsa"
	// javaArchiveFlag makes javac's machine use the archive.
	javaArchiveFlag = "-J-XX:SharedArchiveFile=" + javaDir + "/" + javaArchive
	// makeTimeout bounds the making of each part, which takes about a second, and a hundred times that where others have the processors.
	makeTimeout = 10 * time.Minute
)

// made is where it lies on the host. The number counts the ways in which we have made it.
func (w *jdkFiles) made() string {
	if w.driver {
		return filepath.Join(w.dir, "jdk-2-ahead")
	}
	return filepath.Join(w.dir, "jdk-2")
}

// what it is, for people.
func (w *jdkFiles) what() string {
	if w.driver {
		return "Java machines that wait"
	}
	return "the Java compiler's archive"
}

// prepare makes the files the first time. Without them programs start cold.
func (w *jdkFiles) prepare(ctx context.Context, p *language.Plan, compiling bool, on prepared.Hook) (func(), error) {
	w.require = p.Spec.Require
	release, err := prepared.Use(w.dir)
	if err != nil {
		if l := w.store.FailureOf(w.made()); l == nil || l.Due(time.Now()) { // reported once per interval
			w.store.Fail(w.made(), w.what(), err, w.retry)
		}
		w.without(p)
		return func() {}, nil
	}
	if compiling || slices.ContainsFunc(p.Phases, func(p language.Phase) bool { return p.Process.Warm != nil }) {
		_ = w.fill(ctx, on, false) // Fill has reported it
	}
	archive, driver := w.there()
	switch {
	case ctx.Err() != nil:
		release()
		return nil, ctx.Err()
	case !archive:
		release()
		w.without(p)
		return func() {}, nil
	case !driver:
		p.StartCold()
	}
	return release, nil
}

// without changes a plan so that it needs nothing of ours.
func (w *jdkFiles) without(p *language.Plan) {
	p.Spec.Root.Add = slices.DeleteFunc(slices.Clone(p.Spec.Root.Add), func(m sandbox.Mount) bool { return m.Target == javaDir })
	for i := range p.Phases {
		args := &p.Phases[i].Process.Args
		*args = slices.DeleteFunc(slices.Clone(*args), func(a string) bool { return a == javaArchiveFlag })
	}
	p.StartCold()
}

// there says what of it there is.
func (w *jdkFiles) there() (archive, driver bool) {
	st, err := os.Stat(w.made())
	if err != nil || !st.IsDir() {
		return false, false
	}
	_, err = os.Stat(filepath.Join(w.made(), javaDriver))
	return true, err == nil
}

// whole reports whether there is all of it.
func (w *jdkFiles) whole() bool {
	archive, driver := w.there()
	return archive && (driver || !w.driver)
}

// retry makes what could not be made before; see Executor.Retry.
func (w *jdkFiles) retry(ctx context.Context) error {
	release, err := prepared.Use(w.dir)
	if err != nil {
		w.store.Fail(w.made(), w.what(), err, w.retry)
		return err
	}
	defer release()
	return w.fill(ctx, nil, true)
}

// fill makes what is missing, unless that failed of late. Where machines wait, programs do not: what failed once is for Retry.
func (w *jdkFiles) fill(ctx context.Context, on prepared.Hook, retry bool) error {
	if w.whole() {
		w.store.Forget(w.made())
		return nil
	}
	failedBefore := func() *prepared.Failure {
		l := w.store.FailureOf(w.made())
		if l == nil || l.Due(time.Now()) && (retry || !w.driver) {
			return nil
		}
		w.store.Remember(w.made(), l, w.retry)
		return l
	}
	if l := failedBefore(); l != nil {
		return l.Err()
	}
	err := prepared.Fill(ctx, w.dir, "preparing the Java compiler, once", on, func() error {
		if w.whole() {
			return nil
		}
		if l := failedBefore(); l != nil { // while we waited
			return l.Err()
		}
		prepared.DropOthers(ctx, w.dir)
		if err := w.make(ctx); err != nil {
			if ctx.Err() == nil {
				w.store.Fail(w.made(), w.what(), err, w.retry)
			}
			return err
		}
		return nil
	})
	if err == nil {
		w.store.Succeed(w.made())
	}
	return err
}

// make makes what is missing: everything, or the driver only.
func (w *jdkFiles) make(ctx context.Context) error {
	home, remove, err := prepared.WorkDir(ctx, w.dir)
	if err != nil {
		return err
	}
	defer remove()
	made := filepath.Join(home, "made")
	if err := errors.Join(os.Mkdir(made, 0o755), os.CopyFS(filepath.Join(home, "src"), javaSources())); err != nil {
		return err
	}
	archive, _ := w.there()
	if !archive {
		if err := w.train(ctx, home, made); err != nil {
			return err
		}
	}
	var failed error
	if w.driver {
		if failed = w.makeDriver(ctx, home, made); failed != nil {
			_ = os.Remove(filepath.Join(made, javaDriver)) // everything is started cold, from the archive
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// Sandboxes' users must be able to read it, whatever files of this user's are like.
	entries, err := os.ReadDir(made)
	for _, e := range entries {
		err = errors.Join(err, os.Chmod(filepath.Join(made, e.Name()), 0o644))
	}
	if err != nil {
		return err
	}
	if archive {
		return errors.Join(failed, w.add(made, entries))
	}
	_ = os.Remove(w.made()) // what marked a failure once
	return errors.Join(failed, os.Chmod(made, 0o755), os.Rename(made, w.made()))
}

// add puts a driver to an archive that sandboxes may be shown already; the one file that says that it is there comes last.
func (w *jdkFiles) add(made string, entries []os.DirEntry) error {
	_, err := os.Stat(filepath.Join(made, javaDriver))
	if err != nil {
		return nil //nolint:nilerr // there is none; makeDriver has reported why
	}
	for _, e := range entries {
		if e.Name() != javaDriver {
			err = errors.Join(err, os.Rename(filepath.Join(made, e.Name()), filepath.Join(w.made(), e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(made, javaDriver), filepath.Join(w.made(), javaDriver))
}

// train compiles a program and has the machine write down which classes that took.
func (w *jdkFiles) train(ctx context.Context, home, made string) error {
	sources := filepath.Join(home, "src")
	args := append(javacFlags(256*sandbox.MiB), "-J-XX:ArchiveClassesAtExit="+filepath.Join(made, javaArchive), "-d", filepath.Join(home, "out"),
		filepath.Join(sources, "Training.java"))
	if err := w.run(ctx, home, w.tool.Programs["javac"], args...); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(made, javaArchive))
	return err
}

// run runs a program of the JDK.
func (w *jdkFiles) run(ctx context.Context, home, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	cmd := exec.Command(prepared.HostPath(w.tool, program), args...)
	cmd.Env = []string{"LANG=C.UTF-8"}
	if _, err := prepared.RunTool(ctx, w.tool, cmd, home); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return nil
}

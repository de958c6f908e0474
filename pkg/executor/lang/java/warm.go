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

// jdkFiles are the prepared files of a JDK: an archive of javac's own classes in the form that a virtual machine loads fastest, which saves
// a third of the compilation of a small program; and, where processes are prestarted, the driver (driver.go) with an archive of its
// own. The user's own JDK makes them from programs of ours. A virtual machine that an archive does not fit ignores it.
//
//	WarmDir/java-0a1b2c…/jdk-2/javac.jsa         for a javac that is started cold
//	                     jdk-2-ahead/javac.jsa   the same
//	                                 driver.jar  the driver
//	                                 driver.jsa  archive of a prestarted compiler
//	                                 burn        how many identity hash codes a runner has to take (see Runner)
//	                                 …           what the driver reads
//	                     session-0a1b…/…         the driver of sessions (session.go)
type jdkFiles struct {
	dir     string
	tool    *toolchain.Toolchain
	manager *sandbox.Manager
	store   *prepared.Store
	driver  bool         // is prepared as well
	require sandbox.Tier // the lowest tier that the run accepts
	cold    []string     // the command of a session's driver without the files, which are then those of sessions; nil: those of programs
}

const (
	// javaDir is the directory of the files in the sandbox.
	javaDir     = language.ToolDir + "/java"
	javaArchive = "javac.jsa"
	// javaArchiveFlag makes javac's virtual machine use the archive.
	javaArchiveFlag = "-J-XX:SharedArchiveFile=" + javaDir + "/" + javaArchive
	// makeTimeout bounds the making of each part, which takes about a second, and a hundred times that on a busy machine.
	makeTimeout = 10 * time.Minute
)

// path returns the directory of the files on the host. The number in its name changes with their content.
func (w *jdkFiles) path() string {
	switch {
	case w.cold != nil:
		return filepath.Join(w.dir, sessionDir())
	case w.driver:
		return filepath.Join(w.dir, "jdk-2-ahead")
	}
	return filepath.Join(w.dir, "jdk-2")
}

// title returns the name of the files in failures.
func (w *jdkFiles) title() string {
	switch {
	case w.cold != nil:
		return "sessions of Java"
	case w.driver:
		return "Java machines that wait"
	}
	return "the Java compiler's archive"
}

// announcement is what users read while the files are made.
func (w *jdkFiles) announcement() string {
	if w.cold != nil {
		return "preparing sessions of Java, once"
	}
	return "preparing the Java compiler, once"
}

// prepare makes the files the first time. Without them programs start cold.
func (w *jdkFiles) prepare(ctx context.Context, p *language.Plan, compiling bool, on prepared.Hook) (func(), error) {
	w.require = p.Spec.Require
	release, err := prepared.Use(w.dir)
	if err != nil {
		if l := w.store.FailureOf(w.path()); l == nil || l.Due(time.Now()) { // reported once per interval
			w.store.Fail(w.path(), w.title(), err, w.retry)
		}
		w.removeFrom(p)
		return func() {}, nil
	}
	if compiling || slices.ContainsFunc(p.Phases, func(p language.Phase) bool { return p.Process.Warm != nil }) {
		_ = w.fill(ctx, on, false) // Fill has reported it
	}
	archive, driver := w.findParts()
	switch {
	case ctx.Err() != nil:
		release()
		return nil, ctx.Err()
	case !archive:
		release()
		w.removeFrom(p)
		return func() {}, nil
	case !driver && w.cold == nil:
		p.StartCold()
	}
	return release, nil
}

// removeFrom changes a plan so that it needs none of the files.
func (w *jdkFiles) removeFrom(p *language.Plan) {
	p.Spec.Root.Add = slices.DeleteFunc(slices.Clone(p.Spec.Root.Add), func(m sandbox.Mount) bool { return m.Target == javaDir })
	if w.cold != nil {
		p.Phases[0].Process.Args = w.cold
	}
	for i := range p.Phases {
		args := &p.Phases[i].Process.Args
		*args = slices.DeleteFunc(slices.Clone(*args), func(a string) bool { return a == javaArchiveFlag })
	}
	p.StartCold()
}

// findParts reports which of the files there are.
func (w *jdkFiles) findParts() (archive, driver bool) {
	st, err := os.Stat(w.path())
	if err != nil || !st.IsDir() {
		return false, false
	}
	_, err = os.Stat(filepath.Join(w.path(), javaDriver))
	return true, err == nil
}

// isComplete reports whether all files are there.
func (w *jdkFiles) isComplete() bool {
	archive, driver := w.findParts()
	return archive && (driver || !w.driver)
}

// retry repeats a failed preparation; see Executor.RetryPreparations.
func (w *jdkFiles) retry(ctx context.Context) error {
	release, err := prepared.Use(w.dir)
	if err != nil {
		w.store.Fail(w.path(), w.title(), err, w.retry)
		return err
	}
	defer release()
	return w.fill(ctx, nil, true)
}

// fill makes the missing files, unless that failed a short while ago. With the driver, a failure is repeated by retry only, so that no
// program waits for it.
func (w *jdkFiles) fill(ctx context.Context, on prepared.Hook, retry bool) error {
	if w.isComplete() {
		w.store.Forget(w.path())
		return nil
	}
	failedBefore := func() *prepared.Failure {
		l := w.store.FailureOf(w.path())
		if l == nil || l.Due(time.Now()) && (retry || !w.driver) {
			return nil
		}
		w.store.Remember(w.path(), l, w.retry)
		return l
	}
	if l := failedBefore(); l != nil {
		return l.Err()
	}
	err := prepared.Fill(ctx, w.dir, w.announcement(), on, func() error {
		if w.isComplete() {
			return nil
		}
		if l := failedBefore(); l != nil { // in another process, meanwhile
			return l.Err()
		}
		prepared.DropOthers(ctx, w.dir)
		if err := w.make(ctx); err != nil {
			if ctx.Err() == nil {
				w.store.Fail(w.path(), w.title(), err, w.retry)
			}
			return err
		}
		return nil
	})
	if err == nil {
		w.store.Succeed(w.path())
	}
	return err
}

// make makes the missing files: all, or those of the driver only.
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
	archive, _ := w.findParts()
	if !archive {
		makeFirst := w.makeArchive
		if w.cold != nil {
			makeFirst = w.makeSession
		}
		if err := makeFirst(ctx, home, made); err != nil {
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
	// Users of sandboxes must be able to read the files, whatever the umask is.
	entries, err := os.ReadDir(made)
	for _, e := range entries {
		err = errors.Join(err, os.Chmod(filepath.Join(made, e.Name()), 0o644))
	}
	if err != nil {
		return err
	}
	if archive {
		return errors.Join(failed, w.addDriver(made, entries))
	}
	_ = os.Remove(w.path()) // a mark of earlier versions
	return errors.Join(failed, os.Chmod(made, 0o755), os.Rename(made, w.path()))
}

// addDriver adds the driver to an archive that sandboxes may already show. The file by which the driver is recognised comes last.
func (w *jdkFiles) addDriver(made string, entries []os.DirEntry) error {
	_, err := os.Stat(filepath.Join(made, javaDriver))
	if err != nil {
		return nil //nolint:nilerr // there is none; makeDriver has reported why
	}
	for _, e := range entries {
		if e.Name() != javaDriver {
			err = errors.Join(err, os.Rename(filepath.Join(made, e.Name()), filepath.Join(w.path(), e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(made, javaDriver), filepath.Join(w.path(), javaDriver))
}

// makeArchive compiles a program and has the virtual machine archive the classes that were loaded for it.
func (w *jdkFiles) makeArchive(ctx context.Context, home, made string) error {
	sources := filepath.Join(home, "src")
	args := append(javacFlags(256*sandbox.MiB), "-J-XX:ArchiveClassesAtExit="+filepath.Join(made, javaArchive), "-d",
		filepath.Join(home, "out"),
		filepath.Join(sources, "Training.java"))
	if err := w.runTool(ctx, home, w.tool.Programs["javac"], args...); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(made, javaArchive))
	return err
}

// runTool runs a program of the JDK.
func (w *jdkFiles) runTool(ctx context.Context, home, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	cmd := exec.Command(prepared.HostPath(w.tool, program), args...)
	cmd.Env = []string{"LANG=C.UTF-8"}
	if _, err := prepared.RunTool(ctx, w.tool, cmd, home); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return nil
}

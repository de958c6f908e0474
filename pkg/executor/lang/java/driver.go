package java

import (
	"archive/zip"
	"bytes"
	"context"
	"embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Prestarted virtual machines run a driver until the program is known: one machine has javac loaded and has compiled something,
// the other runs the program as the launcher does. The driver is compiled once (warm.go); its sources describe how it leaves no
// trace.

//go:embed driver/*.java
var driverSources embed.FS

// javaSources returns the driver's sources and the programs that it compiles for practice.
func javaSources() fs.FS {
	sub, err := fs.Sub(driverSources, "driver")
	if err != nil { // can not happen: the name is well-formed
		panic(err)
	}
	return sub
}

const (
	// handshake is the text that the driver prints when it is ready.
	handshake         = "sandbox-run: ready\n"
	javaDriver        = "driver.jar"
	javaDriverArchive = "driver.jsa"
	javaBurn          = "burn"
	javaBoot          = "-Xbootclasspath/a:" + javaDir + "/" + javaDriver
	javaPackage       = "run.sandbox.warm."
	// javaPractice is how often a prestarted compiler compiles for practice: the first time takes a fifth of a second, and each
	// saves less than the one before.
	javaPractice = "4"
	// javaPracticeDir is the directory for that; the driver removes it before the compiler is ready.
	javaPracticeDir = sandbox.TmpDir + "/.sandbox-run-javac"
	// javaSince is the first JDK that can hide a method of the driver from traces.
	javaSince = 17
)

// javaGiveaways are names of APIs that show a program how its virtual machine started, or a whole stack. Programs that mention
// them start cold.
var javaGiveaways = []string{
	"ManagementFactory", "MXBean", "getAllStackTraces", "SHOW_HIDDEN_FRAMES", "SHOW_REFLECT_FRAMES", "ProcessHandle", "VirtualMachine",
	"HotSpotDiagnostic",
	"/proc/", "QUIT", "jstack", "jcmd",
}

// prestart lets the virtual machines of a plan start before the program is known, if a message can set everything that is
// specific to the program.
func prestart(j *language.Job, sources []javaSource, classPath string) {
	compile, run := &j.Plan.Phases[0].Process, &j.Plan.Phases[1].Process
	major, _, _ := strings.Cut(j.Tool.Version, ".")
	n, err := strconv.Atoi(major)
	own := len(j.Request.Env) > 0 || j.Workdir() != sandbox.WorkspaceDir // the driver can change neither
	if err != nil || n < javaSince || own || j.Dir != sandbox.WorkspaceDir {
		return
	}
	compile.Warm = &sandbox.Warm{
		Name: "javac", Handshake: handshake,
		Args: slices.Concat([]string{j.Tool.Path}, javacMachine(javaHeap(j.CompileLimits.Memory)), []string{
			"-XX:SharedArchiveFile=" + javaDir + "/" + javaDriverArchive, javaBoot, javaPackage + "Compiler", javaDir, javaPracticeDir, javaPractice,
		}),
	}
	i := slices.Index(run.Args, "-cp")
	plain := classPath == classDir+":"+j.Dir && !slices.Contains(run.Args[:i], "--enable-preview") // a jar does not exist yet
	for _, s := range sources {
		plain = plain && s.Classic && !s.gives
	}
	if !plain || slices.ContainsFunc(j.Request.Args, func(a string) bool { return !utf8.ValidString(a) }) {
		return
	}
	run.Warm = &sandbox.Warm{
		Name: "java", Handshake: handshake,
		Args: slices.Concat(run.Args[:i], []string{javaBoot, "-cp", classPath, javaPackage + "Runner", javaDir, classDir}),
		// The virtual machine accepts a directory of the class path only if it exists at the start.
		Files: []sandbox.File{{Path: classDir + "/.sandbox-run"}},
	}
}

// givesAway reports whether a source mentions an API that shows how its machine started.
func givesAway(src []byte) bool {
	has := func(word string) bool { return bytes.Contains(src, []byte(word)) }
	return slices.ContainsFunc(javaGiveaways, has) || has("getStackTrace") && has("Thread") // the stack of another thread
}

// makeDriver compiles the driver, and makes its archive.
func (w *jdkFiles) makeDriver(ctx context.Context, home, made string) error {
	sources, classes := filepath.Join(home, "src"), filepath.Join(home, "driver")
	files, err := filepath.Glob(filepath.Join(sources, "*.java"))
	if err != nil {
		return err
	}
	files = slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == "Training.java" || filepath.Base(f) == "Wrong.java" })
	// Without a class of the JDK's for each string that is put together.
	args := append(javacFlags(256*sandbox.MiB), "-XDstringConcat=inline", "--add-exports", "java.base/jdk.internal.vm.annotation=ALL-UNNAMED",
		"-d", classes)
	if err := w.runTool(ctx, home, w.tool.Programs["javac"], append(args, files...)...); err != nil {
		return err
	}
	if err := packDriver(classes, made); err != nil {
		return err
	}
	for _, f := range []string{"Training.java", "Wrong.java"} {
		if err := copyPlain(filepath.Join(sources, f), filepath.Join(made, f)); err != nil {
			return err
		}
	}
	return w.tryDriver(ctx, made)
}

// packDriver puts the classes for the boot loader into a jar, and the two that other loaders load beside it.
func packDriver(classes, made string) error {
	dir := strings.ReplaceAll(javaPackage, ".", "/")
	for _, base := range []string{"Bridge.class", "Key.class"} {
		if err := copyPlain(filepath.Join(classes, dir, base), filepath.Join(made, base)); err != nil {
			return err
		}
	}
	err := writeJar(filepath.Join(made, javaDriver), classes, dir, "Bridge.class", "Key.class", "Program.class")
	return errors.Join(err, os.WriteFile(filepath.Join(made, javaBurn), []byte("0"), 0o644))
}

// writeJar packs the classes of a package, except some.
func writeJar(file, classes, dir string, except ...string) error {
	names, err := filepath.Glob(filepath.Join(classes, dir, "*.class"))
	if err != nil {
		return err
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	for _, name := range names {
		base := filepath.Base(name)
		if slices.Contains(except, base) {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := z.CreateHeader(&zip.FileHeader{Name: path.Join(dir, base), Method: zip.Store})
		if err != nil {
			return err
		}
		if _, err = f.Write(data); err != nil {
			return err
		}
	}
	return errors.Join(z.Close(), os.WriteFile(file, jar.Bytes(), 0o644))
}

func copyPlain(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// tryDriver runs the driver in a sandbox with its real command line, and copies out what depends on that: an archive of the
// compiler's classes, which fits only a driver of the same name, and how the runner differs from the launcher.
func (w *jdkFiles) tryDriver(ctx context.Context, made string) error {
	return w.inSandbox(ctx, made, func(ctx context.Context, id string) error {
		compiler := append([]string{w.tool.Path}, javacMachine(256*sandbox.MiB)...)
		err := w.archive(ctx, id, made, javaDriverArchive, compiler, javaBoot, javaPackage+"Compiler", javaDir, javaPracticeDir, "2",
			"and that is all")
		if err != nil {
			return err
		}
		burn, err := w.calibrate(ctx, id)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(made, javaBurn), []byte(strconv.Itoa(burn)), 0o644)
	})
}

// inSandbox calls a function with a sandbox that shows a directory where programs find the files of the JDK.
func (w *jdkFiles) inSandbox(ctx context.Context, made string, do func(ctx context.Context, id string) error) (err error) {
	m := w.manager
	ctx, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	limits, _ := sandbox.Limits{Wall: makeTimeout, Memory: 1 * sandbox.GiB, Processes: 256, CPUs: float64(m.Machine().CPUs)}.Clamp(m.Machine())
	add := append(slices.Clone(w.tool.Mounts), sandbox.Mount{Source: made, Target: javaDir})
	id, err := m.Create(ctx, sandbox.Spec{Root: sandbox.Root{Add: add}, Require: w.require, Limits: limits})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Delete(context.WithoutCancel(ctx), id)) }()
	return do(ctx, id)
}

// archive runs a program in a virtual machine that archives its classes at the end, and copies the archive out.
func (w *jdkFiles) archive(ctx context.Context, id, made, name string, machine []string, program ...string) error {
	file := path.Join(sandbox.TmpDir, name)
	if _, err := w.runInside(ctx, id, nil, slices.Concat(machine, []string{"-XX:ArchiveClassesAtExit=" + file}, program)); err != nil {
		return err
	}
	taken := sandbox.Selection{Patterns: []string{file}, MaxFiles: 1, MaxBytes: maxJavaArchive}
	if err := errors.Join(prepared.Take(ctx, w.manager, id, taken, made, nil)); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(made, name))
	return err
}

// calibrate counts how many identity hash codes the launcher takes beyond those of the driver, with a program that prints the
// following ones. If the driver takes more than the launcher, the hash codes of programs differ from those of a cold start.
func (w *jdkFiles) calibrate(ctx context.Context, id string) (int, error) {
	machine := append([]string{w.tool.Path}, startupFlags()...)
	cold := append(slices.Clone(machine), "-cp", sandbox.WorkspaceDir, "Probe")
	warm := append(slices.Clone(machine), javaBoot, "-cp", sandbox.WorkspaceDir, javaPackage+"Runner", javaDir, sandbox.WorkspaceDir)
	probe, err := os.ReadFile(filepath.Join(w.dir, "home", "driver", "Probe.class"))
	if err != nil {
		return 0, err
	}
	if err := w.manager.Put(ctx, id, []sandbox.File{{Path: sandbox.WorkspaceDir + "/Probe.class", Data: probe}}); err != nil {
		return 0, err
	}
	message, err := json.Marshal(map[string]any{"args": cold})
	if err != nil {
		return 0, err
	}
	launched, err := w.runInside(ctx, id, nil, cold)
	if err != nil {
		return 0, err
	}
	driven, err := w.runInside(ctx, id, append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...), warm)
	if err != nil {
		return 0, err
	}
	if len(launched) == 0 || len(driven) != len(launched) {
		return 0, fmt.Errorf("the driver said %d things instead of %d", len(driven), len(launched))
	}
	return max(0, slices.Index(driven, launched[0])), nil
}

// runInside runs a command and returns the words that it printed.
func (w *jdkFiles) runInside(ctx context.Context, id string, stdin []byte, args []string) ([]string, error) {
	r, err := w.manager.Run(ctx, id, sandbox.Process{Args: args, Env: w.tool.Env}, sandbox.IO{Stdin: bytes.NewReader(stdin)})
	switch {
	case err != nil:
		return nil, err
	case !r.Success():
		return nil, fmt.Errorf("%w: %s", language.VerdictError(r), strings.TrimSpace(string(r.Stderr.Bytes())))
	}
	return strings.Fields(string(r.Stdout.Bytes())), nil
}

// maxJavaArchive bounds an archive; they have about 12 MiB.
const maxJavaArchive = 128 * sandbox.MiB

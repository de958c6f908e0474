package java

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/javasource"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Language is Java.
var Language = language.Language{
	Name: "java", Title: "Java",
	Extensions: []string{".java"}, Projects: []string{"pom.xml", "build.gradle", "build.gradle.kts"},
	Source: "Main.java", Mains: []string{"Main.java"}, Directory: true, NamedEntry: true,
	Sample:    "public class Main { public static void main(String[] args) {} }\n",
	Toolchain: &description, Image: "sandbox-run/java", Options: []string{"enable-assertions", "test", "check"},
	Limits:   sandbox.Limits{Processes: 256}, // the virtual machine has some twenty threads
	Working:  256 * sandbox.MiB,              // 50 MiB were measured for a small program
	Packages: packages, Plan: plan, Session: planSession,
}

const (
	classDir = language.BuildDir + "/classes"
	// maxJavaArgs is the longest list of files on a command line; a longer one goes through a file.
	maxJavaArgs = 100 << 10
	// javaOutOfMemory is the exit code of a virtual machine, or of javac, with a full heap.
	javaOutOfMemory = 3
)

// stackSignal is SIGQUIT: the virtual machine prints the stacks of all threads and continues.
const stackSignal = 3

// startupFlags make a virtual machine start fastest: a simple collector, the JDK's classes from its shared archive, no file for
// monitoring tools.
func startupFlags() []string { return []string{"-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData"} }

// programMachine returns the command of a program's virtual machine, up to its class path. The machine's own output, such as the stacks at
// a limit, is on standard error: standard output is the program's.
func programMachine(j *language.Job) []string {
	return append(append([]string{j.Tool.Path}, startupFlags()...),
		heapFlag(javaHeap(j.Memory())), "-XX:ReservedCodeCacheSize=64m", "-XX:+DisplayVMOutputToStderr",
		"-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-Dstderr.encoding=UTF-8",
	)
}

// javacMachine returns the flags of javac's virtual machine, which is too short-lived for the better compiler. They suppress
// messages about its archive.
func javacMachine(heap sandbox.Size) []string {
	return append(startupFlags(), "-XX:TieredStopAtLevel=1", heapFlag(heap), "-Xlog:disable")
}

// javacFlags returns the flags of javac and its virtual machine.
func javacFlags(heap sandbox.Size) []string {
	var flags []string
	for _, f := range javacMachine(heap) {
		flags = append(flags, "-J"+f)
	}
	return append(flags, "-encoding", "UTF-8", "-proc:none", "-nowarn", "-XDsuppressNotes")
}

func heapFlag(heap sandbox.Size) string {
	return "-Xmx" + strconv.FormatInt(int64(heap/sandbox.KiB), 10) + "k"
}

func plan(j *language.Job) error {
	sources, err := readJava(j)
	if err != nil {
		return err
	}
	layer, err := showJars(j)
	if err != nil {
		return err
	}
	var start []string // the class and its first arguments
	if j.Request.Options.Test {
		start, err = testStart(j, sources, layer)
	} else {
		start = []string{""}
		start[0], err = javaMain(j, sources)
	}
	if err != nil {
		return err
	}
	preview := previewFlags(j, sources)
	classPath := strings.Join(slices.Concat([]string{classDir}, programPath(j), layer), ":")

	args := append([]string{j.Tool.Programs["javac"]}, javacFlags(javaHeap(j.CompileLimits.Memory))...)
	if warm := j.HostWarmDir(); warm != "" {
		w := &jdkFiles{dir: prepared.ToolchainDir(warm, j.Tool), tool: j.Tool, manager: j.Manager, store: j.Store, driver: j.MayPrestart()}
		j.Mount(w.path(), javaDir)
		j.Plan.Prepare = w.prepare
		args = append(args, javaArchiveFlag)
	}
	args = append(args, "-d", classDir, "-cp", classPath)
	args = append(args, preview...)
	var names []string
	length := 0
	for _, s := range sources {
		names = append(names, s.path)
		length += len(s.path) + 1
	}
	if length > maxJavaArgs {
		const list = language.BuildDir + "/sources"
		j.Plan.Files = append(j.Plan.Files, sandbox.File{Path: list, Data: javaArgFile(names)})
		names = []string{"@" + list}
	}
	c := j.AddCompile([]string{classDir}, append(args, names...)...)
	c.Process.Env = maps.Clone(j.Tool.Env)
	c.OutOfMemory = func(r *sandbox.Result) bool {
		return r.Exit.Code == javaOutOfMemory && bytes.Contains(r.Stderr.Edges(sandbox.OutputMemory), []byte("java.lang.OutOfMemoryError"))
	}

	args = programMachine(j)
	if len(preview) > 0 {
		args = append(args, "--enable-preview")
	}
	if j.Request.Options.EnableAssertions {
		args = append(args, "-ea")
	}
	run := j.AddRun(slices.Concat(args, []string{"-cp", classPath}, start)...)
	run.Process.Env = maps.Clone(j.Tool.Env)
	run.OutOfMemory = isOutOfMemory
	run.Process.StackSignal = stackSignal
	if j.Request.Options.Test && j.Request.Tests != nil {
		sendReport(j, run)
	}
	if j.HostWarmDir() != "" && j.MayPrestart() && !j.Request.Options.Test {
		prestart(j, sources, classPath)
	}
	return nil
}

// isOutOfMemory recognises that an error of a full heap, which the program did not catch, ended the main thread. The virtual machine then
// prints the trace, or one line if the heap has no room for a trace. Other errors of this class have other causes: threads, or an array
// of more elements than arrays can have.
func isOutOfMemory(r *sandbox.Result) bool {
	const failed = "java.lang.OutOfMemoryError"
	if r.Exit.Code != 1 {
		return false
	}
	said := string(r.Stderr.Edges(sandbox.OutputMemory))
	if strings.Contains(said, "Exception: "+failed+" thrown from the UncaughtExceptionHandler in thread \"main\"") {
		return true
	}
	const uncaught = `Exception in thread "main" `
	i := strings.LastIndex(said, uncaught)
	if i < 0 {
		return false
	}
	for line := range strings.Lines(said[i+len(uncaught):]) {
		if cause, ok := strings.CutPrefix(strings.TrimPrefix(line, "Caused by: "), failed+": "); ok {
			return strings.HasPrefix(cause, "Java heap space") || strings.HasPrefix(cause, "GC overhead limit exceeded") ||
				strings.Contains(cause, "direct buffer memory") || strings.HasPrefix(cause, "Direct buffer memory")
		}
	}
	return false
}

// javaHeap returns the part of the memory for the heap. The rest is for classes, compiled code, threads and the virtual machine
// itself, so that the heap is full before the kernel kills the process.
func javaHeap(memory sandbox.Size) sandbox.Size {
	const machine = 48 * sandbox.MiB
	return max(memory-min(memory, machine+memory/8), memory/4, 8*sandbox.MiB) // javac needs 8 MiB at the start
}

// javaArgFile returns a list of names in the form that javac reads.
func javaArgFile(names []string) []byte {
	var b bytes.Buffer
	for _, n := range names {
		b.WriteString(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(n) + "\"\n")
	}
	return b.Bytes()
}

// previewFlags returns the flags for a file with a main outside of a class: from JDK 25 none, from JDK 21 those of a preview. javac of an
// older JDK reports an error of the program.
func previewFlags(j *language.Job, sources []javaSource) []string {
	if !slices.ContainsFunc(sources, func(s javaSource) bool { return s.Compact }) {
		return nil
	}
	major, _, _ := strings.Cut(j.Tool.Version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil || n >= 25:
		return nil
	case n >= 21:
		return []string{"--enable-preview", "--release", major}
	}
	j.Plan.Notes = append(j.Plan.Notes, "a main outside of a class needs JDK 21 or later; this is "+j.Tool.Version)
	return nil
}

// javaSource is a file of a program.
type javaSource struct {
	javasource.Source
	path, given string // given is its path before it was renamed
	gives       bool   // mentions an API that shows how its machine started
	tests       bool   // is a class with tests that JUnit can make an object of
}

// readJava reads the sources, and gives each file the name that its public class demands.
func readJava(j *language.Job) ([]javaSource, error) {
	var sources []javaSource
	single := len(j.Files) == 1
	for i := range j.Files {
		f := &j.Files[i]
		if !single && (path.Ext(f.Path) != ".java" || !isCompiled(j, f.Path)) {
			continue
		}
		text, err := f.Content()
		if err != nil {
			return nil, err
		}
		if single && !j.Request.Options.Test {
			if wrapped, ok := wrapSnippet(f.Path, string(text)); ok {
				text = []byte(wrapped)
				f.Open, f.Data = nil, text
			}
		}
		s, given := javaSource{Source: javasource.Scan(string(text))}, f.Path
		name := s.Public
		if name == "" && len(s.Mains) == 1 && j.Request.Code != "" && j.Request.Name == "" {
			name = s.Mains[0] // code without a name: traces show the class name of its author
		}
		if name += ".java"; name != ".java" && path.Base(f.Path) != name {
			if renamed := path.Join(path.Dir(f.Path), name); language.Find(j.Files, renamed) == nil {
				f.Path = renamed
			}
		}
		if path.Ext(f.Path) != ".java" {
			f.Path = path.Join(path.Dir(f.Path), j.Language.Source)
		}
		if strings.HasPrefix(f.Path, "-") || strings.HasPrefix(f.Path, "@") {
			return nil, sandbox.Invalid("files", "javac would not take %q for the name of a file", f.Path)
		}
		s.path, s.given, s.gives = f.Path, given, givesAway(text)
		s.tests = bytes.Contains(text, []byte("@Test")) || bytes.Contains(text, []byte("extends TestCase"))
		if s.Compact {
			s.Mains = []string{strings.TrimSuffix(path.Base(f.Path), ".java")}
		}
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "files", "--lang, if it is another language", "no file ends in .java")
	}
	inheritTests(sources)
	return sources, nil
}

// class returns the class that the file is named after.
func (s *javaSource) class() string { return strings.TrimSuffix(path.Base(s.path), ".java") }

// inheritTests marks the classes that have tests through a class that they extend, and removes the mark of abstract classes.
func inheritTests(sources []javaSource) {
	byClass := make(map[string]int, 2*len(sources))
	for i := range sources {
		byClass[sources[i].class()] = i
	}
	for i := range sources {
		byClass[sources[i].Qualified(sources[i].class())] = i
	}
	checked := make([]bool, len(sources)) // each class is looked at once, also in a cycle
	for i := range sources {
		var chain []int
		n, known := i, true
		for known && !sources[n].tests && !checked[n] {
			checked[n] = true
			chain = append(chain, n)
			s := &sources[n]
			extended := s.Extends[s.class()]
			if n, known = byClass[s.Qualified(extended)]; !known {
				n, known = byClass[extended]
			}
		}
		if known && sources[n].tests {
			for _, c := range chain {
				sources[c].tests = true
			}
		}
	}
	for i := range sources {
		s := &sources[i]
		s.tests = s.tests && !slices.Contains(s.Abstract, s.class())
	}
}

// programPath returns the part of the class path that has the program's own files other than its sources.
func programPath(j *language.Job) []string {
	class := append(resourceDirs(j), j.Dir) // other files of the program stay in its directory
	for _, f := range j.Files {
		if path.Ext(f.Path) == ".jar" {
			class = append(class, j.Inside(f.Path))
		}
	}
	return class
}

// resourceDirs returns the directories of files that Maven and Gradle put beside the classes.
func resourceDirs(j *language.Job) (dirs []string) {
	for _, kind := range []string{"src/main/resources", "src/test/resources"} {
		if kind == "src/test/resources" && !j.Request.Options.Test {
			continue
		}
		for _, f := range j.Files {
			before, _, found := strings.Cut("/"+f.Path, "/"+kind+"/")
			if dir := j.Inside(before + "/" + kind); found && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// isCompiled reports whether a file belongs to the program. Of the directories src/NAME/java of Maven and Gradle these are main; test, if
// the tests are to run; and the one with the entry. The libraries of the others are missing here.
func isCompiled(j *language.Job, p string) bool {
	if path.Base(p) == "module-info.java" && j.Request.Options.Test {
		return false // as a module, the program does not see JUnit, nor its tests the program
	}
	if strings.Contains("/"+p, "/src/test/") {
		return j.Request.Options.Test
	}
	before, rest, _ := strings.Cut("/"+p, "/src/")
	name, rest, _ := strings.Cut(rest, "/")
	src := strings.TrimPrefix(before+"/src/", "/")
	if name == "main" || !strings.HasPrefix(rest, "java/") || strings.HasPrefix(path.Clean(j.Request.Entry), src+name+"/") {
		return true
	}
	return !slices.ContainsFunc(j.Files, func(f language.File) bool { return strings.HasPrefix(f.Path, src+"main/java/") })
}

// javaMain returns the class that starts the program: that of the entry, which may be a class, a file or a directory; the only
// one with a main; or the one called Main.
func javaMain(j *language.Job, sources []javaSource) (string, error) {
	entry := path.Clean(j.Request.Entry)
	var all, chosen []string
	for _, s := range sources {
		for _, class := range s.Mains {
			full := s.Qualified(class)
			all = append(all, full)
			if entry == full || entry == class {
				return full, nil
			}
			if language.IsBelow(s.path, entry) || s.given == entry {
				chosen = append(chosen, full)
			}
		}
	}
	isMain := func(c string) bool { return c == "Main" || strings.HasSuffix(c, ".Main") }
	switch i := slices.IndexFunc(chosen, isMain); {
	case len(chosen) == 1:
		return chosen[0], nil
	case i >= 0:
		return chosen[i], nil
	case len(chosen) > 1:
		return "", sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry "+sandbox.ShellQuote(chosen[0]),
			"several classes have a main: %s", strings.Join(chosen, ", "))
	case len(all) > 0:
		return "", sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry "+sandbox.ShellQuote(all[0]),
			"%q has no main; these classes do: %s", j.Request.Entry, strings.Join(all, ", "))
	}
	// javac may report another error of the program; if not, java reports that there is no main.
	for _, s := range sources {
		if len(s.Classes) > 0 {
			return s.Qualified(s.Classes[0]), nil
		}
	}
	return strings.TrimSuffix(path.Base(sources[0].path), ".java"), nil
}

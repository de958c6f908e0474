// Package typescript compiles a TypeScript program to one JavaScript module, with esbuild.
//
// What. The user's own files (relative imports, tsconfig paths, workspace packages, JSON) become one ES module with a source map beside
// it. Packages in node_modules stay where they are and are named by their full paths; what is built into Node stays as it is. Types are
// stripped, not checked.
//
// Place in the flow. `sandbox-kit typescript` calls Build in the compile phase, inside the sandbox; the run phase is `node
// --enable-source-maps` on the result.
//
// Cells of a session (cells.go) are not bundled: a process that stays removes the types of each, and keeps what only later cells use.
//
// Lifecycle. One Build per process in practice, except in a session; only the written files stay.
//
// Concurrency. Build may be called from several goroutines. esbuild reads files on goroutines of its own, so what the callbacks collect
// is behind a lock.
//
// Limits. The result is an ES module whatever the files are, because only there top-level await works. Files that use features of
// CommonJS (require, module, __dirname …) get definitions of them. emitDecoratorMetadata is not supported: it needs types. Functions and
// classes of different files that share a name at the top level are numbered in the result, which shows in their name property.
//
// A file gets what it mentions:
//
//	__dirname, __filename, import.meta.url/dirname/filename   variables on the file's own first line, with the places of the source
//	require, module, exports                                  globals of the module, resolved from the entry
//	require.main === module, process.argv[1]                  true in the entry only; the entry's path
//	new Worker(…), fork(…) of a file of the program           a module of its own for that file
//
// Packages are resolved while compiling, because the module is in /tmp/build, from where Node would not find them; a missing one is an
// error with file and line. A CommonJS package is imported through a small module that requires it, because Node only guesses its
// exports. For names that are computed at run time, a node_modules link is beside the module. A package whose files are TypeScript, or
// that is linked from outside node_modules, is compiled like the program.
//
// A full stack ends a Go process without an error. A file above 64 KiB, which could be nested that deeply, is compiled in a child
// process, whose end is reported as a compile error.
package typescript

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// Options are the arguments of Build. Paths are absolute or relative to Dir.
type Options struct {
	Dir        string // the base of relative paths and of paths in messages; must be absolute
	Entry      string // the file to start with
	Out        string // the module to write; the source map goes to Out + ".map"
	TSConfig   string // replaces the tsconfig.json that is nearest to each file
	Disposable bool   // a crash of this process is acceptable: files of any size are compiled
}

// ErrLarge says that a file is so large that it could be nested too deeply for the stack, which would crash the
// process: the caller starts Build in a child process, with Options.Disposable.
var ErrLarge = errors.New("the program is too large to be compiled in this process")

// largestUnwatched is the size up to which no text can be nested that deeply: the stack is full at some
// hundred thousand levels.
const largestUnwatched = 64 << 10

// oldestNode is the oldest release whose syntax the result may use.
const oldestNode = "18"

// Build writes the module and returns the compiler's warnings as text. The error is a *Failure if the user's program is wrong,
// ErrLarge, or an error of the kit.
func Build(o Options) (warnings string, err error) {
	if o.Entry == "" || o.Out == "" {
		return "", errors.New("build: an entry and an output file are needed")
	}
	entry, out := within(o.Dir, o.Entry), within(o.Dir, o.Out)
	if st, err := os.Stat(entry); err != nil || !st.Mode().IsRegular() {
		return "", &Failure{Text: fmt.Sprintf("%s: no such entry file\n", o.Entry)}
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	p := &program{dir: o.Dir, tsconfig: o.TSConfig, largest: largestUnwatched, main: entry, outputs: map[string]string{entry: out},
		aliases: map[string]string{}, queue: []string{entry}}
	if o.Disposable {
		p.largest = math.MaxInt
	}
	for len(p.queue) > 0 {
		file := p.queue[0]
		p.queue = p.queue[1:]
		said, err := p.build(file, p.outputs[file])
		warnings += said
		if err != nil {
			return warnings, err
		}
	}
	return warnings, linkPackages(filepath.Dir(entry), filepath.Dir(out))
}

// Failure is the error of a program that can not be built, with the compiler's messages as text.
type Failure struct{ Text string }

func (f *Failure) Error() string { return strings.TrimSpace(f.Text) }

// program is the state of all modules that are being built: the main one, and one for each file that is
// started as a thread or a process.
type program struct {
	dir, tsconfig string
	largest       int
	main          string
	outputs       map[string]string // entry → module
	aliases       map[string]string // another name of an entry → module
	queue         []string
}

func (p *program) build(entry, out string) (warnings string, err error) {
	f := &files{entry: entry, prefixes: map[string]int{}, largest: p.largest}
	defer func() {
		if r := recover(); r != nil {
			err = &Failure{Text: fmt.Sprintf("%s: the compiler failed: %v\n", p.relative(entry), r)}
		}
	}()
	options := api.BuildOptions{
		AbsWorkingDir: p.dir,
		EntryPoints:   []string{entry},
		Outfile:       out,
		Tsconfig:      p.tsconfig,

		Bundle:         true,
		Platform:       api.PlatformNode,
		Format:         api.FormatESModule,
		Engines:        []api.Engine{{Name: api.EngineNode, Version: oldestNode}},
		Conditions:     []string{}, // not "module": packages stay external, and Node does not use that condition
		Charset:        api.CharsetUTF8,
		LegalComments:  api.LegalCommentsNone,
		Sourcemap:      api.SourceMapExternal,
		SourcesContent: api.SourcesContentExclude, // Node reads the files themselves
		Define:         perFile,
		Plugins:        []api.Plugin{f.plugin()},
		LogLevel:       api.LogLevelSilent,
		LogLimit:       20,
		LogOverride: map[string]api.LogLevel{
			"commonjs-variable-in-esm": api.LogLevelSilent, // the prelude defines it
		},
	}
	result := api.Build(options)
	if f.tooLarge {
		return "", ErrLarge
	}
	text := p.format(result.Errors, api.ErrorMessage, f)
	warnings = p.format(result.Warnings, api.WarningMessage, f)
	if len(result.Errors) > 0 {
		return "", &Failure{Text: warnings + text}
	}
	p.addThreads(f.started)
	return warnings, p.write(result.OutputFiles, entry, out, f)
}

// addThreads adds a module for each file that is started on its own.
func (p *program) addThreads(started []startedFile) {
	out := p.outputs[p.main]
	for _, s := range started {
		if p.outputs[s.file] == "" {
			p.outputs[s.file] = strings.TrimSuffix(out, filepath.Ext(out)) + "-" + strconv.Itoa(len(p.outputs)) + ".mjs"
			p.queue = append(p.queue, s.file)
		}
		if s.named != s.file {
			p.aliases[s.named] = p.outputs[s.file]
		}
	}
}

// write puts the prelude before the module and moves its source map down by as many lines.
func (p *program) write(outputs []api.OutputFile, entry, out string, f *files) error {
	var module, mapping []byte
	for _, o := range outputs {
		switch o.Path {
		case out:
			module = o.Contents
		case out + ".map":
			mapping = o.Contents
		}
	}
	before := p.prelude(entry, f)
	lines := strings.Repeat(";", strings.Count(before, "\n"))
	mapping = bytes.Replace(mapping, []byte(`"mappings": "`), []byte(`"mappings": "`+lines), 1)

	var whole bytes.Buffer
	whole.Grow(len(before) + len(module) + 64)
	whole.WriteString(before)
	whole.Write(module)
	whole.WriteString("//# sourceMappingURL=" + urlEscape(filepath.Base(out)) + ".map\n")
	if err := os.WriteFile(out+".map", mapping, 0o644); err != nil {
		return err
	}
	return os.WriteFile(out, whole.Bytes(), 0o644)
}

// format writes messages as esbuild does, with positions in the files on disk.
func (p *program) format(messages []api.Message, kind api.MessageKind, f *files) string {
	if len(messages) == 0 {
		return ""
	}
	for i := range messages {
		messages[i].Notes = slices.DeleteFunc(messages[i].Notes, adviceOnBundling)
		f.correct(p.dir, messages[i].Location)
		for _, note := range messages[i].Notes {
			f.correct(p.dir, note.Location)
		}
		if l := messages[i].Location; l != nil && len(l.LineText) > longestLine {
			l.LineText, l.Column, l.Length = "", 0, 0
		}
	}
	return strings.Join(api.FormatMessages(messages, api.FormatMessagesOptions{Kind: kind, TerminalWidth: 100}), "")
}

// adviceOnBundling reports a note about options of esbuild, which our users can not set.
func adviceOnBundling(n api.Note) bool { return strings.HasPrefix(n.Text, "You can mark the path ") }

// longestLine is the longest line that a message shows.
const longestLine = 100_000

func (p *program) relative(path string) string {
	if r, err := filepath.Rel(p.dir, path); err == nil && !strings.HasPrefix(r, "..") {
		return r
	}
	return path
}

func within(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// linkPackages lets packages that the program names only at run time (import(name)) be found from the directory of the
// module.
func linkPackages(from, out string) error {
	for dir := from; ; dir = filepath.Dir(dir) {
		packages := filepath.Join(dir, "node_modules")
		if st, err := os.Stat(packages); err == nil && st.IsDir() {
			if filepath.Dir(packages) == out {
				return nil
			}
			err := os.Symlink(packages, filepath.Join(out, "node_modules"))
			if errors.Is(err, os.ErrExist) {
				return nil
			}
			return err
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// source is the code to run with its arguments and its input.
type source struct {
	code, name string
	files      []executor.File
	entry      string
	args       []string
	stdin      io.Reader
	variables  *templateVariables // nil without a template

	selected selection // which entries of a directory are the program's
	hostDir  string    // the directory on this machine; "" for another source
	beside   string    // the path of a file that is the whole program; "" for another source
	left     []leftOut // entries of the directory that are not copied

	fromStdin bool // the code was read from standard input
}

// StdinName is the name of standard input on a command line.
const StdinName = "-"

// maxSource is the maximum size of one file of code.
const maxSource = 16 << 20

// errNoCode is the error of an empty standard input that should contain the code.
var errNoCode = &sandbox.Error{
	Op: "standard input", Kind: sandbox.ErrInvalid, Err: errors.New("there is no code in it"),
	Hint: `sandbox-run --lang python --code 'print("hello")'`,
}

// readProgram reads the code, the template and the program's arguments into o.program.
func (o *runOptions) readProgram(c *Invocation, cmd *cobra.Command, args []string) error {
	words, rest := args, []string(nil)
	if n := cmd.Flags().ArgsLenAtDash(); n >= 0 {
		words, rest = args[:n], args[n:]
	}
	o.program = &source{entry: o.entry, selected: o.selected}
	fill, err := o.readTemplate(cmd.Flags())
	if err != nil {
		return err
	}
	fromStdin := false
	if fill == nil || fill.wantsCode() {
		if words, fromStdin, err = o.readSource(c, cmd, words); err != nil {
			return err
		}
	} else if cmd.Flags().Changed("code") || len(o.files.Values) > 0 {
		return sandbox.Invalid("template", "%s takes no code; leave out --code and --file", o.template)
	}
	s := o.program
	s.fromStdin = fromStdin
	for _, name := range []string{"exclude", "include"} {
		if isOnCommandLine(cmd.Flags(), name) && s.hostDir == "" && len(o.in.Values) == 0 && o.project == "" {
			return sandbox.Invalid(name, "it selects entries of a directory, and the program is none; leave out --%s", name)
		}
	}
	s.variables = fill
	s.args = append(append([]string(nil), words...), rest...)
	// A background process that reads from the terminal is stopped.
	if !fromStdin && (!IsTerminal(c.Std.In) || isForeground(c.Std.In)) {
		s.stdin = c.Std.In
	}
	return nil
}

// readSource reads the code from the one source that is given, and returns the remaining words.
func (o *runOptions) readSource(c *Invocation, cmd *cobra.Command, words []string) (left []string, fromStdin bool, err error) {
	flags, s := cmd.Flags(), o.program
	fromCode, fromFiles := flags.Changed("code"), len(o.files.Values) > 0
	// Variables count only if no source is on the command line.
	if len(words) > 0 || isOnCommandLine(flags, "code") || isOnCommandLine(flags, "file") {
		fromCode, fromFiles = isOnCommandLine(flags, "code"), isOnCommandLine(flags, "file")
	}
	switch {
	case fromCode && fromFiles:
		return nil, false, sandbox.Invalid("code", "two sources of code: --code and --file %s; leave out one of them", o.files.Values[0])
	case (fromCode || fromFiles) && len(words) > 0:
		from := "--code"
		if fromFiles {
			from = "--file"
		}
		return nil, false, &sandbox.Error{
			Op: "command line", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("two sources of code: %s and %q", from, words[0]),
			Hint: fmt.Sprintf("-- %s, if it is an argument of the program", words[0]),
		}
	case fromCode:
		s.code = o.code
		return nil, false, checkCode("code", o.code)
	case fromFiles:
		return nil, false, s.readFiles(o.files.Values)
	case len(words) == 0 && o.options.Module != "":
		return nil, false, nil
	case len(words) == 0:
		return nil, true, s.readStdin(c, o.quiet)
	case words[0] == StdinName:
		return words[1:], true, s.readStdin(c, o.quiet)
	case !pathExists(words[0]) && strings.ContainsAny(words[0], "./"): // no command is called so
		return nil, false, missingFile(words[0])
	case !pathExists(words[0]):
		return nil, false, unknownCommandOrFile(cmd, words)
	}
	err = s.readPath(words[0])
	if left = words[1:]; o.options.Module != "" && s.beside != "" { // the file is the module's argument
		left = append([]string{s.files[0].Path}, left...)
	}
	return left, false, err
}

// missingFile is the error for a file that does not exist. Its hint is a file with a similar name, if the directory has one.
func missingFile(name string) error {
	e := &sandbox.Error{Op: "read " + name, Kind: sandbox.ErrInvalid, Err: syscall.ENOENT}
	dir := filepath.Dir(absoluteName(name))
	switch like := similarFile(name); {
	case like != "":
		e.Hint = sandbox.ShellQuote(like) + " instead of " + sandbox.ShellQuote(name)
	case !pathExists(dir):
		e.Hint = "another path: there is no directory " + dir
	default:
		e.Hint = "the name of a file in " + dir
	}
	return e
}

// similarFile is a file beside name whose name differs by a typing error or by its extension; "" for none.
func similarFile(name string) string {
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil {
		return ""
	}
	base := filepath.Base(name)
	var names []string
	for _, e := range entries {
		stem := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name()))
		if e.Type().IsRegular() && stem == base {
			return filepath.Join(filepath.Dir(name), e.Name())
		}
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	if like := nearest.Word(base, names); like != "" {
		return filepath.Join(filepath.Dir(name), like)
	}
	return ""
}

// unknownCommandOrFile is the error for a first word that is neither. The word may be a language, a file without its extension, or a
// command with a typing error.
func unknownCommandOrFile(cmd *cobra.Command, words []string) error {
	word := words[0]
	if executor.IsLanguage(word) {
		file := "FILE"
		if len(words) > 1 {
			file = sandbox.ShellQuote(words[1])
		}
		return newUnknownWord(commandOrFile, word, fmt.Sprintf("%s --lang %s %s", CommandName, word, file))
	}
	if like := similarFile(word); like != "" && len(cmd.SuggestionsFor(word)) == 0 {
		return newUnknownWord(commandOrFile, word, sandbox.ShellQuote(like)+" instead of "+sandbox.ShellQuote(word))
	}
	return unknownWordError(cmd, commandOrFile, word)
}

// pathExists reports whether the path exists, readable or not.
func pathExists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil || !errors.Is(err, os.ErrNotExist)
}

func (s *source) readStdin(c *Invocation, quiet bool) error {
	if IsTerminal(c.Std.In) && !quiet {
		c.PrintMessage("reading code from the terminal; end with Ctrl-D")
	}
	code, err := readCode("standard input", c.Std.In)
	if err != nil {
		return err
	}
	if strings.TrimSpace(code) == "" {
		return errNoCode
	}
	s.code = code
	return nil
}

// readPath reads the code from a file or a directory.
func (s *source) readPath(name string) error {
	// O_NONBLOCK: opening a pipe without a writer must not block.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return unreadableError(name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return unreadableError(name, err)
	}
	if st.IsDir() {
		base := filepath.Base(absoluteName(name))
		if err = s.readDirectory(name); err == nil && s.entry == "" && token.IsIdentifier(base) && isPythonPackage(s.files) {
			// The package may import itself by its name, as with python -m.
			for i := range s.files {
				s.files[i].Path = path.Join(base, s.files[i].Path)
			}
		}
		return err
	}
	code, err := readCode(name, f)
	if err != nil {
		return err
	}
	if err := checkCode("read "+name, code); err != nil {
		return err
	}
	if st.Mode().IsRegular() {
		// As a file and not as code: tracebacks show its name, and it keeps its mode.
		s.files = []executor.File{{Path: filepath.Base(absoluteName(name)), Mode: st.Mode().Perm(), Data: []byte(code)}}
		s.beside = name
		return nil
	}
	s.code = code
	return nil
}

// isPythonPackage reports whether the directory itself is a package that can be started.
func isPythonPackage(files []executor.File) bool {
	has := func(name string) bool {
		return slices.ContainsFunc(files, func(f executor.File) bool { return f.Path == name })
	}
	return has("__init__.py") && has("__main__.py")
}

// readFiles reads several files into one directory. The first is the entry.
func (s *source) readFiles(names []string) error {
	if len(names) == 1 {
		return s.readPath(names[0])
	}
	for _, name := range names {
		if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
			return sandbox.Invalid("file", "%q is not a regular file; of several --file, each has to be one", name)
		}
		one := &source{}
		if err := one.readPath(name); err != nil {
			return err
		}
		if len(one.files) != 1 {
			return sandbox.Invalid("file", "%q is no regular file any more", name)
		}
		s.files = append(s.files, one.files[0])
	}
	if s.entry == "" {
		s.entry = s.files[0].Path
	}
	return nil
}

// readCode reads one file of code to its end.
func readCode(name string, from io.Reader) (string, error) {
	var text strings.Builder
	n, err := io.Copy(&text, io.LimitReader(from, maxSource+1))
	if err != nil {
		return "", unreadableError(name, err)
	}
	if n > maxSource {
		return "", &sandbox.Error{
			Op: "read " + name, Kind: sandbox.ErrInvalid, Err: fmt.Errorf("it has more than %s; that is no code", sandbox.Size(maxSource)),
			Hint: "--in, for data",
		}
	}
	if err := checkText(name, []byte(text.String())); err != nil {
		return "", err
	}
	return text.String(), nil
}

func checkText(name string, data []byte) error {
	if at := bytes.IndexByte(data, 0); at >= 0 {
		return &sandbox.Error{
			Op: "read " + name, Kind: sandbox.ErrInvalid, Err: fmt.Errorf("it is binary, not code: byte %d is NUL", at),
			Hint: "sandbox-run exec, for programs that are compiled already",
		}
	}
	return nil
}

func checkCode(op, code string) error {
	if strings.TrimSpace(code) == "" {
		return &sandbox.Error{Op: op, Kind: sandbox.ErrInvalid, Hint: errNoCode.Hint,
			Err: errors.New("it is empty: there is no code to run")}
	}
	return checkText(op, []byte(code))
}

// unreadableError returns the error for a path that can not be read.
func unreadableError(name string, err error) error {
	return &sandbox.Error{Op: "read " + name, Kind: sandbox.ErrInvalid, Err: plainPathError(err), Hint: "ls -ld " + sandbox.ShellQuote(name)}
}

// absoluteName makes a path absolute, so that . and .. have a base name.
func absoluteName(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

// plainPathError removes the path from an error, for callers that name the path themselves.
func plainPathError(err error) error {
	for {
		var e *fs.PathError
		if !errors.As(err, &e) {
			return err
		}
		err = e.Err
	}
}

// readInput parses host[:dest] and returns the files that are copied into /workspace.
func readInput(text string, selected selection) ([]executor.File, []leftOut, error) {
	host, dest := splitHostPath(text)
	if host == "" {
		return nil, nil, sandbox.Invalid("in", "%q names no file; write it like data.csv or data.csv:input/data.csv", text)
	}
	if dest == "" {
		dest = filepath.Base(absoluteName(host))
	}
	if inside, ok := strings.CutPrefix(path.Clean(dest), sandbox.WorkspaceDir+"/"); ok {
		dest = inside
	}
	if dest = path.Clean(dest); dest == sandbox.WorkspaceDir {
		dest = "."
	}
	st, err := os.Stat(host)
	if err != nil {
		return nil, nil, &sandbox.Error{Op: "in", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("%s: %w", host, plainPathError(err)),
			Hint: "--in FILE, with a file or directory that exists"}
	}
	if !st.IsDir() {
		if !st.Mode().IsRegular() {
			return nil, nil, sandbox.Invalid("in", "%s is neither a file nor a directory", host)
		}
		if strings.HasSuffix(text, "/") || dest == "." {
			dest = path.Join(dest, filepath.Base(host))
		}
		return []executor.File{{Path: dest, Mode: st.Mode().Perm(), Open: func() (io.ReadCloser, error) {
			return os.OpenFile(host, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have replaced the file
		}}}, nil, nil
	}
	selected.isData = true
	t := &tree{name: host, selection: selected}
	if err := t.readRoot(host); err != nil {
		return nil, nil, err
	}
	for i := range t.files {
		t.files[i].Path = path.Join(dest, t.files[i].Path)
	}
	return t.files, t.left, nil
}

// readSetup returns a file that is copied into the working directory under its base name.
func readSetup(name string) (executor.File, error) {
	files, _, err := readInput(name+":"+filepath.Base(name), selection{})
	if err != nil || len(files) != 1 {
		return executor.File{}, sandbox.Invalid("setup", "%q is not a file that can be read", name)
	}
	return files[0], nil
}

// splitHostPath splits host:dest at its last colon, unless the whole text is an existing path.
func splitHostPath(text string) (first, second string) {
	if pathExists(text) {
		return text, ""
	}
	if at := strings.LastIndexByte(text, ':'); at >= 0 {
		return text[:at], text[at+1:]
	}
	return text, ""
}

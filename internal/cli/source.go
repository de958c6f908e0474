package cli

import (
	"bytes"
	"errors"
	"fmt"
	"go/token"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// source is the code to run, wherever it was given, and what goes with it.
type source struct {
	code, name string
	files      []executor.File
	entry      string
	args       []string
	stdin      io.Reader
	filling    *filling // nil without a template
}

// stdinName is how standard input is called on a command line.
const stdinName = "-"

// maxSource bounds one file of code: nobody has written more than that.
const maxSource = 16 << 20

// errNothing: standard input was to be the code, and there was none.
var errNothing = &sandbox.Error{
	Op: "standard input", Kind: sandbox.ErrInvalid, Err: errors.New("there is no code in it"),
	Hint: `sandbox-run --lang python --code 'print("hello")'`,
}

// readProgram finds the code and reads it.
func (o *runOptions) readProgram(c *cli, cmd *cobra.Command, args []string) error {
	words, rest := args, []string(nil)
	if n := cmd.Flags().ArgsLenAtDash(); n >= 0 {
		words, rest = args[:n], args[n:]
	}
	o.program = &source{entry: o.entry}
	fill, err := o.readTemplate(cmd.Flags())
	if err != nil {
		return err
	}
	fromStdin := false
	if fill == nil || fill.wantsCode() {
		if words, fromStdin, err = o.readSource(c, cmd, words); err != nil {
			return err
		}
	} else if cmd.Flags().Changed("code") || len(o.files.values) > 0 {
		return sandbox.Invalid("template", "%s takes no code; leave out --code and --file", o.template)
	}
	s := o.program
	s.filling = fill
	s.args = append(append([]string(nil), words...), rest...)
	// A terminal from which we may not read would stop us.
	if !fromStdin && (!isTerminal(c.std.in) || inForeground(c.std.in)) {
		s.stdin = c.std.in
	}
	return nil
}

// readSource reads the code from the one place that was named, and returns the words that are left.
func (o *runOptions) readSource(c *cli, cmd *cobra.Command, words []string) (left []string, fromStdin bool, err error) {
	flags, s := cmd.Flags(), o.program
	fromCode, fromFiles := flags.Changed("code"), len(o.files.values) > 0
	// A variable is for when nothing is given.
	if len(words) > 0 || given(flags, "code") || given(flags, "file") {
		fromCode, fromFiles = given(flags, "code"), given(flags, "file")
	}
	switch {
	case fromCode && fromFiles:
		return nil, false, sandbox.Invalid("code", "two sources of code: --code and --file %s", o.files.values[0])
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
		return nil, false, s.readFiles(o.files.values)
	case len(words) == 0:
		return nil, true, s.readStdin(c.std.in)
	case words[0] == stdinName:
		return words[1:], true, s.readStdin(c.std.in)
	case !exists(words[0]) && strings.ContainsAny(words[0], "./"): // no command is called so
		return nil, false, &sandbox.Error{Op: "read " + words[0], Kind: sandbox.ErrInvalid, Err: syscall.ENOENT, Hint: "ls " + directoryOf(words[0])}
	case !exists(words[0]):
		return nil, false, unknownWord(cmd, commandOrFile, words[0])
	}
	return words[1:], false, s.readPath(words[0])
}

// directoryOf is where to look for a file that is not there.
func directoryOf(name string) string {
	dir := filepath.Dir(name)
	for !exists(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// exists reports whether there is something of that name, readable or not.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil || !errors.Is(err, os.ErrNotExist)
}

func (s *source) readStdin(in *os.File) error {
	code, err := readCode("standard input", in)
	if err != nil {
		return err
	}
	if strings.TrimSpace(code) == "" {
		return errNothing
	}
	s.code = code
	return nil
}

// readPath reads what somebody named: a file, or a directory.
func (s *source) readPath(name string) error {
	// A pipe without anybody at its other end is empty, and not waited for.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return unreadable(name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return unreadable(name, err)
	}
	if st.IsDir() {
		base := filepath.Base(absoluteName(name))
		if s.files, err = readTree(name); err == nil && s.entry == "" && token.IsIdentifier(base) && isPythonPackage(s.files) {
			// It may import itself by its name, as from where python -m finds it.
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
	if st.Mode().IsRegular() { // a pipe's name says nothing
		// As a file and not as code: its name is what tracebacks show, and its mode what it is.
		s.files = []executor.File{{Path: filepath.Base(absoluteName(name)), Mode: st.Mode().Perm(), Data: []byte(code)}}
		return nil
	}
	s.code = code
	return nil
}

// isPythonPackage reports whether a directory is a package that can be started, and not one that holds such.
func isPythonPackage(files []executor.File) bool {
	has := func(name string) bool {
		return slices.ContainsFunc(files, func(f executor.File) bool { return f.Path == name })
	}
	return has("__init__.py") && has("__main__.py")
}

// readFiles reads several files into one directory. The first is what is started.
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
		return "", unreadable(name, err)
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
		return sandbox.Invalid(op, "it is empty: there is no code to run")
	}
	return checkText(op, []byte(code))
}

// unreadable is a path of the user's that can not be read.
func unreadable(name string, err error) error {
	return &sandbox.Error{Op: "read " + name, Kind: sandbox.ErrInvalid, Err: plainPathError(err), Hint: "ls -ld " + name}
}

// absoluteName gives even . and .. a name.
func absoluteName(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

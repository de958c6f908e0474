package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Language is the shell: bash, sh or zsh.
var Language = language.Language{
	Name: "shell", Title: "Shell", Aliases: []string{"bash", "sh", "zsh"},
	Extensions: []string{".sh", ".bash", ".zsh"}, Interpreters: []string{"bash", "sh", "dash", "ash", "zsh"},
	Source: "main.sh", Mains: []string{"main.sh", "run.sh", "main.bash", "main.zsh"},
	Toolchain: &description, Image: "sandbox-run/polyglot", Options: []string{"commands", "check"},
	Inspect: findCommands,
	Plan:    plan, Session: planSession,
}

// plan runs a script with its shell: that of the request, else that of the first line, else that of the extension. Files with the
// extension .sh run with bash if it is installed, because most are written for it.
func plan(j *language.Job) error {
	if j.Request.Tests != nil {
		return addTests(j)
	}
	which, err := whichShell(j)
	if err != nil {
		return err
	}
	showCommands(j)
	if j.Tool.Programs[which] != j.Tool.Path {
		j.Plan.Version = "" // the version belongs to another shell; this one was not queried
	}
	if shell := j.Tool.Programs[which]; j.Request.Options.Check {
		j.AddCheck("parsed, not run", append([]string{shell, "-c", `r=0; for f; do "$0" -n "$f" || r=1; done; exit $r`, shell}, j.Sources()...)...)
		return nil
	}
	run := j.AddRun(j.Tool.Programs[which], j.Inside(j.Entry))
	run.Suspect = func(stderr []byte) []string { return suspectFile(stderr, j.Dir) }
	run.Check = &sandbox.Process{Args: []string{j.Tool.Programs[which], "-n"}}
	return nil
}

// showCommands shows the files of the restricted mode, if it is requested.
func showCommands(j *language.Job) {
	if c, ok := j.Inspected.(*commands); ok {
		j.Plan.Spec.Root.HostPaths = c.paths
		j.Plan.Spec.Root.Add = c.mounts
		j.Plan.Notes = append(j.Plan.Notes, c.notes...)
	}
}

func whichShell(j *language.Job) (string, error) {
	name := ""
	if f := language.Find(j.Files, j.Entry); f != nil {
		name = f.Interpreter()
	}
	switch name {
	case "dash", "ash":
		name = "sh"
	}
	if ext := strings.TrimPrefix(path.Ext(j.Entry), "."); !isShell(name) {
		name = ext
	}
	asked := strings.ToLower(strings.TrimSpace(j.Request.Language))
	if isShell(asked) {
		name = asked
	} else if name == "sh" && language.Find(j.Files, j.Entry).Interpreter() == "" || !isShell(name) {
		name = "bash"
		if j.Tool.Programs[name] == "" {
			name = "sh"
		}
	}
	if j.Tool.Programs[name] == "" {
		return "", sandbox.Errorf(sandbox.ErrUnsupported, "lang", "install it, or --lang shell", "there is no %s on this machine", name)
	}
	return name, nil
}

func isShell(name string) bool { return name == "bash" || name == "sh" || name == "zsh" }

// suspectFile finds the file that a shell could not parse. Each shell has its own message:
//
//	/workspace/main.sh: line 3: syntax error near unexpected token `fi'
//	/workspace/main.sh: 3: Syntax error: "fi" unexpected
//	/workspace/main.sh:3: parse error near `fi'
func suspectFile(stderr []byte, dir string) []string {
	for _, words := range []string{"syntax error", "Syntax error", "parse error", "unexpected EOF while looking for matching"} {
		at := bytes.Index(stderr, []byte(": "+words))
		if at < 0 {
			continue
		}
		line := stderr[bytes.LastIndexByte(stderr[:at], '\n')+1 : at]
		file, _, ok := strings.Cut(string(line), ":")
		if ok {
			return []string{language.Abs(dir, file)}
		}
	}
	return nil
}

// commands is a root with only some programs.
type commands struct {
	paths  []string        // on the host
	mounts []sandbox.Mount // programs under other names than those of their files
	notes  []string
}

// findCommands finds the files of the restricted mode: the shell, the named programs, and the libraries of both. /bin/sh is among
// them only if it is the shell or is named.
func findCommands(_ context.Context, j *language.Job) error {
	if len(j.Request.Options.Commands) == 0 {
		return nil
	}
	if j.Image != nil {
		return sandbox.Errorf(sandbox.ErrUnsupported, "commands", "leave out --image, or make an image that has no others",
			"they are chosen among this machine's programs, and an image has its own")
	}
	which, err := whichShell(j)
	if err != nil {
		return err
	}
	c := &commands{}
	programs := []string{j.Tool.Programs[which]}
	for _, name := range j.Request.Options.Commands {
		if slices.Contains(shellBuiltins(), name) {
			continue
		}
		p, err := findCommand(name)
		if err != nil {
			return err
		}
		real, err := toolchain.Real(p)
		if err != nil {
			return &sandbox.Error{Op: "commands", Kind: sandbox.ErrInvalid, Err: err}
		}
		if isMultiCall(real) && path.Base(real) != name {
			dir, err := toolchain.Real(path.Dir(p))
			if err != nil {
				return &sandbox.Error{Op: "commands", Kind: sandbox.ErrInvalid, Err: err}
			}
			c.mounts = append(c.mounts, sandbox.Mount{Source: real, Target: path.Join(dir, name)})
			c.notes = append(c.notes, fmt.Sprintf("%s is %s: a program that calls it by another name gets another command of it", name,
				path.Base(real)))
			continue
		}
		by, err := interpreterOf(name, real)
		if err != nil {
			return err
		}
		programs = append(append(programs, p), by...)
	}
	if c.paths, err = toolchain.Closure(programs); err != nil {
		return &sandbox.Error{Op: "commands", Kind: sandbox.ErrInvalid, Err: err}
	}
	for _, m := range c.mounts {
		more, err := toolchain.Closure([]string{m.Source})
		if err != nil {
			return &sandbox.Error{Op: "commands", Kind: sandbox.ErrInvalid, Err: err}
		}
		for _, p := range more {
			if p != m.Source && !slices.Contains(c.paths, p) {
				c.paths = append(c.paths, p)
			}
		}
	}
	// Older C libraries have their data about UTF-8 in files.
	for _, dir := range []string{"/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8"} {
		if real, err := toolchain.Real(dir); err == nil && real == dir {
			c.paths = append(c.paths, dir)
		}
	}
	j.Inspected = c
	return nil
}

// CommandDirs are the directories in which a sandbox searches for programs; a test has others.
var CommandDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

func findCommand(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
		return "", sandbox.Invalid("commands", "%q is not the name of a program; write them like ls,find,grep", name)
	}
	for _, dir := range CommandDirs {
		p := path.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", &sandbox.Error{Op: "commands", Kind: sandbox.ErrInvalid, Err: err}
		}
	}
	return "", sandbox.Invalid("commands", "there is no program %q in %s", name, strings.Join(CommandDirs, ", "))
}

// shellBuiltins returns the commands that every shell has without a program.
func shellBuiltins() []string {
	return []string{
		".", ":", "alias", "bg", "break", "builtin", "caller", "cd", "command", "continue", "declare", "dirs", "eval", "exec", "exit", "export",
		"fg",
		"getopts", "hash", "help", "history", "jobs", "let", "local", "mapfile", "popd", "pushd", "read", "readarray", "readonly", "return",
		"set", "shift",
		"shopt", "source", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait",
	}
}

// isMultiCall reports whether a file is many programs, selected by the name of the call.
func isMultiCall(real string) bool {
	return slices.Contains([]string{"busybox", "toybox", "coreutils"}, path.Base(real))
}

// interpreterOf returns the files that a script needs besides its interpreter. It refuses scripts of languages other than the
// shell, which need whole libraries.
func interpreterOf(name, real string) ([]string, error) {
	f := language.File{Open: func() (io.ReadCloser, error) { return os.Open(real) }}
	by := f.Interpreter()
	switch by {
	case "":
		return nil, nil
	case "sh", "bash", "dash", "ash", "zsh", "ksh":
		p, err := findCommand(by)
		return []string{p}, err
	}
	return nil,
		sandbox.Invalid("commands", "%q is a script in %s, which needs more than its own file; only programs and shell scripts can be named",
			name, by)
}

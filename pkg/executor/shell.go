package executor

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

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

var shell = Language{
	Name: "shell", Title: "Shell", Aliases: []string{"bash", "sh", "zsh"},
	Extensions: []string{".sh", ".bash", ".zsh"}, Interpreters: []string{"bash", "sh", "dash", "ash", "zsh"},
	Source: "main.sh", Mains: []string{"main.sh", "run.sh", "main.bash", "main.zsh"},
	Toolchain: toolchain.Shell, Options: []string{"commands"},
	look: lookForCommands,
	plan: planShell,
}

// planShell runs a script by its shell. Which one: what was asked for by name, else by the first line, else by the extension; .sh
// is bash where there is one, because that is what people write.
func planShell(j *job) error {
	which, err := j.whichShell()
	if err != nil {
		return err
	}
	if j.commands != nil {
		j.plan.Spec.Root.HostPaths = j.commands.paths
		j.plan.Spec.Root.Add = j.commands.mounts
		j.plan.Notes = append(j.plan.Notes, j.commands.notes...)
	}
	if j.tool.Programs[which] != j.tool.Path {
		j.plan.Version = "" // it is another shell's, and nobody has asked this one
	}
	run := j.run(j.tool.Programs[which], j.inside(j.entry))
	run.Suspect = func(stderr []byte) []string { return brokenShell(stderr, j.dir) }
	run.Check = &sandbox.Process{Args: []string{j.tool.Programs[which], "-n"}}
	return nil
}

func (j *job) whichShell() (string, error) {
	name := ""
	if f := find(j.files, j.entry); f != nil {
		name = shebang(f)
	}
	switch name {
	case "dash", "ash":
		name = "sh"
	}
	if ext := strings.TrimPrefix(path.Ext(j.entry), "."); !isShell(name) {
		name = ext
	}
	asked := strings.ToLower(strings.TrimSpace(j.req.Language))
	if isShell(asked) {
		name = asked
	} else if name == "sh" && shebang(find(j.files, j.entry)) == "" || !isShell(name) {
		name = "bash"
		if j.tool.Programs[name] == "" {
			name = "sh"
		}
	}
	if j.tool.Programs[name] == "" {
		return "", &sandbox.Error{
			Op: "lang", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("there is no %s on this machine", name), Hint: "install it, or --lang shell",
		}
	}
	return name, nil
}

func isShell(name string) bool { return name == "bash" || name == "sh" || name == "zsh" }

// brokenShell finds the file that a shell could not parse. Each says it in its own words:
//
//	/workspace/main.sh: line 3: syntax error near unexpected token `fi'
//	/workspace/main.sh: 3: Syntax error: "fi" unexpected
//	/workspace/main.sh:3: parse error near `fi'
func brokenShell(stderr []byte, dir string) []string {
	for _, words := range []string{"syntax error", "Syntax error", "parse error", "unexpected EOF while looking for matching"} {
		at := bytes.Index(stderr, []byte(": "+words))
		if at < 0 {
			continue
		}
		line := stderr[bytes.LastIndexByte(stderr[:at], '\n')+1 : at]
		file, _, ok := strings.Cut(string(line), ":")
		if ok {
			return []string{absolute(dir, file)}
		}
	}
	return nil
}

// commands is a root that has only some programs.
type commands struct {
	paths  []string        // of the host
	mounts []sandbox.Mount // programs under other names than their files'
	notes  []string
}

// lookForCommands finds, for the restricted mode, the files that make up the only programs there are: the shell, those that were named,
// and what these are linked with. /bin/sh is among them only if it is the shell or was named.
func lookForCommands(_ context.Context, j *job) error {
	if len(j.req.Options.Commands) == 0 {
		return nil
	}
	if j.image != nil {
		return &sandbox.Error{
			Op: "commands", Kind: sandbox.ErrUnsupported, Err: errors.New("they are chosen among this machine's programs, and an image has its own"),
			Hint: "leave out --image, or make an image that has no others",
		}
	}
	which, err := j.whichShell()
	if err != nil {
		return err
	}
	c := &commands{}
	programs := []string{j.tool.Programs[which]}
	for _, name := range j.req.Options.Commands {
		if slices.Contains(shellBuiltins(), name) {
			continue
		}
		p, err := lookForCommand(name)
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
			c.notes = append(c.notes, fmt.Sprintf("%s is %s, which is other programs as well for whoever calls it by their names", name, path.Base(real)))
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
	// Older C libraries keep what they know of UTF-8 in files.
	for _, dir := range []string{"/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8"} {
		if real, err := toolchain.Real(dir); err == nil && real == dir {
			c.paths = append(c.paths, dir)
		}
	}
	j.commands = c
	return nil
}

// commandDirs are where a sandbox looks for programs.
var commandDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

func lookForCommand(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
		return "", sandbox.Invalid("commands", "%q is not the name of a program; write them like ls,find,grep", name)
	}
	for _, dir := range commandDirs {
		p := path.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", &sandbox.Error{Op: "commands", Kind: sandbox.ErrInvalid, Err: err}
		}
	}
	return "", &sandbox.Error{
		Op: "commands", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("there is no program %q in %s", name, strings.Join(commandDirs, ", ")),
	}
}

// shellBuiltins need no program: every shell has them.
func shellBuiltins() []string {
	return []string{
		".", ":", "alias", "bg", "break", "builtin", "caller", "cd", "command", "continue", "declare", "dirs", "eval", "exec", "exit", "export", "fg",
		"getopts", "hash", "help", "history", "jobs", "let", "local", "mapfile", "popd", "pushd", "read", "readarray", "readonly", "return", "set", "shift",
		"shopt", "source", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait",
	}
}

// isMultiCall reports whether a file is many programs, by the name it is called by.
func isMultiCall(real string) bool {
	return slices.Contains([]string{"busybox", "toybox", "coreutils"}, path.Base(real))
}

// interpreterOf is what a script needs besides what its first line names. Scripts of other languages than a shell's need whole
// libraries, and are refused rather than shown broken.
func interpreterOf(name, real string) ([]string, error) {
	f := File{Open: func() (io.ReadCloser, error) { return os.Open(real) }}
	by := shebang(&f)
	switch by {
	case "":
		return nil, nil
	case "sh", "bash", "dash", "ash", "zsh", "ksh":
		p, err := lookForCommand(by)
		return []string{p}, err
	}
	return nil, sandbox.Invalid("commands", "%q is a script in %s, which needs more than its own file; only programs and shell scripts can be named", name, by)
}

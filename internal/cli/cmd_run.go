package cli

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// runOptions is the command line of a run.
type runOptions struct {
	boxOptions
	serverOptions
	lang     string
	code     string
	files    list
	entry    string
	compile  sandbox.Limits
	in       list
	out      list
	options  executor.LanguageOptions
	commands list
	forbid   list
	setup    list
	noCache  bool
	dryRun   bool

	workspace workspaceOptions
	template  string
	variables list

	program  *source
	inputs   []executor.File
	bringing []bringing
}

const rootLong = `Runs code that nobody has vouched for in a fresh Linux sandbox: isolated, limited,
watched, and gone afterwards. What it prints is passed on while it prints it; the exit
code is its own.

The code is a FILE, a DIRectory with a program in it, what --code or --file say, or
standard input (-). When it comes from elsewhere, standard input is the program's.
What follows FILE, and everything after --, are the program's arguments; flags before
-- are ours.`

const rootExample = `  sandbox-run --lang python --code 'print("hello")'
  sandbox-run --timeout 10 --memory 256m script.py
  sandbox-run script.py one -- --two
  sandbox-run project/ --entry tool.py
  echo 'print(input())' > ask.py; echo hi | sandbox-run ask.py
  sandbox-run --in data.csv --out '*.png:plots' plot.py
  sandbox-run --json script.py | jq .verdict

Exit codes:
  the program's own, or
  1    it does not compile              2    usage
  124  time or CPU limit                125  sandbox-run itself failed
  137  memory limit, or SIGKILL         126  refused by policy
  128+n  ended by signal n              127  the language is not installed
  130, 143  cancelled: Ctrl-C, SIGTERM`

// addRunFlags gives the root command what it needs to run code.
func (c *cli) addRunFlags(root *cobra.Command, version *bool) *runOptions {
	o := &runOptions{commands: list{commas: true}, forbid: list{commas: true}}
	flagGroups{
		{"What is run", o.codeFlags}, {"Limits", o.limitFlags}, {"What it sees", o.worldFlags},
		{"How strong", o.strengthFlags}, {"Where it runs", o.serverFlags}, {"Input and output", func(fs *pflag.FlagSet) {
			o.outputFlags(fs, c)
			fs.BoolVar(version, "version", false, "say which version this is")
		}},
		{"Of some languages", o.languageFlags},
	}.addTo(root)
	return o
}

func (o *runOptions) codeFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.lang, "lang", "l", "", "`language`; found out from names, #! lines and project files without it")
	fs.VarP(&single{into: &o.code}, "code", "c", "the `code` itself")
	fs.VarP(&o.files, "file", "f", "a `file` with code; of several, the first is started")
	fs.StringVar(&o.entry, "entry", "", "`file` of a directory that starts the program")
	fs.StringVar(&o.template, "template", "", "`name` of a template to fill in; the code is its variable code")
	fs.Var(&o.variables, "var", "set a variable of the template: `name=value`, or name=@file; repeatable")
	fs.BoolVar(&o.noCache, "no-cache", false, "compile even what was compiled before, and keep nothing")
	fs.BoolVar(&o.dryRun, "dry-run", false, "say what would be done, and do nothing")
}

func (o *runOptions) limitFlags(fs *pflag.FlagSet) {
	o.boxOptions.limitFlags(fs)
	fs.Lookup("memory").Usage += "; Go and Rust start with 128m"
	fs.Lookup("pids").Usage += "; Java starts with 256"
	addParsed(fs, &o.compile.Wall, "compile-timeout", "60s", "wall `time` of compiling", readPositive(readDuration))
	addParsed(fs, &o.compile.Memory, "compile-memory", "2g", "memory `size` of compiling", readPositive(sandbox.ParseSize))
}

func (o *runOptions) worldFlags(fs *pflag.FlagSet) {
	fs.Var(&o.in, "in", "copy `host[:dest]`, a file or directory, into /workspace; repeatable")
	fs.Var(&o.out, "out", "bring `pattern[:dir]` back out of /workspace, into dir or here; repeatable")
	o.boxOptions.worldFlags(fs)
	o.workspace.workspaceFlags(fs)
}

func (o *runOptions) languageFlags(fs *pflag.FlagSet) {
	fs.Var(&o.commands, "commands", "shell: the only `programs` there are, with commas between")
	fs.Var(&o.forbid, "forbid-imports", "python: refuse a program that imports these `modules`; a lint, not a wall")
	fs.BoolVar(&o.options.Release, "release", false, "rust: optimise")
	fs.StringVar(&o.options.Edition, "edition", "", "rust: `year` of the edition")
	fs.BoolVar(&o.options.Test, "test", false, "go, rust: run the tests, even if there is a main")
	fs.Var(&o.setup, "setup", "sql, postgres: a `file` to run first; repeatable")
}

// run is the root command with code to run.
func (c *cli) run(cmd *cobra.Command, o *runOptions, args []string) error {
	flags := cmd.Flags()
	// Nothing at all is somebody who looks around.
	if len(c.args) == 0 && isTerminal(c.std.in) {
		c.code = codeUsage
		return c.writeHelp(c.std.err, cmd)
	}
	err := o.complete(c, flags)
	if err == nil {
		err = o.readProgram(c, cmd, args)
	}
	if err == nil {
		err = c.executeAway(o, flags)
	}
	if errors.Is(err, errLocal) {
		err = c.execute(o)
	}
	if errors.Is(err, errNothing) && len(c.args) == 0 {
		c.code = codeUsage
		return c.writeHelp(c.std.err, cmd)
	}
	return nameSource(flags, err, helpHint(cmd))
}

// complete reads what can only be read once all flags are known.
func (o *runOptions) complete(c *cli, flags *pflag.FlagSet) error {
	if err := o.boxOptions.complete(c, flags); err != nil {
		return err
	}
	if err := o.serverOptions.complete(flags); err != nil {
		return err
	}
	for _, name := range []string{"lang", "entry", "edition", "template"} {
		if err := notEmpty(flags, name); err != nil {
			return err
		}
	}
	o.options.Commands, o.options.ForbidImports = o.commands.values, o.forbid.values
	for _, text := range o.in.values {
		files, err := readInput(text)
		if err != nil {
			return err
		}
		o.inputs = append(o.inputs, files...)
	}
	for _, text := range o.setup.values {
		file, err := readSetup(text)
		if err != nil {
			return err
		}
		o.inputs = append(o.inputs, file)
		o.options.Setup = append(o.options.Setup, file.Path)
	}
	for _, text := range o.out.values {
		b, err := readBringing(text)
		if err != nil {
			return err
		}
		o.bringing = append(o.bringing, b)
	}
	return o.checkWorkspace(flags)
}

// request is the command line as the engine reads it.
func (o *runOptions) request() executor.Request {
	s := &o.spec
	req := executor.Request{
		Language: o.lang, Code: o.program.code, Name: o.program.name, Files: o.program.files, Entry: o.program.entry,
		Image: o.image, Args: o.program.args, Stdin: o.program.stdin, Env: s.Env,
		Limits: s.Limits, CompileLimits: o.compile, Options: o.options, Inputs: o.inputs, NoCache: o.noCache,
		Policy: executor.Policy{
			Network: s.Network, Volumes: s.Volumes, Workdir: s.Workdir, Scratch: s.Scratch, WritableRoot: s.WritableRoot,
			Hostname: s.Hostname, User: s.User, Require: s.Require, Strict: s.Strict, KillOnOutput: o.killOnOutput,
		},
	}
	if f := o.program.filling; f != nil {
		req.Template, req.Variables = f.template, f.values
	}
	for _, b := range o.bringing {
		req.Outputs.Patterns = append(req.Outputs.Patterns, b.pattern)
	}
	return req
}

// commandOrFile is what the first word should be.
const commandOrFile = "command or file"

// misplaced explains a flag that is not ours and was probably meant for the program, or for a command with a typing error in it.
func misplaced(root *cobra.Command, err *sandbox.Error) error {
	words := root.Flags().Args()
	if root.HasParent() || len(words) == 0 {
		return err
	}
	if !exists(words[0]) && words[0] != stdinName {
		return unknownWord(root, commandOrFile, words[0])
	}
	if nearest, _, _ := strings.Cut(err.Hint, ","); !strings.HasPrefix(nearest, "--") {
		err.Hint = fmt.Sprintf("sandbox-run %s -- …, if it is the program's", words[0])
	}
	return err
}

// patterns of the sandbox's own directories, as executor.Request takes them.
func checkPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return sandbox.Invalid("out", "%q: %w", pattern, err)
	}
	inside := pattern
	if !path.IsAbs(inside) {
		inside = path.Join(sandbox.WorkspaceDir, inside)
	}
	if pattern == "" || slices.Contains(strings.Split(pattern, "/"), "..") ||
		!slices.ContainsFunc(sandbox.ScratchDirs(), func(d string) bool { return strings.HasPrefix(inside, d+"/") }) {
		return sandbox.Invalid("out", "%q names no files below %s; write it like *.png or results/**", pattern, strings.Join(sandbox.ScratchDirs(), ", "))
	}
	return nil
}

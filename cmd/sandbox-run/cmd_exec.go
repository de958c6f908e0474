package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// execOptions is the command line of exec.
type execOptions struct {
	backend string
	spec    sandbox.Spec
	process sandbox.Process
	env     list
	volumes list
	spill   string
	stdin   bool
	tty     bool
	raw     bool
	quiet   bool
}

const execLong = `Runs a command in a fresh sandbox and removes the sandbox afterwards. What the
command prints is passed on while it prints it; the exit code is the command's own.

Without being asked, a sandbox has no network, runs as uid and gid 1000, sees the
host's system directories read-only and writes to /workspace, /tmp and $HOME only.
Its environment and its standard input are empty.`

const execExample = `  sandbox-run exec -- ls -la /
  sandbox-run exec --memory 256m --timeout 5s --pids 20 -- ./a-strangers-script
  echo 'data' | sandbox-run exec -i -- wc -c
  sandbox-run exec --volume "$PWD:/data:ro" --workdir /data -- grep -r needle .
  sandbox-run exec --json -- true
  sandbox-run exec -t --timeout 1h -- bash

Exit codes:
  the command's own, or
  124  time or CPU limit                2    usage
  137  memory limit, or SIGKILL         125  sandbox-run itself failed
  128+n  ended by signal n              126  refused by policy, or not executable
  130, 143  cancelled: Ctrl-C, SIGTERM  127  no such command`

func (c *cli) newExec() *cobra.Command {
	o := &execOptions{}
	cmd := &cobra.Command{
		Use:                   "exec [flags] -- COMMAND [ARGUMENT]...",
		Short:                 "Run a command in a fresh sandbox",
		Long:                  execLong,
		Example:               execExample,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return nil
			}
			return &sandbox.Error{
				Op: "exec", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("no command is given"),
				Hint: "sandbox-run exec -- ls -la /",
			}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.process.Args = args
			err := o.complete(cmd.Flags())
			if err == nil {
				err = c.exec(o)
			}
			return nameSource(cmd.Flags(), err, helpHint(cmd))
		},
	}
	// The command's own flags are the command's: `exec ls -la` needs no dashes in between.
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().SortFlags = false
	for _, g := range []struct {
		title string
		add   func(*pflag.FlagSet)
	}{
		{"Limits", o.limitFlags}, {"What it sees", o.worldFlags},
		{"How strong", o.strengthFlags}, {"Input and output", func(fs *pflag.FlagSet) { o.outputFlags(fs, &c.json) }},
	} {
		fs := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		fs.SortFlags = false
		g.add(fs)
		fs.VisitAll(func(f *pflag.Flag) { annotate(f, flagGroup, g.title) })
		cmd.Flags().AddFlagSet(fs)
	}
	return cmd
}

func (o *execOptions) limitFlags(fs *pflag.FlagSet) {
	l, d := &o.spec.Limits, sandbox.DefaultLimits()
	size := readPositive(sandbox.ParseSize)
	duration := readPositive(readDuration)
	count := readPositive(readCount)
	addParsed(fs, &l.Wall, "timeout", d.Wall.String(), "wall `time`", duration)
	addParsed(fs, &l.Grace, "grace", d.Grace.String(), "`time` between SIGTERM and SIGKILL", duration)
	addParsed(fs, &l.CPUs, "cpus", strconv.FormatFloat(d.CPUs, 'g', -1, 64), "`cores`, as a quota", readPositive(readCores))
	addParsed(fs, &l.CPUTime, "cpu-time", "", "CPU `time` of all processes together (default no limit)", duration)
	addParsed(fs, &l.Memory, "memory", brief(d.Memory), "memory `size`; swap is off", size)
	addParsed(fs, &l.Disk, "disk", brief(d.Disk), "`size` of /workspace, /tmp and $HOME together", size)
	addParsed(fs, &l.Inodes, "inodes", strconv.Itoa(d.Inodes), "`number` of files there", count)
	addParsed(fs, &l.Processes, "pids", strconv.Itoa(d.Processes), "`number` of processes and threads", count)
	addParsed(fs, &l.OpenFiles, "open-files", strconv.Itoa(d.OpenFiles), "`number` of open files per process", count)
	addParsed(fs, &l.Output, "output-limit", brief(d.Output), "output `size` kept per stream for the result, head and tail", size)
	fs.BoolVar(&o.process.KillOnOutput, "kill-on-output", false, "end the command when it prints more than that")
}

func (o *execOptions) worldFlags(fs *pflag.FlagSet) {
	s := &o.spec
	fs.Var(&o.env, "env", "set a variable: `NAME=value`; NAME alone passes ours on; repeatable")
	fs.Var(&o.volumes, "volume", "show `host:dest[:ro|rw]`, read-only unless rw; repeatable")
	fs.StringVar(&s.Workdir, "workdir", sandbox.WorkspaceDir, "working `directory` inside")
	fs.StringVar(&s.Root.Dir, "root", "", "`directory` of a whole root file system, in place of the host's")
	fs.BoolVar(&s.WritableRoot, "writable-root", false, "let it write anywhere; changes are thrown away")
	addParsed(fs, &s.Network, "network", string(sandbox.NetworkNone), "network `mode`: none, localhost", sandbox.ParseNetwork)
	addParsed(fs, &s.Scratch, "scratch", string(sandbox.ScratchAuto), "`kind` of scratch disk: auto, disk, memory", sandbox.ParseScratch)
	fs.StringVar(&s.Hostname, "hostname", sandbox.UserName, "host `name` inside")
	addParsed(fs, &s.User.UID, "uid", strconv.Itoa(sandbox.DefaultUser.UID), "user `id` inside; never root", readPositive(readCount))
	addParsed(fs, &s.User.GID, "gid", strconv.Itoa(sandbox.DefaultUser.GID), "group `id` inside; never root", readPositive(readCount))
}

func (o *execOptions) strengthFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.backend, "backend", app.DefaultBackend, "`name` of the backend: "+strings.Join(app.Backends(), ", "))
	addParsed(fs, &o.spec.Require, "require", string(sandbox.TierContainer),
		"least `tier` to accept: process, namespace, container, gvisor, microvm", sandbox.ParseTier)
	fs.BoolVar(&o.spec.Strict, "strict", false, "refuse unless no control at all is missing")
}

func (o *execOptions) outputFlags(fs *pflag.FlagSet, json *bool) {
	fs.BoolVarP(&o.stdin, "stdin", "i", false, "connect our standard input; without it, it is empty")
	fs.BoolVarP(&o.tty, "tty", "t", false, "give it a terminal, and our standard input")
	fs.BoolVar(json, "json", false, "print the result as one JSON document, and nothing else")
	fs.StringVar(&o.spill, "spill", "", "keep output beyond --output-limit in files in this `directory`")
	fs.BoolVar(&o.raw, "raw", false, "do not escape control characters when printing to a terminal")
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "no summary and no word on why the command was ended")
	fs.BoolP("help", "h", false, "show this text")
}

// brief writes a size the way flags take it.
func brief(s sandbox.Size) string {
	for _, u := range []struct {
		unit sandbox.Size
		name string
	}{{sandbox.GiB, "g"}, {sandbox.MiB, "m"}, {sandbox.KiB, "k"}} {
		if s >= u.unit && s%u.unit == 0 {
			return strconv.FormatUint(uint64(s/u.unit), 10) + u.name
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// complete reads what can only be read once all flags are known.
func (o *execOptions) complete(flags *pflag.FlagSet) error {
	s := &o.spec
	o.stdin = o.stdin || o.tty
	// An empty value is a variable that was not set: it must not silently mean the default.
	for _, name := range []string{"root", "workdir", "hostname", "spill"} {
		if f := flags.Lookup(name); f.Changed && f.Value.String() == "" {
			return sandbox.Invalid(name, "it is empty")
		}
	}
	s.Env = environment(o.env.values)
	for _, text := range o.volumes.values {
		v, err := readVolume(text)
		if err != nil {
			return err
		}
		s.Volumes = append(s.Volumes, v)
	}
	if s.Root.Dir != "" {
		dir, err := absolute("root", s.Root.Dir)
		if err != nil {
			return err
		}
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return sandbox.Invalid("root", "%q is not a directory", dir)
		}
		s.Root.Dir = dir
	}
	// One id alone leaves the other at its default; a zero would mean root.
	if flags.Changed("uid") || flags.Changed("gid") {
		if s.User.UID == 0 {
			s.User.UID = sandbox.DefaultUser.UID
		}
		if s.User.GID == 0 {
			s.User.GID = sandbox.DefaultUser.GID
		}
	}
	if o.spill != "" {
		return o.prepareSpill()
	}
	return nil
}

// environment reads NAME=value and NAME; a NAME that we do not have either stays unset.
func environment(entries []string) map[string]string {
	env := map[string]string{}
	for _, e := range entries {
		name, value, given := strings.Cut(e, "=")
		if !given {
			if value, given = os.LookupEnv(name); !given {
				continue
			}
		}
		env[name] = value
	}
	return env
}

// readVolume is sandbox.ParseVolume for people: the host's path may be relative to where they are.
func readVolume(text string) (sandbox.Volume, error) {
	source, rest, found := strings.Cut(text, ":")
	if !found || source == "" {
		return sandbox.ParseVolume(text) // says what is wrong with it
	}
	source, err := absolute("volume", source)
	if err != nil {
		return sandbox.Volume{}, err
	}
	return sandbox.ParseVolume(source + ":" + rest)
}

// absolute completes a relative path of the host. A path with .. is refused instead of being
// shortened: through a symlink, it may mean another place than it says (F10).
func absolute(field, path string) (string, error) {
	if slices.Contains(strings.Split(filepath.ToSlash(path), "/"), "..") {
		return "", sandbox.Invalid(field, "path %q contains ..; name the directory itself", path)
	}
	if filepath.IsAbs(path) {
		return path, nil
	}
	// The kernel's word, not $PWD: that may lead through a symlink, which volumes refuse.
	here, err := syscall.Getwd()
	if err != nil {
		return "", &sandbox.Error{Op: "working directory", Err: err}
	}
	return filepath.Join(here, path), nil
}

// prepareSpill finds out now what would otherwise be lost at the end of a long run.
func (o *execOptions) prepareSpill() error {
	if err := os.MkdirAll(o.spill, 0o700); err != nil {
		return sandbox.Invalid("spill", "%w", err)
	}
	for _, name := range []string{"stdout", "stderr"} {
		path := filepath.Join(o.spill, name)
		if _, err := os.Lstat(path); err == nil {
			return sandbox.Invalid("spill", "%q exists already; name an empty directory", path)
		}
	}
	return nil
}

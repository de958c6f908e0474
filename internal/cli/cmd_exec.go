package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// execOptions is the command line of exec.
type execOptions struct {
	boxOptions
	spec       sandbox.Spec
	args       []string
	stdin      bool
	entrypoint *string // replaces the image's; nil keeps the image's
}

const execLong = `Runs a command in a fresh sandbox and removes the sandbox afterwards. The command's
output is passed on as it is printed; the exit code is the command's own.

By default a sandbox has no network, runs as uid and gid 1000, sees the host's system
directories read-only and can write to /workspace, /tmp and $HOME only. Its environment
and its standard input are empty.

With --image it sees an image instead of the host's directories. As with docker run, the
command becomes the arguments of the image's entrypoint, in place of the image's command.

exec always runs on this machine, never at a server.`

const execExample = `  sandbox-run exec -- ls -la /
  sandbox-run exec --memory 256m --timeout 5s --pids 20 -- ./a-strangers-script
  echo 'data' | sandbox-run exec -i -- wc -c
  sandbox-run exec --volume "$PWD:/data:ro" --workdir /data -- grep -r needle .
  sandbox-run exec --json -- true
  sandbox-run exec -t --timeout 1h -- bash
  sandbox-run exec --image alpine:3 -- cat /etc/os-release

Exit codes:
  the command's own, or
  124  time or CPU limit                2    usage
  137  memory limit, or SIGKILL         125  sandbox-run itself failed
  128+n  ended by signal n              126  refused by policy, or not executable
  130, 143  cancelled: Ctrl-C, SIGTERM  127  no such command`

func (c *Invocation) newExec() *cobra.Command {
	o := &execOptions{}
	cmd := &cobra.Command{
		Use:     "exec [flags] -- [COMMAND] [ARGUMENT]...",
		Long:    execLong,
		Example: execExample,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.args = args
			if len(args) == 0 && o.image == "" {
				return &sandbox.Error{
					Op: "exec", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("no command is given"),
					Hint: "sandbox-run exec -- ls -la /",
				}
			}
			err := o.complete(c, cmd.Flags())
			if err == nil {
				err = c.runCommand(o)
			}
			return NameSource(cmd.Flags(), err, HelpHint(cmd))
		},
	}
	// Flags after the command belong to the command: `exec ls -la` needs no --.
	cmd.Flags().SetInterspersed(false)
	FlagGroups{
		{string(executor.GroupLimits), o.addLimitFlags}, {string(executor.GroupSees), o.addEnvironmentFlags},
		{string(executor.GroupStrength), o.addStrengthFlags}, {string(executor.GroupOutput), func(fs *pflag.FlagSet) { o.addOutputFlags(fs, c) }},
	}.AddTo(cmd)
	return cmd
}

func (o *execOptions) addEnvironmentFlags(fs *pflag.FlagSet) {
	o.boxOptions.addEnvironmentFlags(fs)
	fs.StringVar(&o.spec.Root.Dir, "root", "", "`directory` with a whole root file system, in place of the host's directories")
	fs.String("entrypoint", "", "`program` in place of the image's entrypoint and command; empty: no entrypoint")
}

func (o *execOptions) addOutputFlags(fs *pflag.FlagSet, c *Invocation) {
	fs.BoolVarP(&o.stdin, "stdin", "i", false, "connect standard input; without this flag the command's is empty")
	o.boxOptions.addOutputFlags(fs, c)
}

// complete fills in the fields that depend on several flags, and checks their values.
func (o *execOptions) complete(c *Invocation, flags *pflag.FlagSet) error {
	if err := o.boxOptions.complete(c, flags); err != nil {
		return err
	}
	o.policy.Apply(&o.spec)
	o.spec.Env, o.spec.Limits = o.environ, o.limits
	o.stdin = o.stdin || o.tty
	if err := CheckNotEmpty(flags, "root"); err != nil {
		return err
	}
	if o.image == "" && flags.Changed("entrypoint") {
		return sandbox.Invalid("entrypoint", "only an image has one; it goes with --image")
	}
	if o.image != "" {
		if flags.Changed("root") {
			return sandbox.Invalid("root", "both --root and --image are given")
		}
		if f := flags.Lookup("entrypoint"); f.Changed {
			program := f.Value.String()
			o.entrypoint = &program
		}
		if !flags.Changed("workdir") {
			o.spec.Workdir = "" // the image's applies
		}
	}
	root := &o.spec.Root
	if root.Dir == "" {
		return nil
	}
	dir, err := absolutePath("root", root.Dir)
	if err != nil {
		return err
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return sandbox.Invalid("root", "%q is not a directory", dir)
	}
	root.Dir = dir
	return nil
}

// runCommand runs the command, prints its output and its summary, and sets c.Code. It returns an error only if sandbox-run itself
// fails.
func (c *Invocation) runCommand(o *execOptions) error {
	s, err := c.openRunEnvironment(&o.boxOptions)
	if err != nil {
		return err
	}
	defer s.close()
	notes, release, err := c.useImage(s, o)
	if err != nil {
		return nameSignal(s.ctx, err)
	}
	defer release() // after s.release below has removed the sandbox
	id, err := s.manager.Create(s.ctx, o.spec)
	if err != nil {
		return errors.Join(nameSignal(s.ctx, err), o.recordRun(s.log, "", nil, err))
	}
	show, streams := c.connectOutput(s.ctx, &o.boxOptions, s.stop)
	if o.stdin {
		streams.Stdin = c.Std.In
	}
	size, returnTerminal := c.attachTerminal(&o.boxOptions, &streams)
	defer returnTerminal()
	process := sandbox.Process{Args: o.args, TTY: size, KillOnOutput: o.policy.KillOnOutput, MergeOutput: o.policy.MergeOutput}
	result, err := s.manager.Run(s.ctx, id, process, streams)
	returnTerminal()
	show.finish()
	left := s.release()
	failed := o.recordRun(s.log, id, result, err)
	if err != nil {
		return errors.Join(nameSignal(s.ctx, err), left, failed)
	}
	unlogged := s.unlogged
	if unlogged == nil {
		unlogged = failed
	}
	result.Notes = appendNotes(append(slices.Clip(result.Notes), notes...), left, unlogged)
	if o.noStream {
		c.printWhole(&o.boxOptions, result, show)
	}
	end := &outcome{noun: "command", whole: !o.noStream, machine: s.manager.Machine()}
	return c.concludeRun(s, &o.boxOptions, result, result, show, end)
}

// useImage applies the image of --image to the spec and to the command. The caller calls release after the sandbox is removed.
func (c *Invocation) useImage(s *runEnvironment, o *execOptions) (notes []string, release func(), err error) {
	if o.image == "" {
		return nil, func() {}, nil
	}
	var img *executor.Image
	err = c.withPulledImage(s.ctx, &o.boxOptions, func() {}, func() (err error) {
		img, err = executor.LookUpImage(s.ctx, s.manager, app.Images(), o.image)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	release = func() {
		if img.Release != nil {
			img.Release()
		}
	}
	if o.args, err = img.Command(o.entrypoint, o.args); err != nil {
		release()
		return nil, nil, err
	}
	return img.Apply(&o.spec), release, nil
}

// recordRun writes the run to the audit log. It skips invalid requests: nothing was run.
func (o *execOptions) recordRun(log *audit.Log, id string, r *sandbox.Result, failed error) error {
	if log == nil || errors.Is(failed, sandbox.ErrInvalid) {
		return nil
	}
	entry := executor.NewAuditEntry(audit.EntryCLI, id, o.args, &o.spec, r, failed)
	entry.Policy.Backend = cmp.Or(entry.Policy.Backend, o.backend)
	return log.Append(entry)
}

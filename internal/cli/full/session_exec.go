package full

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/repl"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

func (c *commands) newSessionExec() *cobra.Command {
	o := &cli.SessionOptions{}
	code := ""
	var cmd *cobra.Command
	cmd = c.sessionCommand("exec NAME [flags] [FILE|-]", 1, o, func(ctx context.Context, s *client.Session, args []string) error {
		if cmd.Flags().Changed("code") == (len(args) > 0) {
			return &sandbox.Error{Op: "session exec", Kind: sandbox.ErrInvalid, Err: errors.New("the code is --code, a FILE or -"),
				Hint: "sandbox-run session exec NAME --code '1 + 1'"}
		}
		fromStdin := false
		if len(args) > 0 {
			text, err := c.readCell(args[0])
			if err != nil {
				return err
			}
			code, fromStdin = text, args[0] == cli.StdinName
		}
		return c.executeCell(o, s, session.Cell{Code: code, Limits: o.CellLimits()}, !fromStdin)
	})
	cmd.Short = "Execute code in a session"
	cmd.Long = `Executes code after what was executed before, prints its output and the value of its last
expression, and exits with the code that a run has. Unless the code is read from it, standard
input answers the questions of the code.`
	cmd.Example = `  sandbox-run session exec lab --code 'x = 6 * 7; x'
  sandbox-run session exec lab step2.py
  echo 'print(x)' | sandbox-run session exec lab -
  sandbox-run session exec lab --json --timeout 5 --code 'x' | jq .value`
	cmd.Flags().StringVarP(&code, "code", "c", "", "the `code` itself")
	o.AddCellFlags(cmd.Flags(), c.Invocation)
	return cmd
}

// readCell reads the code of a file or of standard input.
func (c *commands) readCell(name string) (string, error) {
	in := io.Reader(c.Std.In)
	if name != cli.StdinName {
		f, err := os.Open(name)
		if err != nil {
			return "", sandbox.Invalid("file", "%w", err)
		}
		defer f.Close()
		in = f
	}
	const most = 4 << 20
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if len(text) > most {
		return "", sandbox.Invalid("file", "%s has more than %d MiB", name, most>>20)
	}
	return string(text), err
}

// executeCell executes a cell, prints it, and sets c.Code. input: standard input answers its questions.
func (c *commands) executeCell(o *cli.SessionOptions, s *client.Session, cell session.Cell, input bool) error {
	show := c.newScreen(o)
	show.language = func() string { return s.Info().Language }
	ctx, interrupts, stop := c.signals(show)
	defer stop()
	interrupts(func() {
		if err := s.Interrupt(); err != nil {
			show.Message(err.Error())
		}
	})
	switch {
	case !input:
	case cli.IsTerminal(c.Std.In):
		cell.Input = (&repl.TTY{In: c.Std.In, Ask: show.ask, Answered: show.answered, Interrupt: func() { _ = s.Interrupt() }}).ReadLine
	default:
		lines := bufio.NewReader(c.Std.In)
		cell.Input = func(_ context.Context, question protocol.Input) (string, bool) {
			if !c.JSON {
				show.ask(question)
			}
			line, err := lines.ReadString('\n')
			return strings.TrimSuffix(line, "\n"), err == nil || line != ""
		}
	}
	if !c.JSON {
		cell.OnEvent = show.Output
	}
	r, err := s.Execute(ctx, cell)
	if !c.JSON {
		show.End(r)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	defer r.Close()
	c.Code = r.ExitCode()
	if c.JSON {
		return c.WriteJSON(r)
	}
	if r.State == session.StateEnded {
		show.Message("the interpreter has ended: " + r.Cause + "; sandbox-run session restart starts another")
	}
	return show.out.Failure()
}

func (c *commands) newSessionFiles() *cobra.Command {
	o := &cli.SessionOptions{}
	cmd := c.sessionCommand("files NAME [flags] [DIR]", 1, o, func(ctx context.Context, s *client.Session, args []string) error {
		dir := ""
		if len(args) > 0 {
			dir = args[0]
		}
		list, more, err := s.Files(ctx, dir)
		if err != nil {
			return err
		}
		if c.JSON {
			return c.WriteJSON(struct {
				Files    []session.Entry   `json:"files"`
				NotTaken []sandbox.Untaken `json:"not_taken,omitempty"`
			}{append([]session.Entry{}, list...), more})
		}
		t := c.NewTable(c.Std.Out, ">SIZE", "NAME")
		for _, e := range list {
			if err := t.Add(e.Size.String(), strings.TrimPrefix(e.Path, sandbox.WorkspaceDir+"/")); err != nil {
				return err
			}
		}
		for _, m := range more {
			if err := t.Add("-", m.Path+" ("+m.Reason+")"); err != nil {
				return err
			}
		}
		return t.Flush()
	})
	cmd.Short = "List the files of a session"
	cmd.Long = "Lists the files of a directory, /workspace by default, and of the directories in it."
	cmd.Example = "  sandbox-run session files lab\n  sandbox-run session files lab plots --json"
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the files as one JSON document")
	return cmd
}

func (c *commands) newSessionCopy() *cobra.Command {
	o := &cli.SessionOptions{}
	cmd := &cobra.Command{
		Use: "cp [flags] FROM TO", Short: "Copy files into or out of a session",
		Long: `Copies a file or a directory. One of FROM and TO is NAME:PATH, in the session; a relative path
lies in /workspace. Into this machine, only regular files are copied, and a file that exists is
replaced.`,
		Example: "  sandbox-run session cp data.csv lab:\n  sandbox-run session cp lab:plots ./plots",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.CheckServerFlags(cmd.Flags())
			if err == nil {
				err = c.copyFiles(cmd, o, args)
			}
			return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
		},
	}
	o.AddServerFlags(cmd.Flags())
	return cmd
}

// splitPlace splits NAME:PATH; false for a path of this machine, which may contain a colon after a slash.
func splitPlace(text string) (name, inside string, ok bool) {
	name, inside, ok = strings.Cut(text, ":")
	return name, inside, ok && session.IsName(name)
}

func (c *commands) copyFiles(cmd *cobra.Command, o *cli.SessionOptions, args []string) error {
	usage := &sandbox.Error{Op: "session cp", Kind: sandbox.ErrInvalid, Err: errors.New("one of FROM and TO is NAME:PATH, the other a path of this machine"),
		Hint: "sandbox-run session cp data.csv lab:"}
	if len(args) != 2 {
		return usage
	}
	from, source, out := splitPlace(args[0])
	to, dest, in := splitPlace(args[1])
	if out == in {
		return usage
	}
	ctx := cmd.Context()
	if in {
		s, err := c.findSession(ctx, o, to)
		if err != nil {
			return err
		}
		if dest == "" || strings.HasSuffix(dest, "/") {
			dest += filepath.Base(args[0])
		}
		files, note, err := cli.ReadUpload(args[0], dest)
		if err != nil {
			return err
		}
		if note != "" {
			c.PrintMessage(note)
		}
		return s.Put(ctx, files)
	}
	s, err := c.findSession(ctx, o, from)
	if err != nil {
		return err
	}
	return c.download(ctx, s, source, args[1])
}

// download copies a file, or a directory with what is in it, out of a session.
func (c *commands) download(ctx context.Context, s *client.Session, source, dest string) error {
	inside := path.Join(sandbox.WorkspaceDir, source)
	if path.IsAbs(source) {
		inside = path.Clean(source)
	}
	count := 0
	more, err := s.Take(ctx, sandbox.Selection{Patterns: []string{escapePattern(inside)}}, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		count++
		name := f.Path
		if !path.IsAbs(name) {
			name = path.Join(sandbox.WorkspaceDir, name)
		}
		if name == inside {
			return writeFile(filepath.Dir(fileDest(dest, name)), filepath.Base(fileDest(dest, name)), f, r)
		}
		rest, ok := strings.CutPrefix(name, strings.TrimSuffix(inside, "/")+"/")
		if !ok {
			return fmt.Errorf("the session has sent %.200q, which was not asked for", f.Path)
		}
		return writeFile(dest, rest, f, r)
	})
	if err != nil {
		return err
	}
	for _, m := range more {
		c.PrintMessage("not taken: " + m.Path + ": " + m.Reason)
	}
	if count == 0 {
		return sandbox.Invalid("cp", "there is no file %q in the session", source)
	}
	return nil
}

// fileDest is where a single file goes: into dest if that is a directory.
func fileDest(dest, name string) string {
	if st, err := os.Stat(dest); err == nil && st.IsDir() || strings.HasSuffix(dest, "/") {
		return filepath.Join(dest, path.Base(name))
	}
	return dest
}

// escapePattern makes a pattern that matches one name.
func escapePattern(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}

// writeFile writes a file below a directory of this machine, which it makes. Names and contents are untrusted: they never lead out of it.
func writeFile(dir, name string, f sandbox.File, r io.Reader) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if parent := filepath.Dir(name); parent != "." {
		if err := root.MkdirAll(parent, 0o777); err != nil {
			return err
		}
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) { // not through a link
		return err
	}
	w, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666&(f.Mode.Perm()|0o600)|f.Mode.Perm()&0o111)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

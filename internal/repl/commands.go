package repl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// command is a command of the REPL.
type command struct {
	name     string
	argument string // in help; empty: it takes none
	short    string
	do       func(r *REPL, ctx context.Context, argument string) error
}

// commands is the table of commands, in the order of help. It is filled in by init, because :help reads it.
var commands []command

func init() {
	commands = []command{
		{"help", "", "list the commands and the keys", (*REPL).help},
		{"load", "FILE", "execute a file of this machine as a cell", (*REPL).load},
		{"save", "FILE", "write the cells so far to a new file of this machine", (*REPL).save},
		{"files", "", "list the files in /workspace", (*REPL).files},
		{"limits", "", "show the limits, and what is used", (*REPL).limits},
		{"vars", "", "list the variables", (*REPL).variables},
		{"reset", "", "start afresh: no state, and the files of the start", (*REPL).reset},
		{"restart", "", "start another interpreter: no state; files stay", (*REPL).restart},
		{"fork", "", "go on in a copy of the session; this one stays as it is", (*REPL).fork},
		{"lang", "NAME", "end this session and start one of another language", (*REPL).changeLanguage},
		{"deps", "PACKAGES", "install packages, such as: requests==2.31 numpy", (*REPL).addPackages},
		{"allow", "HOST", "allow connections to a host, as --allow does", (*REPL).allow},
		{"quit", "", "leave", (*REPL).quit},
	}
}

// parseCommand splits a line that is a command. Code that begins with a colon and is no command, such as the shell's : true, is a cell.
func parseCommand(text string) (name, argument string, ok bool) {
	text = strings.TrimSpace(text)
	word, argument, _ := strings.Cut(text, " ")
	name, ok = strings.CutPrefix(word, ":")
	ok = ok && name != "" && !strings.Contains(text, "\n") && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") == ""
	return name, strings.TrimSpace(argument), ok
}

func (r *REPL) command(ctx context.Context, name, argument string) {
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
	var err error
	switch {
	case i < 0:
		err = fmt.Errorf("there is no command :%s; :help lists them", name)
	case commands[i].argument != "" && argument == "":
		err = fmt.Errorf(":%s needs an argument; write it like :%s %s", name, name, commands[i].argument)
	case commands[i].argument == "" && argument != "":
		err = fmt.Errorf(":%s takes no argument", name)
	default:
		err = commands[i].do(r, ctx, argument)
	}
	if err != nil {
		r.fail(err)
	}
}

// CommandNames lists the commands as they are typed.
func CommandNames() (names []string) {
	for _, c := range commands {
		names = append(names, ":"+c.name)
	}
	return names
}

const keys = `
Keys: Tab completes; Alt-Enter begins a new line; Up, Down and Ctrl-R find earlier cells; Ctrl-C discards what is
typed, or interrupts the cell that runs; Ctrl-D leaves.
`

func (r *REPL) help(context.Context, string) error {
	var b strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&b, "%-16s %s\n", strings.TrimSpace(":"+c.name+" "+c.argument), c.short)
	}
	r.o.Screen.Print(b.String() + keys)
	return nil
}

// maxLoad bounds a file that is loaded.
const maxLoad = 4 << 20

func (r *REPL) load(ctx context.Context, name string) error {
	f, err := os.Open(expandHome(name))
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLoad+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxLoad:
		return fmt.Errorf("%s: it has more than %d MiB", name, maxLoad>>20)
	case !utf8.Valid(text):
		return fmt.Errorf("%s: it is not UTF-8", name)
	}
	r.execute(ctx, string(text))
	return nil
}

// expandHome replaces ~ at the beginning of a path.
func expandHome(name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return name
}

func (r *REPL) save(_ context.Context, name string) error {
	f, err := os.OpenFile(expandHome(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, strings.Join(r.cells, "\n\n")+"\n")
	if err = errors.Join(err, f.Close()); err == nil {
		r.o.Screen.Message(fmt.Sprintf("wrote %s (cells: %d)", name, len(r.cells)))
	}
	return err
}

func (r *REPL) files(ctx context.Context, _ string) error {
	list, more, err := r.Session().Files(ctx, "")
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range list {
		if !e.Mode.IsDir() {
			fmt.Fprintf(&b, "%10s  %s\n", e.Size, strings.TrimPrefix(e.Path, sandbox.WorkspaceDir+"/"))
		}
	}
	for _, m := range more {
		fmt.Fprintf(&b, "%10s  %s\n", "-", m)
	}
	if b.Len() == 0 {
		b.WriteString("there are no files in " + sandbox.WorkspaceDir + "\n")
	}
	r.o.Screen.Print(b.String())
	return nil
}

func (r *REPL) limits(context.Context, string) error {
	info := r.Session().Info()
	var b strings.Builder
	for _, row := range sandbox.AllLimits() {
		if row.IsSet(&info.Limits) {
			fmt.Fprintf(&b, "%-16s %s\n", row.Flag(), row.Plain(&info.Limits))
		}
	}
	if u := info.Usage; u != nil {
		fmt.Fprintf(&b, "in use: memory %s, processes %d, cpu time so far %s\n", sandbox.Size(u.Memory), u.Processes, u.CPUUser+u.CPUSystem)
	}
	r.o.Screen.Print(b.String())
	return nil
}

func (r *REPL) variables(ctx context.Context, _ string) error {
	list, err := r.Session().Variables(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, v := range list.Variables {
		value := strings.Join(strings.Fields(v.Value), " ")
		fmt.Fprintf(&b, "%-16s %-10s %s\n", v.Name, v.Type, value)
	}
	switch {
	case list.Truncated:
		b.WriteString("… and more\n")
	case b.Len() == 0:
		b.WriteString("there are no variables\n")
	}
	r.o.Screen.Print(b.String())
	return nil
}

func (r *REPL) reset(ctx context.Context, _ string) error {
	err := r.Session().Reset(ctx)
	if err == nil {
		r.cells = nil
	}
	return err
}

func (r *REPL) restart(ctx context.Context, _ string) error { return r.Session().Restart(ctx) }

func (r *REPL) fork(ctx context.Context, _ string) error {
	f, ok := r.Session().(Forker)
	if !ok {
		return notAvailable("fork")
	}
	s, err := f.Fork(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.session = s // the other stays: nothing of it is closed
	r.mu.Unlock()
	r.o.Screen.Message("this is session " + s.Info().ID + ", a copy")
	return nil
}

func (r *REPL) changeLanguage(ctx context.Context, name string) error {
	if r.o.Open == nil {
		return errors.New("the language of this session can not be changed; create another session")
	}
	s, err := r.o.Open(ctx, name)
	if err != nil {
		return err
	}
	r.replace(s)
	r.cells = nil
	return nil
}

func (r *REPL) addPackages(ctx context.Context, text string) error {
	p, ok := r.Session().(Packager)
	if !ok {
		return notAvailable("deps")
	}
	added, err := p.AddPackages(ctx, strings.Fields(strings.ReplaceAll(text, ",", " ")))
	if err != nil {
		return err
	}
	if added != nil {
		r.o.Screen.Message(fmt.Sprintf("packages: %d", len(added.Packages)))
	}
	return nil
}

func (r *REPL) allow(ctx context.Context, text string) error {
	n, ok := r.Session().(Networker)
	if !ok {
		return notAvailable("allow")
	}
	policy := r.o.Network.Clone()
	policy.Allow = append(policy.Allow, strings.Fields(strings.ReplaceAll(text, ",", " "))...)
	if policy.Mode == network.None || policy.Mode == network.Localhost {
		policy.Mode = network.Allow
	}
	if err := n.SetNetwork(ctx, policy); err != nil {
		return err
	}
	r.o.Network = policy
	return nil
}

func (r *REPL) quit(context.Context, string) error {
	r.leave = true
	return nil
}

func notAvailable(name string) error {
	return fmt.Errorf(":%s is not available in this session", name)
}

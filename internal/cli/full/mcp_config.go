package full

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// agentClient is a client of the Model Context Protocol and the file of its configuration.
type agentClient struct {
	name string
	// path is the file below the user's home, or below its directory of configurations.
	path   string
	config bool
	key    string // of the object with the servers
	typed  bool   // entries have a type
	toml   bool
}

// agentClients are the clients that config knows.
var agentClients = []agentClient{
	{name: "claude-desktop", path: "Claude/claude_desktop_config.json", config: true, key: "mcpServers"},
	{name: "claude-code", path: ".claude.json", key: "mcpServers", typed: true},
	{name: "cursor", path: ".cursor/mcp.json", key: "mcpServers"},
	{name: "vscode", path: "Code/User/mcp.json", config: true, key: "servers", typed: true},
	{name: "codex", path: ".codex/config.toml", key: "mcp_servers", toml: true},
}

const serverName = "sandbox-run"

// agentEntry is the entry of this server.
type agentEntry struct {
	Type    string   `json:"type,omitempty"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
}

func (c *commands) newMCPConfig() *cobra.Command {
	var client string
	var write bool
	var names []string
	for _, a := range agentClients {
		names = append(names, a.name)
	}
	cmd := &cobra.Command{
		Use: "config --client NAME [--write] [-- FLAG...]", Short: "Print the configuration of an agent's client",
		Long: `Prints what a client has to know to start sandbox-run mcp. Flags of mcp follow after --.

With --write it goes into the user's configuration of the client. Other entries stay; an
entry sandbox-run is replaced, except in codex's file, which is TOML and only gets the
entry appended. The file as it was is kept beside it, with the ending .bak.`,
		Example: "  sandbox-run mcp config --client vscode\n  sandbox-run mcp config --client claude-code --write -- --max-memory 1g",
		RunE: func(cmd *cobra.Command, args []string) error {
			err := c.configureAgent(client, write, args)
			return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&client, "client", "", "`name` of the client: "+strings.Join(names, ", "))
	fs.BoolVar(&write, "write", false, "write it into the client's file")
	for _, name := range []string{"client", "write"} {
		cli.Annotate(fs.Lookup(name), cli.NoVariable, "it is about one call")
	}
	return cmd
}

func (c *commands) configureAgent(name string, write bool, args []string) error {
	var client *agentClient
	var names []string
	for i := range agentClients {
		names = append(names, agentClients[i].name)
		if agentClients[i].name == name {
			client = &agentClients[i]
		}
	}
	if client == nil {
		return sandbox.Invalid("client", "unknown client %q; use one of %s", name, strings.Join(names, ", "))
	}
	command, err := thinExecutable()
	if err != nil {
		return err
	}
	entry := agentEntry{Command: command, Args: append([]string{"mcp"}, args...)}
	if client.typed {
		entry.Type = "stdio"
	}
	if !write {
		text, err := client.merge(nil, entry)
		if err == nil {
			_, err = c.Std.Out.Write(text)
		}
		return err
	}
	path, err := client.file()
	if err != nil {
		return err
	}
	if err := client.write(path, entry); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.Std.Err, "sandbox-run: wrote %s\n", path)
	return err
}

// thinExecutable returns the path of sandbox-run, which is beside this executable, or of this one.
func thinExecutable() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	thin := filepath.Join(filepath.Dir(self), "sandbox-run"+filepath.Ext(self))
	if _, err := os.Stat(thin); err == nil {
		return thin, nil
	}
	return self, nil
}

// file returns the path of the client's configuration, behind links: dotfiles often are links.
func (a *agentClient) file() (string, error) {
	dir, err := os.UserHomeDir()
	if a.config {
		dir, err = os.UserConfigDir()
	}
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.FromSlash(a.path))
	if real, err := filepath.EvalSymlinks(path); err == nil { //nolint:forbidigo // the user's own file; no sandbox can write there
		return real, nil
	}
	return path, nil
}

// write merges the entry into a file, atomically, and keeps a copy of the file as it was.
func (a *agentClient) write(path string, entry agentEntry) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mode := fs.FileMode(0o600) // such files have keys in them
	if st, err := os.Stat(path); err == nil {
		mode = st.Mode().Perm()
	}
	text, err := a.merge(old, entry)
	if err != nil {
		return &sandbox.Error{Op: path, Kind: sandbox.ErrInvalid, Err: err, Hint: "sandbox-run mcp config --client " + a.name +
			", and add the entry by hand"}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if old != nil {
		if err := replaceFile(path+".bak", old, mode); err != nil {
			return err
		}
	}
	return replaceFile(path, text, mode)
}

// replaceFile writes a file and renames it to its place.
func replaceFile(path string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if runtime.GOOS != "windows" {
		err = errors.Join(err, f.Chmod(mode))
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// merge adds the entry to the text of a configuration; nil: there is none.
func (a *agentClient) merge(old []byte, entry agentEntry) ([]byte, error) {
	if a.toml {
		return a.appendTOML(old, entry)
	}
	doc, servers := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if len(bytes.TrimSpace(old)) > 0 {
		if err := json.Unmarshal(old, &doc); err != nil {
			return nil, fmt.Errorf("it is no JSON that can be merged: %w", err)
		}
	}
	if raw, ok := doc[a.key]; ok {
		if err := json.Unmarshal(raw, &servers); err != nil {
			return nil, fmt.Errorf("%s: %w", a.key, err)
		}
	}
	var err error
	if servers[serverName], err = marshalPlain(entry); err != nil {
		return nil, err
	}
	if doc == nil { // the text was null
		doc = map[string]json.RawMessage{}
	}
	if doc[a.key], err = marshalPlain(servers); err != nil {
		return nil, err
	}
	return marshalPlain(doc)
}

// marshalPlain encodes JSON for people: indented, without escapes for HTML.
func marshalPlain(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return b.Bytes(), err
}

// appendTOML adds a table at the end, where every TOML file can have one. It does not replace one: that would take a parser that keeps
// comments.
func (a *agentClient) appendTOML(old []byte, entry agentEntry) ([]byte, error) {
	table := fmt.Sprintf("[%s.%s]", a.key, serverName)
	if bytes.Contains(old, []byte(table)) || bytes.Contains(old, []byte(fmt.Sprintf("[%s.%q]", a.key, serverName))) {
		return nil, fmt.Errorf("it has a table %s already", table)
	}
	var b bytes.Buffer
	if b.Write(old); len(old) > 0 {
		if !bytes.HasSuffix(old, []byte("\n")) {
			b.WriteByte('\n')
		}
		b.WriteByte('\n')
	}
	quoted := make([]string, len(entry.Args))
	for i, arg := range entry.Args {
		quoted[i] = strconv.Quote(arg)
	}
	fmt.Fprintf(&b, "%s\ncommand = %s\nargs = [%s]\n", table, strconv.Quote(entry.Command), strings.Join(quoted, ", "))
	return b.Bytes(), nil
}

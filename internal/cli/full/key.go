package full

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("key", (*commands).newKey) }

const keyLong = `API keys let clients other than yourself use a server (sandbox-run serve). A key is shown
once, when it is made. Only its hash is stored, in $XDG_DATA_HOME/sandbox-run/keys.json
(~/.local/share/…) or in the file of --keys. A running server applies changes at once.`

func (c *commands) newKey() *cobra.Command {
	cmd := c.NewGroup("key", keyLong,
		"  sandbox-run key create --name ci --expires 90d --limits memory=1g,rate=5/s\n  sandbox-run key list\n  sandbox-run key rm ci")
	cmd.AddCommand(c.newKeyCreate(), c.newKeyList(), c.newKeyShow(), c.newKeyRotate(), c.newKeyRemove())
	return cmd
}

// addKeyFlags adds the flags that all subcommands of key have.
func (c *commands) addKeyFlags(fs *pflag.FlagSet, path *string) {
	fs.StringVar(path, "keys", "", "`file` of keys (default your own)")
	fs.BoolVar(&c.JSON, "json", false, "print one JSON document")
}

func openKeys(cmd *cobra.Command, path string) (*key.Store, error) {
	err := cli.CheckNotEmpty(cmd.Flags(), "keys")
	var s *key.Store
	if err == nil {
		s, err = key.Open(path)
	}
	return s, cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
}

// createdKey is a new key with its token, as JSON.
type createdKey struct {
	key.Key
	Token string `json:"token"`
}

func (c *commands) newKeyCreate() *cobra.Command {
	var path string
	var n key.New
	scopes := cli.List{Commas: true}
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make a key",
		Long: `Makes a key and prints it on standard output. It is not shown again. Clients send it as
"Authorization: Bearer KEY".

Scopes: run (run programs and manage the key's own runs), read (see the key's own runs and
the languages), admin (all of these, metrics, and health checks that run a sandbox).

Limits apply to the requests of the key, in addition to the ceilings of the server. Their
names: ` + listLimits() + `.`,
		Example: `  sandbox-run key create --name ci
  sandbox-run key create --name grafana --scopes admin --expires 2031-01-31
  sandbox-run key create --name class --limits timeout=10s,memory=256m,rate=30/m,concurrency=2`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := openKeys(cmd, path)
			if err != nil {
				return err
			}
			n.Scopes = scopes.Values
			k, token, err := s.Create(cmd.Context(), n)
			if err != nil {
				return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
			}
			c.auditKey(k.ID, "created")
			return c.showToken(k, token)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&n.Name, "name", "", "`name` of the key")
	fs.Var(&scopes, "scopes", "what the key permits: `names` with commas: "+strings.Join(key.Scopes(), ", ")+" (default run)")
	cli.AddParsed(fs, &n.Expires, "expires", "",
		"`when` the key expires: 2031-01-31, 2031-01-31T15:04:05Z, or 12h, 90d from now (default never)", readExpiry)
	cli.AddParsed(fs, &n.Limits, "limits", "", "limits of the key: `name=value` with commas", key.ParseLimits)
	for _, name := range []string{"name", "scopes", "expires", "limits"} {
		cli.Annotate(fs.Lookup(name), cli.NoVariable, "one key's, not every key's")
	}
	c.addKeyFlags(fs, &path)
	return cmd
}

// listLimits lists the names of limits, wrapped for the help text.
func listLimits() string {
	var b strings.Builder
	width := len("names: ")
	for i, name := range key.LimitNames() {
		if i > 0 {
			b.WriteString(",")
			if width++; width+len(name) > 84 {
				b.WriteString("\n")
				width = 0
			} else {
				b.WriteString(" ")
				width++
			}
		}
		b.WriteString(name)
		width += len(name)
	}
	return b.String()
}

// readExpiry parses a point in time, or a duration from now.
func readExpiry(s string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, time.DateOnly} {
		if at, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return at, nil
		}
	}
	in, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok && sandbox.IsDecimal(days) {
		in, err = cli.ReadDuration(days)
		if in > 100*365*time.Second { // ReadDuration has read the days as seconds
			err = errors.New("too far off")
		}
		in *= 24 * 60 * 60
	}
	if err != nil || in <= 0 {
		return time.Time{}, errors.New("not a time; write it like 2031-01-31, 2031-01-31T15:04:05Z, or 12h, 90d from now")
	}
	return time.Now().Add(in), nil
}

// showToken prints the token to standard output, and the description of the key to standard error.
func (c *commands) showToken(k key.Key, token string) error {
	if c.JSON {
		return c.WriteJSON(createdKey{k, token})
	}
	if _, err := fmt.Fprintln(c.Std.Out, token); err != nil {
		return err
	}
	fmt.Fprintf(c.Std.Err, "key %s (%s) may: %s; %s. It is not shown again.\n", k.Name, k.ID, strings.Join(k.Scopes, ", "), describeExpiry(k))
	return nil
}

func describeExpiry(k key.Key) string {
	switch {
	case k.Expires.IsZero():
		return "never expires"
	case k.Expired(time.Now()):
		return "expired " + formatTime(k.Expires)
	}
	return "expires " + formatTime(k.Expires)
}

func (c *commands) newKeyList() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:     "list [flags]",
		Aliases: []string{"ls"},
		Short:   "List the keys",
		Long:    "Lists the keys with their scopes, their limits and the time of their last use.",
		Example: "  sandbox-run key list\n  sandbox-run key list --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := openKeys(cmd, path)
			if err != nil {
				return err
			}
			keys, err := s.List(cmd.Context())
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(append([]key.Key{}, keys...))
			}
			if len(keys) == 0 {
				_, err := io.WriteString(c.Std.Out, "there are no keys\n")
				return err
			}
			t := c.NewTable(c.Std.Out, "ID", "NAME", "SCOPES", "EXPIRES", "LAST USED", "LIMITS")
			for _, k := range keys {
				if err := t.Add(k.ID, k.Name, strings.Join(k.Scopes, ","), formatExpiry(k), formatTime(k.Used), k.Limits.String()); err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
	c.addKeyFlags(cmd.Flags(), &path)
	return cmd
}

func formatExpiry(k key.Key) string {
	switch {
	case k.Expires.IsZero():
		return "never"
	case k.Expired(time.Now()):
		return "expired"
	}
	return formatTime(k.Expires)
}

func (c *commands) newKeyShow() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:     "show [flags] NAME",
		Short:   "Describe a key",
		Long:    "Describes a key, by its name or id. The secret is not stored and can not be shown.",
		Example: "  sandbox-run key show ci",
		Args:    requireOneKey,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := openKeys(cmd, path)
			if err != nil {
				return err
			}
			k, err := s.Show(cmd.Context(), names[0])
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(k)
			}
			limits := k.Limits.String()
			if limits == "" {
				limits = "the server's"
			}
			lines := [][2]string{
				{"id", k.ID}, {"name", k.Name}, {"scopes", strings.Join(k.Scopes, ", ")}, {"limits", limits}, {"made", formatTime(k.Created)},
				{"expires", formatExpiry(k)}, {"last used", formatTime(k.Used)},
			}
			if !k.Rotated.IsZero() {
				lines = append(lines, [2]string{"rotated", formatTime(k.Rotated)})
			}
			return c.printFields(lines)
		},
	}
	c.addKeyFlags(cmd.Flags(), &path)
	return cmd
}

func requireOneKey(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return &sandbox.Error{
		Op: cli.CommandWords(cmd), Kind: sandbox.ErrInvalid, Err: errors.New("one name or id of a key is needed"), Hint: "sandbox-run key list",
	}
}

func (c *commands) newKeyRotate() *cobra.Command {
	var path string
	var overlap time.Duration
	cmd := &cobra.Command{
		Use:   "rotate [flags] NAME",
		Short: "Give a key a new secret",
		Long: `Gives a key, by its name or id, a new secret and prints it. Scopes, limits and the runs of
the key stay. The old secret ends at once, or after --overlap.`,
		Example: "  sandbox-run key rotate ci\n  sandbox-run key rotate --overlap 1h ci",
		Args:    requireOneKey,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := openKeys(cmd, path)
			if err != nil {
				return err
			}
			k, token, err := s.Rotate(cmd.Context(), names[0], overlap)
			if err != nil {
				return err
			}
			c.auditKey(k.ID, "rotated")
			return c.showToken(k, token)
		},
	}
	cli.AddParsed(cmd.Flags(), &overlap, "overlap", "", "`time` for which the old secret stays valid (default none)", cli.ReadDuration)
	c.addKeyFlags(cmd.Flags(), &path)
	return cmd
}

func (c *commands) newKeyRemove() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:     "rm [flags] NAME…",
		Short:   "Remove keys",
		Long:    "Removes keys, by name or id. Servers refuse them from then on.",
		Example: "  sandbox-run key rm ci\n  sandbox-run key rm one two",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return nil
			}
			return requireOneKey(cmd, args)
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := openKeys(cmd, path)
			if err != nil {
				return err
			}
			report := []removed{}
			return c.forEach(names, func(name string) error {
				k, err := s.Remove(cmd.Context(), name)
				report = append(report, removed{name, err == nil, sandbox.Describe(err)})
				if err != nil {
					return err
				}
				c.auditKey(k.ID, "removed")
				if !c.JSON {
					fmt.Fprintf(c.Std.Out, "removed %s\n", cli.EscapeLine(k.Name))
				}
				return nil
			}, func() any { return report })
		},
	}
	c.addKeyFlags(cmd.Flags(), &path)
	return cmd
}

// auditKey writes the change of a key to the user's audit log. A failure is printed and has no other effect.
func (c *commands) auditKey(id, what string) {
	log, err := audit.Open("", audit.Options{})
	if err == nil {
		entry := audit.Entry{Kind: audit.KindKey, Who: audit.Me(audit.EntryCLI), Reason: what}
		entry.Who.Key = id
		err = log.Append(entry)
	}
	if err != nil {
		c.PrintMessage("not in the audit log: " + err.Error())
	}
}

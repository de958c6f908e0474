package full

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("audit", (*commands).newAudit) }

func (c *commands) newAudit() *cobra.Command {
	cmd := c.NewGroup("audit",
		`Shows and checks your audit log. It has one line per run with its user, program, policy
and result; every line contains the hash of the line before. The log is
$XDG_STATE_HOME/sandbox-run/audit.jsonl (~/.local/state/…) unless --audit-log names
another.`,
		"  sandbox-run audit tail\n  sandbox-run audit query --since 24h --verdict time_limit\n  sandbox-run audit verify")
	cmd.AddCommand(c.newAuditTail(), c.newAuditQuery(), c.newAuditVerify(), c.newAuditPrune())
	return cmd
}

// auditCommand adds the common flags to a subcommand of audit, and makes it call do with the opened log.
func (c *commands) auditCommand(cmd *cobra.Command, json string, do func(log *audit.Log) error) *cobra.Command {
	var path string
	cmd.Flags().StringVar(&path, "audit-log", "", "this `file` instead of your own log")
	cmd.Flags().BoolVar(&c.JSON, "json", false, json)
	cmd.RunE = func(*cobra.Command, []string) error {
		log, err := audit.Open(path, audit.Options{})
		if err != nil {
			return err
		}
		return do(log)
	}
	return cmd
}

const entriesAsJSON = "print one JSON document per line, as they stand in the log"

func (c *commands) newAuditTail() *cobra.Command {
	const usual = 20
	lines := usual
	cmd := &cobra.Command{
		Use:     "tail [flags]",
		Short:   "Show the newest entries",
		Long:    "Shows the newest entries of the audit log, the newest last.",
		Example: "  sandbox-run audit tail -n 5\n  sandbox-run audit tail --json",
	}
	cmd.Flags().VarP(cli.NewParsed(&lines, strconv.Itoa(usual), cli.ReadCount), "lines", "n", "`number` of entries")
	return c.auditCommand(cmd, entriesAsJSON, func(log *audit.Log) error { return c.showEntries(log.Tail(lines)) })
}

func (c *commands) newAuditQuery() *cobra.Command {
	var filter audit.Filter
	cmd := &cobra.Command{
		Use:   "query [flags]",
		Short: "Show the entries that match",
		Long: `Shows the entries of the audit log that match all flags given, oldest first.

A time is a date (2026-01-31), a date and time (2026-01-31T15:04:05, with Z or an offset
if it is not local), or an age (90m, 24h, 7d).`,
		Example: "  sandbox-run audit query --since 24h\n  sandbox-run audit query --language python --verdict memory_limit --json",
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	cli.AddParsed(flags, &filter.Since, "since", "", "from this `time` on", readMoment)
	cli.AddParsed(flags, &filter.Until, "until", "", "before this `time`", readMoment)
	flags.StringVar(&filter.Language, "language", "", "in this `language`")
	cli.AddParsed(flags, &filter.Verdict, "verdict", "", "with this `verdict`: ok, time_limit, …", readVerdict)
	flags.StringVar(&filter.User, "user", "", "by this `user`, name or uid")
	cli.AddParsed(flags, &filter.EntryPoint, "door", "", "through this entry point (`door`): cli, library, api",
		cli.ReadOneOf(audit.EntryPoints()...))
	flags.StringVar(&filter.Key, "key-id", "", "with the API key of this `id`")
	cli.AddParsed(flags, &filter.Kind, "kind", "", "of this `kind`: run, refused, key, server_started, …", cli.ReadOneOf(audit.Kinds()...))
	return c.auditCommand(cmd, entriesAsJSON, func(log *audit.Log) error { return c.showEntries(log.Query(filter)) })
}

func (c *commands) newAuditVerify() *cobra.Command {
	return c.auditCommand(&cobra.Command{
		Use:   "verify [flags]",
		Short: "Check that nothing in the log was changed",
		Long: `Checks the whole audit log, older files included, and says where entries were edited,
inserted, deleted, reordered or cut off. Exits 0 if the chain holds, and 1 if it does not.

A process with your rights can write the log anew from its beginning. To detect that,
keep the hash that this command prints in a place that only you can write to.`,
		Example: "  sandbox-run audit verify\n  sandbox-run audit verify --json",
	}, "print the findings as one JSON document", func(log *audit.Log) error {
		report, err := log.Verify()
		if err != nil {
			return err
		}
		if !report.OK {
			c.Code = cli.CodeUnhealthy
		}
		if c.JSON {
			return c.WriteJSON(report)
		}
		_, err = io.WriteString(c.Std.Out, formatAuditReport(report, c.Palette(c.Std.Out)))
		return err
	})
}

func (c *commands) newAuditPrune() *cobra.Command {
	var keep audit.Keep
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove the oldest entries",
		Long: `Removes the oldest rotated files of the audit log; the log is rotated at 64 MiB. The
current file stays. An entry records what was removed, so that the rest can still be
verified.`,
		Example: "  sandbox-run audit prune --older-than 365d\n  sandbox-run audit prune --keep 1g",
	}
	cli.AddParsed(cmd.Flags(), &keep.Size, "keep", "", "remove the oldest files until at most this `size` is left", cli.ReadSize)
	cli.AddParsed(cmd.Flags(), &keep.Age, "older-than", "", "remove files whose newest entry is older than this `time`, like 90d", readAge)
	return c.auditCommand(cmd, "print what was removed as one JSON document", func(log *audit.Log) error {
		if keep == (audit.Keep{}) {
			return &sandbox.Error{
				Op: "audit prune", Kind: sandbox.ErrInvalid, Err: errors.New("neither --keep nor --older-than is given"),
				Hint: "--keep 1g or --older-than 365d",
			}
		}
		removed, err := log.Prune(keep, audit.EntryCLI)
		if err != nil {
			return err
		}
		if c.JSON {
			return c.WriteJSON(struct {
				Removed []string `json:"removed"`
			}{append([]string{}, removed...)})
		}
		text := "nothing was removed\n"
		if len(removed) > 0 {
			text = fmt.Sprintf("removed %s\n", strings.Join(removed, ", "))
		}
		_, err = io.WriteString(c.Std.Out, cli.EscapeText(text))
		return err
	})
}

// readAge parses an age, or a date as the age it has now.
func readAge(s string) (time.Duration, error) {
	at, err := readMoment(s)
	if age := time.Since(at); err == nil && age > 0 {
		return age, nil
	}
	return 0, errors.New("not an age; write it like 90d or 24h, or the date before which")
}

// formatAuditReport formats the report of audit verify for people.
func formatAuditReport(r audit.Report, paint cli.Palette) string {
	var b strings.Builder
	place := func(file string, line int, seq uint64) string {
		at := filepath.Base(file)
		if line > 0 {
			at += ":" + strconv.Itoa(line)
		}
		if seq > 0 {
			at += fmt.Sprintf(": entry %d", seq)
		}
		return cli.EscapeLine(at)
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "%s: %s: %s\n", place(f.File, f.Line, f.Seq), paint.Red(string(f.Kind)), cli.EscapeLine(f.What))
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "and %d more\n", r.More)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "%s: note: %s\n", place(n.File, n.Line, n.Seq), cli.EscapeLine(n.What))
	}
	switch {
	case !r.OK:
		faults := len(r.Faults) + r.More
		b.WriteString(paint.Red(fmt.Sprintf("not ok: %d fault(s) in %d entries in %d file(s)\n", faults, r.Entries, len(r.Files))))
	case r.Entries == 0:
		b.WriteString("ok: the log is empty\n")
	default:
		b.WriteString(paint.Green(fmt.Sprintf("ok: %d entries, %d to %d, in %d file(s); the newest is of %s\n",
			r.Entries, r.First, r.Last, len(r.Files), r.Newest.Local().Format(time.DateTime))))
		fmt.Fprintf(&b, "hash %s\n", r.Hash)
	}
	return b.String()
}

// showEntries prints entries as a table or as lines of JSON.
func (c *commands) showEntries(entries iter.Seq2[audit.Entry, error]) error {
	t := c.NewTable(c.Std.Out, "TIME", "SEQ", "USER", "DOOR", "WHAT", "VERDICT", ">EXIT", ">WALL", ">MEMORY", "TIER", "RUN")
	invalid := 0
	for e, err := range entries {
		var line *audit.LineError
		switch {
		case errors.As(err, &line):
			invalid++
			continue
		case err != nil:
			return err
		case c.JSON:
			if _, err := fmt.Fprintf(c.Std.Out, "%s\n", e.Line()); err != nil {
				return err
			}
			continue
		}
		if err := t.Add(entryRow(e)...); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if invalid > 0 {
		c.PrintMessage(fmt.Sprintf("audit log: %d line(s) are no entries, or were changed, and are left out; "+
			"try: sandbox-run audit verify", invalid))
	}
	return nil
}

// whatWidth is the maximum width of the column WHAT.
const whatWidth = 40

func entryRow(e audit.Entry) []string {
	user := e.Who.User
	if user == "" {
		user = strconv.Itoa(e.Who.UID)
	}
	row := []string{e.Time.Local().Format(time.DateTime), strconv.FormatUint(e.Seq, 10), user, string(e.Who.EntryPoint)}
	switch e.Kind {
	case audit.KindRepaired:
		return append(row, "(log repaired)")
	case audit.KindPruned:
		return append(row, "(log pruned)")
	case audit.KindServerStarted:
		return append(row, "(server started)")
	case audit.KindServerStopped:
		return append(row, "(server stopped)")
	case audit.KindKey:
		return append(row, strings.TrimSpace("(key "+e.Who.Key+" "+e.Reason)+")")
	case audit.KindSession:
		return append(row, "(session "+e.Reason+")", "", "", "", "", "", e.Run)
	case audit.KindRefused:
		what := "(refused: " + e.Reason
		if e.Count > 1 {
			what += fmt.Sprintf(", %d times", e.Count)
		}
		return append(row, what+")", "(not run)", "", "", "", "", e.Run)
	}
	what := strings.TrimSpace(e.Language + " " + e.Version)
	if what == "" {
		what = strings.Join(e.Command, " ")
	}
	if runes := []rune(what); len(runes) > whatWidth {
		what = string(runes[:whatWidth-1]) + "…"
	}
	wall, memory := "", ""
	if e.Metrics != nil {
		wall = cli.ShortTime(e.Metrics.WallTime.Duration())
		if e.Metrics.MemoryPeak > 0 { // 0: not known
			memory = sandbox.Size(e.Metrics.MemoryPeak).String()
		}
	}
	verdict, code := string(e.Verdict), strconv.Itoa(e.ExitCode)
	if e.Verdict == "" && e.Error != "" {
		verdict, code = "(not run)", "" // refused, or sandbox-run failed: --json has the error
	}
	return append(row, what, verdict, code, wall, memory, string(e.Policy.Tier), e.Run)
}

// readMoment parses a point in time, or an age.
func readMoment(s string) (time.Time, error) {
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly,
	} {
		if at, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return at, nil
		}
	}
	if days, ok := strings.CutSuffix(s, "d"); ok && sandbox.IsDecimal(days) {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n < 100*365 {
			return time.Now().Add(-time.Duration(n * 24 * float64(time.Hour))), nil
		}
	}
	ago, err := time.ParseDuration(s)
	if err != nil || ago < 0 {
		return time.Time{}, errors.New("not a time; write it like 2026-01-31, 2026-01-31T15:04:05Z, or 90m, 24h, 7d for so long ago")
	}
	return time.Now().Add(-ago), nil
}

func readVerdict(s string) (sandbox.Verdict, error) {
	var names []string
	for _, v := range sandbox.Verdicts() {
		if string(v) == s {
			return v, nil
		}
		names = append(names, string(v))
	}
	return "", fmt.Errorf("unknown verdict; use one of %s", strings.Join(names, ", "))
}

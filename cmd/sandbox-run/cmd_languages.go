package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func (c *cli) newLanguages() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "languages [flags]",
		Short: "List the languages, and what they are run with",
		Long: `Lists the languages that code can be in: which version of its toolchain was found on
this machine and where, whether it can be used, and what would install what is missing.`,
		Example:               "  sandbox-run languages\n  sandbox-run languages --json",
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return c.languages(cmd) },
	}
	cmd.Flags().BoolVar(&c.json, "json", false, "print the list as one JSON document")
	return cmd
}

func (c *cli) languages(cmd *cobra.Command) error {
	b, err := app.Open(app.DefaultBackend, false)
	if err != nil {
		return err
	}
	defer b.Close()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	all := app.NewExecutor(m, app.Engine{}).Survey(cmd.Context())
	if c.json {
		return c.writeJSON(struct {
			Languages []executor.Availability `json:"languages"`
		}{all})
	}
	_, err = io.WriteString(c.std.out, languagesText(all, c.palette(c.std.out)))
	return err
}

func languagesText(all []executor.Availability, paint palette) string {
	rows := [][4]string{{"LANGUAGE", "STATE", "VERSION", "PROGRAM"}}
	for _, a := range all {
		rows = append(rows, [4]string{a.Name, string(a.State), orDefault(a.Version, "-"), orDefault(a.Path, "-")})
	}
	var widths [4]int
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var b strings.Builder
	for i, r := range rows {
		state := fmt.Sprintf("%-*s", widths[1], r[1])
		switch executor.State(r[1]) {
		case executor.Ready:
			state = paint.green(state)
		case executor.Incomplete:
			state = paint.yellow(state)
		case executor.Missing:
			state = paint.red(state)
		}
		fmt.Fprintf(&b, "%-*s  %s  %-*s  %s\n", widths[0], r[0], state, widths[2], r[2], escaped(r[3]))
		if i == 0 {
			continue
		}
		if a := all[i-1]; a.State != executor.Ready {
			if a.Reason != "" {
				fmt.Fprintf(&b, "  %s\n", escaped(a.Reason))
			}
			if len(a.Install) > 0 {
				fmt.Fprintf(&b, "  to get it: %s\n", escaped(a.Install[0]))
			}
		}
	}
	return b.String()
}

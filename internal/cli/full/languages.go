package full

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func init() { implement("languages", (*commands).newLanguages) }

func (c *commands) newLanguages() *cobra.Command {
	cmd := &cobra.Command{
		Use: "languages [flags]",
		Long: `Lists the supported languages: the version and path of the toolchain that was found on
this machine, or the image that is used instead; whether the language can be used; and
the command that installs a missing toolchain.`,
		Example: "  sandbox-run languages\n  sandbox-run languages --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.printLanguages(cmd) },
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the list as one JSON document")
	return cmd
}

func (c *commands) printLanguages(cmd *cobra.Command) error {
	b, err := app.Open(app.Native, app.Options{})
	if err != nil {
		return err
	}
	defer b.Close()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	engine, err := app.NewExecutor(m, app.ExecutorOptions{})
	if err != nil {
		return err
	}
	all := engine.CheckLanguages(cmd.Context())
	if c.JSON {
		return c.WriteJSON(struct {
			Languages []executor.Availability `json:"languages"`
		}{all})
	}
	t := c.NewTable(c.Std.Out, "LANGUAGE", "STATE", "VERSION", "PROGRAM")
	var lacking strings.Builder
	for _, a := range all {
		if err := t.Add(a.Name, string(a.State), cmp.Or(a.Version, "-"), describeProgram(a)); err != nil {
			return err
		}
		if a.State == executor.Ready {
			continue
		}
		fmt.Fprintf(&lacking, "\n%s is %s", a.Title, a.State)
		if a.Reason != "" {
			fmt.Fprintf(&lacking, ": %s", a.Reason)
		}
		for _, how := range a.Install {
			fmt.Fprintf(&lacking, "\n  to get it: %s", how)
		}
		lacking.WriteByte('\n')
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(c.Std.Out, cli.EscapeText(lacking.String()))
	return err
}

// describeProgram names the image or the path of the toolchain.
func describeProgram(a executor.Availability) string {
	if a.Image != "" {
		return "image " + a.Image
	}
	return cmp.Or(a.Path, "-")
}

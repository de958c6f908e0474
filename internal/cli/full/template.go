package full

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

func init() { implement("template", (*commands).newTemplate) }

func (c *commands) newTemplate() *cobra.Command {
	cmd := c.NewGroup("template",
		`Templates are code with placeholders, and harnesses that run a snippet against test
cases. Some are built in. Your own are files in $XDG_CONFIG_HOME/sandbox-run/templates
(or ~/.config/sandbox-run/templates), and replace built-in ones of the same name.
sandbox-run --template NAME runs one.`,
		"  sandbox-run template list\n  sandbox-run template show harness --lang python\n  sandbox-run template new greeting --lang go")
	cmd.AddCommand(c.newTemplateList(), c.newTemplateShow(), c.newTemplateNew())
	return cmd
}

// templateDir returns the directory of --dir, or the user's directory of templates.
func templateDir(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	return template.UserDir()
}

func templateStore(named string) (*template.Store, error) {
	dir, err := templateDir(named)
	if err != nil {
		return nil, err
	}
	return template.Open(dir), nil
}

func (c *commands) newTemplateList() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "list [flags]",
		Short:   "List the templates",
		Long:    "Lists the templates: built-in ones and your own.",
		Example: "  sandbox-run template list\n  sandbox-run template list --json",
		RunE: func(*cobra.Command, []string) error {
			store, err := templateStore(dir)
			if err != nil {
				return err
			}
			found := store.List()
			if c.JSON {
				return c.WriteJSON(struct {
					Templates []template.Info `json:"templates"`
				}{found})
			}
			_, err = fmt.Fprint(c.Std.Out, cli.EscapeText(formatTemplates(found)))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of your templates, instead of the default")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the list as one JSON document")
	return cmd
}

func formatTemplates(found []template.Info) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-16s %-11s %s\n", "NAME", "LANGUAGE", "DESCRIPTION")
	for _, t := range found {
		text := t.Description
		if t.Source != template.BuiltIn {
			text = strings.TrimSpace(text + " (" + t.Source + ")")
		}
		if t.Shadows != "" {
			text += " hides " + t.Shadows
		}
		if t.Problem != "" {
			text = "unusable: " + t.Problem + " (" + t.Source + ")"
		}
		fmt.Fprintf(&b, "%-16s %-11s %s\n", t.Name, t.Language, text)
	}
	return b.String()
}

func (c *commands) newTemplateShow() *cobra.Command {
	var dir, language string
	cmd := &cobra.Command{
		Use:     "show NAME [flags]",
		Short:   "Show a template's variables and text",
		Long:    "Shows a template's variables and text.",
		Example: "  sandbox-run template show stdio --lang rust",
		Args:    requireOneTemplate,
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := templateStore(dir)
			if err != nil {
				return err
			}
			t, err := store.Get(args[0], language)
			if err != nil {
				return err
			}
			if c.JSON {
				return c.WriteJSON(struct {
					template.Info
					Text string `json:"text"`
				}{t.Info, t.Text})
			}
			text := t.Text
			if cli.IsTerminal(c.Std.Out) {
				text = cli.EscapeText(text)
			}
			_, err = fmt.Fprint(c.Std.Out, text)
			return err
		},
	}
	cmd.Flags().StringVar(&language, "lang", "", "`language`, if several have a template of that name")
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of your templates, instead of the default")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the template as one JSON document")
	return cmd
}

func (c *commands) newTemplateNew() *cobra.Command {
	var dir, language string
	cmd := &cobra.Command{
		Use:     "new NAME --lang LANGUAGE [flags]",
		Short:   "Write a commented template to start from",
		Long:    "Writes a commented template to start from into the directory of your templates.",
		Example: "  sandbox-run template new greeting --lang python",
		Args:    requireOneTemplate,
		RunE: func(_ *cobra.Command, args []string) error {
			into, err := templateDir(dir)
			if err != nil {
				return err
			}
			path, err := template.Create(into, args[0], language)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.Std.Out, cli.EscapeText(path))
			return err
		},
	}
	cmd.Flags().StringVar(&language, "lang", "", "`language` of the template")
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` to write to, instead of the default")
	return cmd
}

// requireOneTemplate checks that the only argument is the name of a template.
func requireOneTemplate(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	problem := fmt.Errorf("the name of a template is missing")
	if len(args) > 1 {
		problem = fmt.Errorf("unexpected argument %q", args[1])
	}
	return &sandbox.Error{Op: cmd.CommandPath()[len(cli.CommandName)+1:], Kind: sandbox.ErrInvalid, Hint: cli.HelpHint(cmd), Err: problem}
}

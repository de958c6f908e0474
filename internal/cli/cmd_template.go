package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

func (c *cli) newTemplate() *cobra.Command {
	cmd := c.newGroup("template", "List, show and start code templates",
		`Code templates: code with placeholders, and harnesses that run a snippet against
cases. Some are built in; your own are files in $XDG_CONFIG_HOME/sandbox-run/templates
(or ~/.config/sandbox-run/templates), and come before built-in ones of the same name.
sandbox-run --template NAME runs one.`,
		"  sandbox-run template list\n  sandbox-run template show harness --lang python\n  sandbox-run template new greeting --lang go")
	cmd.AddCommand(c.newTemplateList(), c.newTemplateShow(), c.newTemplateNew())
	return cmd
}

// templateDir is the user's directory of templates, or the one that --dir names.
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

func (c *cli) newTemplateList() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:                   "list [flags]",
		Short:                 "List the templates there are",
		Example:               "  sandbox-run template list\n  sandbox-run template list --json",
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(*cobra.Command, []string) error {
			store, err := templateStore(dir)
			if err != nil {
				return err
			}
			found := store.List()
			if c.json {
				return c.writeJSON(struct {
					Templates []template.Info `json:"templates"`
				}{found})
			}
			_, err = fmt.Fprint(c.std.out, escaped(templateTable(found)))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of your templates, instead of the usual one")
	cmd.Flags().BoolVar(&c.json, "json", false, "print the list as one JSON document")
	return cmd
}

func templateTable(found []template.Info) string {
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

func (c *cli) newTemplateShow() *cobra.Command {
	var dir, language string
	cmd := &cobra.Command{
		Use:                   "show NAME [flags]",
		Short:                 "Show a template's variables and text",
		Example:               "  sandbox-run template show stdio --lang rust",
		DisableFlagsInUseLine: true,
		Args:                  oneTemplate,
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := templateStore(dir)
			if err != nil {
				return err
			}
			t, err := store.Get(args[0], language)
			if err != nil {
				return err
			}
			if c.json {
				return c.writeJSON(struct {
					template.Info
					Text string `json:"text"`
				}{t.Info, t.Text})
			}
			text := t.Text
			if isTerminal(c.std.out) {
				text = escaped(text)
			}
			_, err = fmt.Fprint(c.std.out, text)
			return err
		},
	}
	cmd.Flags().StringVar(&language, "lang", "", "`language`, where the name has several")
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of your templates, instead of the usual one")
	cmd.Flags().BoolVar(&c.json, "json", false, "print the template as one JSON document")
	return cmd
}

func (c *cli) newTemplateNew() *cobra.Command {
	var dir, language string
	cmd := &cobra.Command{
		Use:                   "new NAME --lang LANGUAGE [flags]",
		Short:                 "Write a commented template to start from",
		Example:               "  sandbox-run template new greeting --lang python",
		DisableFlagsInUseLine: true,
		Args:                  oneTemplate,
		RunE: func(_ *cobra.Command, args []string) error {
			into, err := templateDir(dir)
			if err != nil {
				return err
			}
			path, err := template.Create(into, args[0], language)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.std.out, escaped(path))
			return err
		},
	}
	cmd.Flags().StringVar(&language, "lang", "", "`language` of the template")
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` to write to, instead of the usual one")
	return cmd
}

// oneTemplate is for commands that take the name of a template.
func oneTemplate(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	problem := fmt.Errorf("the name of a template is missing")
	if len(args) > 1 {
		problem = fmt.Errorf("unexpected argument %q", args[1])
	}
	return &sandbox.Error{Op: cmd.CommandPath()[len(commandName)+1:], Kind: sandbox.ErrInvalid, Hint: helpHint(cmd), Err: problem}
}

// filling is a template with what is to be put into it.
type filling struct {
	template *template.Template
	values   map[string]any
}

// codeVariable is the one that a program's code is put into.
const codeVariable = "code"

// readTemplate finds the template and reads its variables; it is nil where none is asked for.
func (o *runOptions) readTemplate(flags *pflag.FlagSet) (*filling, error) {
	if o.template == "" {
		if len(o.variables.values) > 0 {
			return nil, sandbox.Invalid("var", "it is of no use without --template")
		}
		return nil, nil
	}
	if o.entry != "" {
		return nil, sandbox.Invalid("entry", "a template says itself what starts it")
	}
	var dirs []string
	if dir, err := template.UserDir(); err == nil { // without a home directory there are only the built-in templates
		dirs = append(dirs, dir)
	}
	lang := o.lang
	if lang == "" {
		lang = languageOf(slices.Concat(o.files.values, flags.Args()))
	}
	t, err := template.Open(dirs...).Get(o.template, lang)
	if err != nil {
		return nil, err
	}
	f := &filling{template: t, values: map[string]any{}}
	for _, text := range o.variables.values {
		if err := f.set(text); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// languageOf is what the first name's extension says.
func languageOf(names []string) string {
	if len(names) == 0 {
		return ""
	}
	ext := filepath.Ext(names[0])
	for _, l := range executor.New(nil, executor.Options{}).Languages() {
		if ext != "" && slices.Contains(l.Extensions, ext) {
			return l.Name
		}
	}
	return ""
}

// set reads name=value, or name=@file.
func (f *filling) set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return sandbox.Invalid("var", "%q is not name=value", text)
	}
	if _, twice := f.values[name]; twice {
		return sandbox.Invalid("var", "%s is given twice", name)
	}
	if file, ok := strings.CutPrefix(value, "@"); ok {
		in, err := os.Open(file)
		if err != nil {
			return sandbox.Invalid("var", "%s: %s: %w", name, file, plainPathError(err))
		}
		defer in.Close()
		if value, err = readCode(file, in); err != nil {
			return err
		}
	}
	f.values[name] = value
	return nil
}

// wantsCode reports whether the code comes from where code comes from.
func (f *filling) wantsCode() bool {
	_, given := f.values[codeVariable]
	return !given && slices.ContainsFunc(f.template.Variables, func(v template.Variable) bool { return v.Name == codeVariable })
}

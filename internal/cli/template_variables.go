package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

// templateVariables is a template with the values of its variables.
type templateVariables struct {
	template *template.Template
	values   map[string]any
}

// codeVariable is the variable of a template that gets the program's code.
const codeVariable = "code"

// readTemplate opens the template of --template and reads its variables. It returns nil without --template.
func (o *runOptions) readTemplate(flags *pflag.FlagSet) (*templateVariables, error) {
	if o.template == "" {
		if len(o.variables.Values) > 0 {
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
		lang = languageByExtension(slices.Concat(o.files.Values, flags.Args()))
	}
	t, err := template.Open(dirs...).Get(o.template, lang)
	if err != nil {
		return nil, err
	}
	f := &templateVariables{template: t, values: map[string]any{}}
	for _, text := range o.variables.Values {
		if err := f.setVariable(text); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// languageByExtension returns the language of the first name's extension; empty if it is unknown.
func languageByExtension(names []string) string {
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

// setVariable parses name=value or name=@file.
func (f *templateVariables) setVariable(text string) error {
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

// wantsCode reports whether the template has the variable code and no --var sets it.
func (f *templateVariables) wantsCode() bool {
	_, given := f.values[codeVariable]
	return !given && slices.ContainsFunc(f.template.Variables, func(v template.Variable) bool { return v.Name == codeVariable })
}

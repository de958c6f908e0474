package executor

import (
	"maps"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// codeVariable is the template variable for the program's code.
const codeVariable = "code"

// Fill makes the program of a request from its template, if it has one. Plan and Execute do that themselves; Fill serves callers
// that show or send the program.
func (e *Executor) Fill(req *Request) error {
	t := req.Template
	if t == nil {
		if len(req.Variables) > 0 {
			return sandbox.Invalid("var", "variables are of no use without a template")
		}
		return nil
	}
	if req.Language != "" {
		lang, err := e.lookUp(req.Language)
		if err != nil {
			return err
		}
		if lang.Name != t.Language {
			return sandbox.Invalid("lang", "the template %s is %s, not %s", t.Name, t.Language, lang.Name)
		}
	}
	values := map[string]any{}
	maps.Copy(values, req.Variables)
	code := req.Code
	switch {
	case req.Entry != "":
		return sandbox.Invalid("entry", "a template says itself what starts it")
	case len(req.Files) > 1 || len(req.Files) == 1 && code != "":
		return sandbox.Invalid("template", "%s takes one file of code", t.Name)
	case len(req.Files) == 1:
		data, err := req.Files[0].Content()
		if err != nil {
			return err
		}
		code = string(data)
	}
	if code != "" {
		values[codeVariable] = code
	}
	made, err := t.Render(values)
	if err != nil {
		return err
	}
	if len(made.Files) == 0 {
		return sandbox.Invalid("template", "%s makes no files", t.Name)
	}
	req.Template, req.Variables = nil, nil
	req.Language, req.Entry, req.Code, req.Name, req.Files = made.Language, made.Entry, "", "", nil
	for _, f := range made.Files {
		req.Files = append(req.Files, File{Path: f.Path, Data: f.Data})
	}
	return nil
}

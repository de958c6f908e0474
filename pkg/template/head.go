package template

import (
	"fmt"
	"strings"
	"text/template/parse"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
)

// cutHead splits a file at its head, YAML between two lines of three dashes, and says in which
// line the body begins. A file without one is all body.
func cutHead(text string) (head, body string, line int, err error) {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimRight(first, " \t\r") != "---" {
		return "", text, 1, nil
	}
	line = 2
	for at := 0; at < len(rest); line++ {
		end := len(rest)
		if i := strings.IndexByte(rest[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		if strings.TrimRight(rest[at:end], " \t\r\n") == "---" {
			return rest[:at], rest[end:], line + 1, nil
		}
		at = end
	}
	return "", "", 0, fmt.Errorf("the head has no end: a line of three dashes is missing")
}

var headKeys = []string{"name", "description", "language", "entry", "variables"}

func (t *Template) readHead(head string) error {
	// The line of dashes before it counts, too.
	v, err := yamlite.Decode([]byte("\n" + head))
	if err != nil {
		return fmt.Errorf("head: %w", err)
	}
	if v == nil {
		return nil
	}
	m, ok := v.(yamlite.Map)
	if !ok {
		return fmt.Errorf("head: %s where name, description, language, entry and variables belong", yamlite.Kind(v))
	}
	for _, p := range m {
		if p.Key == "variables" {
			if err := t.readVariables(p.Value); err != nil {
				return err
			}
			continue
		}
		if !contains(headKeys, p.Key) {
			return fmt.Errorf("head: line %d: unknown key %s", p.Line, withNear([]string{p.Key}, headKeys))
		}
		s, ok := p.Value.(string)
		if !ok {
			return fmt.Errorf("head: line %d: %s is %s, and must be a string", p.Line, p.Key, yamlite.Kind(p.Value))
		}
		switch p.Key {
		case "name":
			t.Name = s
		case "description":
			t.Description = strings.TrimSpace(s)
		case "language":
			t.Language = canonical(s)
		case "entry":
			if err := checkPath(s, nil); err != nil {
				return fmt.Errorf("head: line %d: entry: %w", p.Line, err)
			}
			t.entry = s
		}
	}
	return nil
}

func (t *Template) readVariables(v any) error {
	m, ok := v.(yamlite.Map)
	if !ok {
		if v == nil {
			return nil
		}
		return fmt.Errorf("head: variables are %s, and must be a mapping of names", yamlite.Kind(v))
	}
	for _, p := range m {
		variable := Variable{Name: p.Key}
		if _, err := callIdent(nil, []any{p.Key}); err != nil || strings.Contains(p.Key, ".") {
			return fmt.Errorf("head: line %d: %q can not name a variable: only letters, digits and _", p.Line, p.Key)
		}
		fields, ok := p.Value.(yamlite.Map)
		if !ok && p.Value != nil {
			return fmt.Errorf("head: line %d: variable %s is %s, and must be a mapping of description, default and required", p.Line, p.Key, yamlite.Kind(p.Value))
		}
		defaulted, optional := false, false
		for _, f := range fields {
			var good bool
			switch f.Key {
			case "description":
				variable.Description, good = f.Value.(string)
			case "required":
				variable.Required, good = f.Value.(bool)
				optional = !variable.Required
			case "default":
				value, err := plain(f.Value, 0)
				variable.Default, good = value, err == nil
				defaulted = true
			default:
				return fmt.Errorf("head: line %d: variable %s: unknown key %s", f.Line, p.Key, withNear([]string{f.Key}, []string{"description", "default", "required"}))
			}
			if !good {
				return fmt.Errorf("head: line %d: variable %s: %s can not be %s", f.Line, p.Key, f.Key, yamlite.Kind(f.Value))
			}
		}
		if defaulted && variable.Required {
			return fmt.Errorf("head: line %d: variable %s is required, so its default can never hold", p.Line, p.Key)
		}
		// What has no default has to be given, unless it says otherwise: then it is empty.
		variable.Required = !defaulted && !optional
		if !defaulted && optional {
			variable.Default = ""
		}
		t.Variables = append(t.Variables, variable)
	}
	return nil
}

// rootFields collects the names that a body looks up in the variables: fields of the dot, where
// that still holds the variables, and of $. A define has a dot of its own.
func rootFields(node parse.Node, dotIsRoot bool, into map[string]bool) {
	each := func(dotIsRoot bool, nodes ...parse.Node) {
		for _, n := range nodes {
			rootFields(n, dotIsRoot, into)
		}
	}
	branch := func(b *parse.BranchNode, inside bool) {
		each(dotIsRoot, b.Pipe)
		each(inside, b.List)
		each(dotIsRoot, b.ElseList)
	}
	switch n := node.(type) {
	case *parse.ListNode:
		if n != nil {
			each(dotIsRoot, n.Nodes...)
		}
	case *parse.ActionNode:
		each(dotIsRoot, n.Pipe)
	case *parse.IfNode:
		branch(&n.BranchNode, dotIsRoot)
	case *parse.WithNode:
		branch(&n.BranchNode, false)
	case *parse.RangeNode:
		branch(&n.BranchNode, false)
	case *parse.TemplateNode:
		each(dotIsRoot, n.Pipe)
	case *parse.PipeNode:
		if n != nil {
			for _, c := range n.Cmds {
				each(dotIsRoot, c.Args...)
			}
		}
	case *parse.ChainNode:
		each(dotIsRoot, n.Node)
	case *parse.FieldNode:
		if dotIsRoot {
			into[n.Ident[0]] = true
		}
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			into[n.Ident[1]] = true
		}
	}
}

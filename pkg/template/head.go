package template

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
)

// cutHead splits a file at its head, YAML between two lines of three dashes, and reports in which line the body begins. A file without a
// head is all body.
func cutHead(text string) (head, body string, line int, err error) {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimRight(first, " \t\r") != "---" {
		return "", text, 1, nil
	}
	line = 2
	at := 0
	for l := range strings.Lines(rest) {
		line++
		if strings.TrimRight(l, " \t\r\n") == "---" {
			return rest[:at], rest[at+len(l):], line, nil
		}
		at += len(l)
	}
	return "", "", 0, errors.New("the head has no end: a line of three dashes is missing")
}

func (t *Template) readHead(head string) error {
	document, err := yamlite.Decode([]byte("\n" + head)) // the line of dashes before it counts, too
	if err != nil {
		return fmt.Errorf("head: %w", err)
	}
	err = readMapping(document, map[string]func(yamlite.Pair) error{
		"name": setTo(&t.Name), "description": setTo(&t.Description),
		"language": func(p yamlite.Pair) error {
			err := setTo(&t.Language)(p)
			t.Language = findLanguage(t.Language).name
			return err
		},
		"entry": func(p yamlite.Pair) error {
			if err := setTo(&t.entry)(p); err != nil {
				return err
			}
			return checkPath(t.entry, nil)
		},
		"variables": t.readVariables,
	})
	if err != nil {
		return fmt.Errorf("head: %w", err)
	}
	t.Description = strings.TrimSpace(t.Description)
	return nil
}

// readMapping calls the setter of each key of a mapping. A null is an empty mapping.
func readMapping(v any, setters map[string]func(yamlite.Pair) error) error {
	keys := sortedKeys(setters)
	m, ok := v.(yamlite.Map)
	if !ok && v != nil {
		return fmt.Errorf("%s where %s belong", yamlite.Kind(v), strings.Join(keys, ", "))
	}
	for _, p := range m {
		set := setters[p.Key]
		if set == nil {
			return fmt.Errorf("line %d: unknown key %s", p.Line, suggest([]string{p.Key}, keys))
		}
		if err := set(p); err != nil {
			return fmt.Errorf("line %d: %s: %w", p.Line, p.Key, err)
		}
	}
	return nil
}

// setTo stores the value of a key, if it has the right type.
func setTo[T any](to *T) func(yamlite.Pair) error {
	return func(p yamlite.Pair) error {
		v, ok := p.Value.(T)
		if !ok {
			return fmt.Errorf("it can not be %s", yamlite.Kind(p.Value))
		}
		*to = v
		return nil
	}
}

func (t *Template) readVariables(p yamlite.Pair) error {
	m, ok := p.Value.(yamlite.Map)
	if !ok && p.Value != nil {
		return fmt.Errorf("%s, and must be a mapping of names", yamlite.Kind(p.Value))
	}
	for _, p := range m {
		if !isName(p.Key, '_') {
			return fmt.Errorf("line %d: %q can not name a variable: only letters, digits and _", p.Line, p.Key)
		}
		v, err := readVariable(p)
		if err != nil {
			return fmt.Errorf("variable %s: %w", p.Key, err)
		}
		t.Variables = append(t.Variables, v)
	}
	return nil
}

func readVariable(p yamlite.Pair) (Variable, error) {
	v := Variable{Name: p.Key}
	defaulted, optional := false, false
	err := readMapping(p.Value, map[string]func(yamlite.Pair) error{
		"description": setTo(&v.Description),
		"required": func(p yamlite.Pair) error {
			err := setTo(&v.Required)(p)
			optional = !v.Required
			return err
		},
		"default": func(p yamlite.Pair) (err error) {
			v.Default, err = toData(p.Value)
			defaulted = true
			return err
		},
	})
	if err == nil && defaulted && v.Required {
		err = errors.New("the variable is required, so its default can never hold")
	}
	// A variable without a default must be given, unless it says otherwise: then it is empty.
	v.Required = !defaulted && !optional
	if !defaulted && optional {
		v.Default = ""
	}
	return v, err
}

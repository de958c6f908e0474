package template

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// function is a function that a template may call. No function can see a file, the environment or a clock.
type function struct {
	parameters string // as messages show them; "VALUE..." stands for any number of values
	call       func(r *rendering, args []any) (any, error)
}

// functions lists the functions that this package defines; builtinFunctions are text/template's own.
func functions() map[string]function {
	return map[string]function{
		"quote":    {"TEXT", onTexts(func(r *rendering, t []string) (any, error) { return quote(r.language, t[0]) })},
		"indent":   {"COLUMNS TEXT", onTexts(indent)},
		"json":     {"VALUE", func(_ *rendering, args []any) (any, error) { return formatJSON(args[0]) }},
		"lines":    {"TEXT", onTexts(splitLines)},
		"join":     {"SEPARATOR LIST", join},
		"split":    {"SEPARATOR TEXT", onTexts(func(_ *rendering, t []string) (any, error) { return toData(strings.Split(t[1], t[0])) })},
		"list":     {"VALUE...", func(_ *rendering, args []any) (any, error) { return slices.Clone(args), nil }},
		"chunks":   {"BYTES TEXT", onTexts(chunks)},
		"upper":    {"TEXT", onTexts(func(_ *rendering, t []string) (any, error) { return strings.ToUpper(t[0]), nil })},
		"lower":    {"TEXT", onTexts(func(_ *rendering, t []string) (any, error) { return strings.ToLower(t[0]), nil })},
		"trim":     {"TEXT", onTexts(func(_ *rendering, t []string) (any, error) { return strings.TrimSpace(t[0]), nil })},
		"ident":    {"TEXT", onTexts(func(_ *rendering, t []string) (any, error) { return t[0], checkIdentifier(t[0]) })},
		"replace":  {"OLD NEW TEXT", onTexts(replace)},
		"contains": {"PART TEXT", onTexts(func(_ *rendering, t []string) (any, error) { return strings.Contains(t[1], t[0]), nil })},
		"cases":    {"KIND TEXT", onTexts(func(r *rendering, t []string) (any, error) { return readCases(t[0], r.language, t[1]) })},
		"snippet":  {"TEXT", onTexts(func(r *rendering, t []string) (any, error) { return snippet(r.language, t[0]) })},
		"index":    {"VALUE KEY...", index},
		"add":      {"NUMBER NUMBER", add},
		"eq":       {"VALUE VALUE...", equal},
		"ne":       {"VALUE VALUE", compare(func(c int) bool { return c != 0 })},
		"lt":       {"NUMBER NUMBER", compare(func(c int) bool { return c < 0 })},
		"le":       {"NUMBER NUMBER", compare(func(c int) bool { return c <= 0 })},
		"gt":       {"NUMBER NUMBER", compare(func(c int) bool { return c > 0 })},
		"ge":       {"NUMBER NUMBER", compare(func(c int) bool { return c >= 0 })},
	}
}

var builtinFunctions = [...]string{"and", "or", "not", "len"}

var errTooLarge = fmt.Errorf("the result is larger than %d MiB", MaxOutput>>20)

func onTexts(f func(r *rendering, texts []string) (any, error)) func(*rendering, []any) (any, error) {
	return func(r *rendering, args []any) (any, error) {
		texts, err := asTexts(args)
		if err != nil {
			return nil, err
		}
		return f(r, texts)
	}
}

// indent moves every line that has something in it; the first, too.
func indent(_ *rendering, t []string) (any, error) {
	const most = 200
	n, err := asInt(t[0])
	if err != nil || n < 0 || n > most {
		return nil, fmt.Errorf("%s columns are not between 0 and %d", t[0], most)
	}
	if strings.Count(t[1], "\n")*n > MaxOutput {
		return nil, errTooLarge
	}
	var b strings.Builder
	for line := range strings.Lines(t[1]) {
		if strings.Trim(line, "\r\n") != "" {
			b.WriteString(strings.Repeat(" ", n))
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

func replace(_ *rendering, t []string) (any, error) {
	if strings.Count(t[2], t[0])*len(t[1]) > MaxOutput {
		return nil, errTooLarge
	}
	return strings.ReplaceAll(t[2], t[0], t[1]), nil
}

func formatJSON(v any) (string, error) {
	if text, ok := findInvalidUTF8(v); ok {
		return "", fmt.Errorf("%q is not UTF-8", text)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func findInvalidUTF8(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, !utf8.ValidString(v)
	case []any:
		for _, item := range v {
			if text, ok := findInvalidUTF8(item); ok {
				return text, true
			}
		}
	case map[string]any:
		for key, item := range v {
			if text, ok := findInvalidUTF8([]any{key, item}); ok {
				return text, true
			}
		}
	}
	return "", false
}

// splitLines splits at line breaks; a break at the very end begins no further line.
func splitLines(_ *rendering, t []string) (any, error) {
	list := []any{}
	for line := range strings.Lines(t[0]) {
		list = append(list, strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
	}
	return list, nil
}

func join(_ *rendering, args []any) (any, error) {
	separator, err := asText(args[0])
	if err != nil {
		return nil, err
	}
	list, ok := args[1].([]any)
	if !ok {
		return nil, fmt.Errorf("%s where a list is needed", kindOf(args[1]))
	}
	parts, err := asTexts(list)
	if err != nil {
		return nil, err
	}
	size := len(separator) * len(parts)
	for _, p := range parts {
		size += len(p)
	}
	if size > MaxOutput {
		return nil, errTooLarge
	}
	return strings.Join(parts, separator), nil
}

// chunks splits a text into pieces of at most so many bytes, never within a character.
func chunks(_ *rendering, t []string) (any, error) {
	n, err := asInt(t[0])
	if err != nil || n < utf8.UTFMax {
		return nil, fmt.Errorf("%s bytes have no room for a character", t[0])
	}
	s, list := t[1], []any{}
	for len(s) > n {
		cut := n
		for cut > n-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		list = append(list, s[:cut])
		s = s[cut:]
	}
	return append(list, s), nil
}

// checkIdentifier accepts names with dots between them: text that may stand in code without quotes.
func checkIdentifier(s string) error {
	for name := range strings.SplitSeq(s, ".") {
		if !isName(name, '_') {
			return fmt.Errorf("%q is no name: only letters, digits and _", s)
		}
	}
	return nil
}

// isName reports whether s consists of letters, digits and the given characters, and begins with no digit.
func isName(s string, others ...rune) bool {
	for i, r := range s {
		if !slices.Contains(others, r) && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return false
		}
	}
	return s != ""
}

// index is stricter than text/template's: a key that a map does not have is an error.
func index(_ *rendering, args []any) (any, error) {
	v := args[0]
	for _, key := range args[1:] {
		switch in := v.(type) {
		case map[string]any:
			name, err := asText(key)
			if err != nil {
				return nil, err
			}
			item, ok := in[name]
			if !ok {
				return nil, fmt.Errorf("no field %s", suggest([]string{name}, sortedKeys(in)))
			}
			v = item
		case []any:
			i, err := asInt(key)
			if err != nil {
				return nil, err
			}
			if i < 0 || i >= len(in) {
				return nil, fmt.Errorf("item %d of a list of %d", i, len(in))
			}
			v = in[i]
		default:
			return nil, fmt.Errorf("%s has no items", kindOf(v))
		}
	}
	return v, nil
}

func add(_ *rendering, args []any) (any, error) {
	a, errA := asInt(args[0])
	b, errB := asInt(args[1])
	return a + b, errors.Join(errA, errB)
}

func equal(_ *rendering, args []any) (any, error) {
	for _, other := range args[1:] {
		if c, err := order(args[0], other); err != nil || c == 0 {
			return true, err
		}
	}
	return false, nil
}

func compare(holds func(int) bool) func(*rendering, []any) (any, error) {
	return func(_ *rendering, args []any) (any, error) {
		c, err := order(args[0], args[1])
		return holds(c), err
	}
}

// order compares numbers with numbers and texts with texts; true is more than false, and null is less than everything else. text/template
// can not compare whole numbers with fractions.
func order(a, b any) (int, error) {
	if x, ok := asFloat(a); ok {
		if y, ok := asFloat(b); ok {
			return cmp.Compare(x, y), nil
		}
	}
	if a == nil || b == nil {
		return cmp.Compare(rank(a != nil), rank(b != nil)), nil
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y), nil
		}
	case bool:
		if y, ok := b.(bool); ok {
			return cmp.Compare(rank(x), rank(y)), nil
		}
	}
	return 0, fmt.Errorf("%s can not be compared with %s", kindOf(a), kindOf(b))
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}

package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// function is what a template may call. None of them can see a file, the environment or a clock.
type function struct {
	usage       string
	least, most int // arguments; most is -1 where there is no bound
	call        func(m *machine, args []any) (any, error)
}

// functions are made when the first template is read, not at every start of the executable.
var functions = sync.OnceValue(func() map[string]function {
	return map[string]function{
		"quote":  {"quote TEXT", 1, 1, callQuote},
		"indent": {"indent COLUMNS TEXT", 2, 2, callIndent},
		"json":   {"json VALUE", 1, 1, callJSON},
		"lines":  {"lines TEXT", 1, 1, callLines},
		"join":   {"join SEPARATOR LIST", 2, 2, callJoin},
		"split": {"split SEPARATOR TEXT", 2, 2, func(_ *machine, args []any) (any, error) {
			t, err := texts(args)
			if err != nil {
				return nil, err
			}
			return plain(strings.Split(t[1], t[0]), 0)
		}},
		"list":   {"list VALUE...", 0, -1, func(_ *machine, args []any) (any, error) { return append([]any{}, args...), nil }},
		"chunks": {"chunks BYTES TEXT", 2, 2, callChunks},
		"upper":  textFunction("upper TEXT", strings.ToUpper),
		"lower":  textFunction("lower TEXT", strings.ToLower),
		"trim":   textFunction("trim TEXT", strings.TrimSpace),
		"ident":  {"ident TEXT", 1, 1, callIdent},
		"replace": {"replace OLD NEW TEXT", 3, 3, func(_ *machine, args []any) (any, error) {
			t, err := texts(args)
			if err != nil {
				return nil, err
			}
			if n := strings.Count(t[2], t[0]); n*len(t[1]) > MaxOutput {
				return nil, fmt.Errorf("the result is larger than %d MiB", MaxOutput>>20)
			}
			return strings.ReplaceAll(t[2], t[0], t[1]), nil
		}},
		"contains": {"contains PART TEXT", 2, 2, func(_ *machine, args []any) (any, error) {
			t, err := texts(args)
			if err != nil {
				return nil, err
			}
			return strings.Contains(t[1], t[0]), nil
		}},
		"cases":   {"cases KIND TEXT", 2, 2, callCases},
		"snippet": {"snippet TEXT", 1, 1, callSnippet},
		"and":     {"and VALUE...", 1, -1, lastOf},
		"or":      {"or VALUE...", 1, -1, lastOf},
		"not":     {"not VALUE", 1, 1, func(_ *machine, args []any) (any, error) { return !truth(args[0]), nil }},
		"len":     {"len VALUE", 1, 1, callLen},
		"index":   {"index VALUE KEY...", 1, -1, callIndex},
		"add":     {"add NUMBER NUMBER", 2, 2, callAdd},
		"eq":      {"eq VALUE VALUE...", 2, -1, callEq},
		"ne":      {"ne VALUE VALUE", 2, 2, func(m *machine, args []any) (any, error) { return negate(callEq(m, args)) }},
		"lt":      {"lt NUMBER NUMBER", 2, 2, compare(func(c int) bool { return c < 0 })},
		"le":      {"le NUMBER NUMBER", 2, 2, compare(func(c int) bool { return c <= 0 })},
		"gt":      {"gt NUMBER NUMBER", 2, 2, compare(func(c int) bool { return c > 0 })},
		"ge":      {"ge NUMBER NUMBER", 2, 2, compare(func(c int) bool { return c >= 0 })},
	}
})

func textFunction(usage string, f func(string) string) function {
	return function{usage, 1, 1, func(_ *machine, args []any) (any, error) {
		s, err := asText(args[0])
		return f(s), err
	}}
}

func texts(args []any) ([]string, error) {
	out := make([]string, len(args))
	for i, a := range args {
		s, err := asText(a)
		if err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

// lastOf: of and and or, whatever decided otherwise has been returned before.
func lastOf(_ *machine, args []any) (any, error) { return args[len(args)-1], nil }

func callQuote(m *machine, args []any) (any, error) {
	s, err := asText(args[0])
	if err != nil {
		return nil, err
	}
	return quote(m.language, s)
}

// callIndent moves every line that has something in it; the first, too.
func callIndent(_ *machine, args []any) (any, error) {
	n, err := asInt(args[0])
	if err != nil {
		return nil, err
	}
	const most = 200
	if n < 0 || n > most {
		return nil, fmt.Errorf("%d columns are not between 0 and %d", n, most)
	}
	s, err := asText(args[1])
	if err != nil {
		return nil, err
	}
	if strings.Count(s, "\n")*n > MaxOutput {
		return nil, fmt.Errorf("the result is larger than %d MiB", MaxOutput>>20)
	}
	lines := strings.SplitAfter(s, "\n")
	for i, l := range lines {
		if strings.Trim(l, "\r\n") != "" {
			lines[i] = strings.Repeat(" ", n) + l
		}
	}
	return strings.Join(lines, ""), nil
}

func callJSON(_ *machine, args []any) (any, error) {
	if s, bad := notUTF8(args[0]); bad {
		return nil, fmt.Errorf("%q is not UTF-8", s)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(args[0]); err != nil {
		return nil, err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

func notUTF8(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, !utf8.ValidString(v)
	case []any:
		for _, item := range v {
			if s, bad := notUTF8(item); bad {
				return s, true
			}
		}
	case map[string]any:
		for key, item := range v {
			if !utf8.ValidString(key) {
				return key, true
			}
			if s, bad := notUTF8(item); bad {
				return s, true
			}
		}
	}
	return "", false
}

// callLines splits at line breaks; one at the very end begins no further line.
func callLines(_ *machine, args []any) (any, error) {
	s, err := asText(args[0])
	if err != nil {
		return nil, err
	}
	list := []any{}
	if s == "" {
		return list, nil
	}
	for l := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		list = append(list, strings.TrimSuffix(l, "\r"))
	}
	return list, nil
}

func callJoin(_ *machine, args []any) (any, error) {
	separator, err := asText(args[0])
	if err != nil {
		return nil, err
	}
	list, ok := args[1].([]any)
	if !ok {
		return nil, fmt.Errorf("%s where a list is needed", kindOf(args[1]))
	}
	parts, err := texts(list)
	if err != nil {
		return nil, err
	}
	size := len(separator) * len(parts)
	for _, p := range parts {
		size += len(p)
	}
	if size > MaxOutput {
		return nil, fmt.Errorf("the result is larger than %d MiB", MaxOutput>>20)
	}
	return strings.Join(parts, separator), nil
}

// callChunks splits a text into pieces of at most so many bytes, never within a character.
func callChunks(_ *machine, args []any) (any, error) {
	n, err := asInt(args[0])
	if err != nil {
		return nil, err
	}
	if n < utf8.UTFMax {
		return nil, fmt.Errorf("%d bytes have no room for a character", n)
	}
	s, err := asText(args[1])
	if err != nil {
		return nil, err
	}
	list := []any{}
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

// callIdent lets only names through, with dots between them: what stands in code without quotes.
func callIdent(_ *machine, args []any) (any, error) {
	s, err := asText(args[0])
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(s, ".") {
		for i, r := range part {
			if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
				return nil, fmt.Errorf("%q is no name: only letters, digits and _", s)
			}
		}
		if part == "" {
			return nil, fmt.Errorf("%q is no name", s)
		}
	}
	return s, nil
}

func callLen(_ *machine, args []any) (any, error) {
	switch v := args[0].(type) {
	case string:
		return int64(len(v)), nil
	case []any:
		return int64(len(v)), nil
	case map[string]any:
		return int64(len(v)), nil
	}
	return nil, fmt.Errorf("%s has no length", kindOf(args[0]))
}

func callIndex(_ *machine, args []any) (any, error) {
	v := args[0]
	for _, key := range args[1:] {
		switch in := v.(type) {
		case map[string]any:
			name, err := asText(key)
			if err != nil {
				return nil, err
			}
			if v, err = field(in, []string{name}); err != nil {
				return nil, err
			}
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

func callAdd(_ *machine, args []any) (any, error) {
	a, err := asInt(args[0])
	if err != nil {
		return nil, err
	}
	b, err := asInt(args[1])
	if err != nil {
		return nil, err
	}
	return int64(a) + int64(b), nil
}

func callEq(_ *machine, args []any) (any, error) {
	for _, other := range args[1:] {
		c, err := order(args[0], other)
		if err != nil {
			return nil, err
		}
		if c == 0 {
			return true, nil
		}
	}
	return false, nil
}

func negate(v any, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return !truth(v), nil
}

func compare(holds func(int) bool) func(*machine, []any) (any, error) {
	return func(_ *machine, args []any) (any, error) {
		c, err := order(args[0], args[1])
		return holds(c), err
	}
}

// order compares numbers with numbers and texts with texts; true is more than false, and null equals itself.
func order(a, b any) (int, error) {
	if x, ok := asFloat(a); ok {
		if y, ok := asFloat(b); ok {
			switch {
			case x < y:
				return -1, nil
			case x > y:
				return 1, nil
			}
			return 0, nil
		}
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y), nil
		}
	case bool:
		if y, ok := b.(bool); ok {
			switch {
			case x == y:
				return 0, nil
			case y:
				return -1, nil
			}
			return 1, nil
		}
	case nil:
		if b == nil {
			return 0, nil
		}
		return -1, nil
	}
	if b == nil {
		return 1, nil
	}
	return 0, fmt.Errorf("%s can not be compared with %s", kindOf(a), kindOf(b))
}

package template

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
)

// The kinds of cases.
const (
	kindCall  = "call"  // args are given to a function, and its result is compared
	kindStdio = "stdio" // stdin is given to a program, and its stdout and exit code are compared
	kindQuery = "query" // tables are given to a query, and its rows are compared
)

const (
	maxCases       = 1000
	defaultTimeout = 10 * time.Second
	maxTimeout     = time.Hour
)

// caseKeys lists the keys that a case of each kind may have.
var caseKeys = map[string][]string{
	kindCall:  {"name", "args", "want", "tolerance", "ignore_trailing_space", "timeout"},
	kindStdio: {"name", "stdin", "args", "want", "exit_code", "ignore_trailing_space", "timeout"},
	kindQuery: {"name", "tables", "want", "ordered"},
}

// readCases reads a file of cases: a list of cases, or a mapping of cases and defaults for them. As data of a template every case has all
// keys of its kind, checked, and moreover:
//
//	label       the name, padded to the width of the longest
//	heading     CASE, padded likewise
//	timeout_ms  the timeout in milliseconds
func readCases(kind, language, text string) (any, error) {
	if caseKeys[kind] == nil {
		return nil, fmt.Errorf("kind %q is none of %s, %s and %s", kind, kindCall, kindStdio, kindQuery)
	}
	doc, err := yamlite.Decode([]byte(text))
	if err != nil {
		return nil, err
	}
	defaults, list, err := caseList(doc)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(list))
	widest := width("CASE")
	for i, item := range list {
		c, err := readCase(kind, language, defaults, item, i+1)
		if err != nil {
			return nil, err
		}
		out[i] = c
		widest = max(widest, width(c["name"].(string)))
	}
	pad := func(s string) string { return s + strings.Repeat(" ", widest-width(s)) }
	for _, c := range out {
		object := c.(map[string]any)
		object["heading"], object["label"] = pad("CASE"), pad(object["name"].(string))
	}
	return out, nil
}

func caseList(doc any) (defaults yamlite.Map, list []any, err error) {
	if _, ok := doc.(yamlite.Map); ok {
		err = readMapping(doc, map[string]func(yamlite.Pair) error{"cases": setTo(&list), "defaults": setTo(&defaults)})
	} else if list, ok = doc.([]any); !ok {
		err = fmt.Errorf("%s where a list of cases belongs", yamlite.Kind(doc))
	}
	switch {
	case err != nil:
	case len(list) == 0:
		err = errors.New("there are no cases")
	case len(list) > maxCases:
		err = fmt.Errorf("%d cases are more than %d", len(list), maxCases)
	}
	return defaults, list, err
}

func readCase(kind, language string, defaults yamlite.Map, item any, number int) (map[string]any, error) {
	given, ok := item.(yamlite.Map)
	if !ok {
		return nil, fmt.Errorf("case %d is %s, and must be a mapping", number, yamlite.Kind(item))
	}
	c := map[string]any{
		"name": fmt.Sprintf("case %d", number), "args": []any{}, "stdin": "", "tolerance": 0, "exit_code": 0,
		"ignore_trailing_space": false, "ordered": true, "tables": map[string]any{}, "timeout_ms": int(defaultTimeout.Milliseconds()),
	}
	if name, ok := given.Get("name"); ok {
		s, err := asText(name)
		if err != nil {
			return nil, fmt.Errorf("case %d: its name is %s", number, kindOf(name))
		}
		c["name"] = visible(s)
	}
	where := fmt.Sprintf("case %d (%s)", number, c["name"])
	for _, p := range slices.Concat(defaults, given) {
		if keys := caseKeys[kind]; !slices.Contains(keys, p.Key) {
			return nil, fmt.Errorf("%s: unknown key %s; there are: %s", where, suggest([]string{p.Key}, keys), strings.Join(keys, ", "))
		}
		if p.Key == "name" {
			continue
		}
		if err := setCase(c, kind, p); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", where, p.Key, err)
		}
	}
	if _, ok := c["want"]; !ok {
		return nil, fmt.Errorf("%s: want is missing: what it should give", where)
	}
	if language == "javascript" || language == "typescript" {
		for _, key := range []string{"args", "want"} {
			if n := inexact(c[key]); n != "" {
				return nil, fmt.Errorf("%s: %s: %s is beyond what a number of %s holds exactly; a BigInt is compared as a string of digits",
					where, key, n, language)
			}
		}
	}
	if kind == kindQuery {
		if err := queryCase(c); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
	}
	return c, nil
}

// setCase checks one entry of a case.
func setCase(c map[string]any, kind string, p yamlite.Pair) error {
	v, err := toData(p.Value)
	if err != nil {
		return err
	}
	wrong := func(need string) error { return fmt.Errorf("%s, and must be %s", kindOf(v), need) }
	switch p.Key {
	case "args":
		list, ok := v.([]any)
		if !ok {
			return wrong("a list")
		}
		if kind == kindStdio {
			words, err := asTexts(list)
			if err != nil {
				return err
			}
			v, _ = toData(words)
		}
	case "stdin":
		if _, ok := v.(string); !ok {
			return wrong("a string; a number needs quotes")
		}
	case "want":
		if _, ok := v.(string); kind == kindStdio && !ok {
			return wrong("a string; a number needs quotes")
		}
	case "ignore_trailing_space", "ordered":
		if _, ok := v.(bool); !ok {
			return wrong("true or false")
		}
	case "tolerance":
		if n, ok := asFloat(v); !ok || n < 0 {
			return wrong("a number, 0 or more")
		}
	case "exit_code":
		if n, err := asInt(v); err != nil || n < 0 || n > 255 {
			return wrong("a whole number from 0 to 255")
		}
	case "timeout":
		d, err := caseTimeout(v)
		c["timeout_ms"] = int(d.Milliseconds())
		return err
	}
	c[p.Key] = v
	return nil
}

// caseTimeout reads 500ms or 1m, and numbers as seconds.
func caseTimeout(v any) (time.Duration, error) {
	d := time.Duration(0)
	if seconds, ok := asFloat(v); ok && seconds < maxTimeout.Seconds()+1 {
		d = time.Duration(seconds * float64(time.Second))
	} else if s, ok := v.(string); ok {
		parsed, err := time.ParseDuration(s)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration; write 500ms, 2s or 1m", s)
		}
		d = parsed
	}
	if d < time.Millisecond || d > maxTimeout {
		return 0, fmt.Errorf("it must be between 1ms and %v", maxTimeout)
	}
	return d, nil
}

// inexact finds a whole number that a 64-bit float would change.
func inexact(v any) string {
	const most = 1 << 53
	switch v := v.(type) {
	case int:
		if v > most || v < -most {
			return strconv.Itoa(v)
		}
	case yamlite.Number: // whole numbers of up to 64 bits are int
		if _, ok := new(big.Int).SetString(string(v), 10); ok {
			return string(v)
		}
	case []any:
		for _, item := range v {
			if n := inexact(item); n != "" {
				return n
			}
		}
	case map[string]any:
		for _, key := range sortedKeys(v) {
			if n := inexact(v[key]); n != "" {
				return n
			}
		}
	}
	return ""
}

// visible makes one printable line of a name.
func visible(s string) string {
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`), `\\`, `\`)
}

// width is how many columns a terminal gives to a text: two for East Asian letters and pictures,
// none for marks that combine with the letter before.
func width(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case r >= 0x0300 && r <= 0x036f, r >= 0x200b && r <= 0x200f, r >= 0x20d0 && r <= 0x20ff,
			r >= 0xfe00 && r <= 0xfe0f, r >= 0xfe20 && r <= 0xfe2f:
		case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf && r != 0x303f, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
			r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6,
			r >= 0x1f300 && r <= 0x1f64f, r >= 0x1f680 && r <= 0x1f6ff, r >= 0x1f900 && r <= 0x1f9ff, r >= 0x20000 && r <= 0x3fffd:
			n += 2
		default:
			n++
		}
	}
	return n
}

package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// Threat A6: the output of a program must not control the terminal.
func TestThreatA6Escape(t *testing.T) {
	for in, want := range map[string]string{
		"plain\n\ttext":        "plain\n\ttext",
		"grün 漢字 🎉":            "grün 漢字 🎉",
		"\x1b[31mred\x1b[0m":   `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\a":       `\x1b]0;title\x07`,
		"safe\rEVIL":           `safe\rEVIL`,
		"dos\r\n":              "dos\r\n",
		"end\r":                `end\r`,
		"\r\r\n":               `\r` + "\r\n",
		"back\b\b":             `back\x08\x08`,
		"nul\x00del\x7f":       `nul\x00del\u007f`,
		"c1 \u009b31m":         `c1 \u009b31m`,
		"raw c1 \x9b31m":       `raw c1 \x9b31m`,
		"bad \xff\xfe utf-8":   `bad \xff\xfe utf-8`,
		"cut \xe6\xbc":         `cut \xe6\xbc`,
		"overlong \xc0\xaf":    `overlong \xc0\xaf`,
		"a\u202eb\u2066c":      `a\u202eb\u2066c`,
		"line\u2028para\u2029": `line\u2028para\u2029`,
		"real \ufffd stays":    "real \ufffd stays",
		"\v\f\x0e\x0f":         `\x0b\x0c\x0e\x0f`,
		"":                     "",
	} {
		if got := EscapeText(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// On a terminal with colours, sequences that only change colours pass.
func TestThreatA6Colours(t *testing.T) {
	long := "\x1b[" + strings.Repeat("1;", maxColour) + "m"
	for in, want := range map[string]string{
		"\x1b[31mred\x1b[0m":                    "\x1b[31mred\x1b[0m",
		"\x1b[m\x1b[1;38;5;208m":                "\x1b[m\x1b[1;38;5;208m",
		"\x1b[38:2::1:2:3mrgb":                  "\x1b[38:2::1:2:3mrgb",
		"\x1b[2J\x1b[1A\x1b[?25l":               `\x1b[2J\x1b[1A\x1b[?25l`,
		"\x1b[>4;2m":                            `\x1b[>4;2m`, // a setting of xterm's keyboard
		"\x1b[?4m":                              `\x1b[?4m`,   // a query
		"\x1b[3 m":                              `\x1b[3 m`,
		"\x1b]0;t\x1b[31m\a":                    `\x1b]0;t` + "\x1b[31m" + `\x07`,
		"\x1b\x1b[1m":                           `\x1b` + "\x1b[1m",
		"\x1b[31":                               `\x1b[31`,
		"\x1b":                                  `\x1b`,
		"\x1b[3\r\n1m":                          `\x1b[3` + "\r\n1m",
		"\u009b31m":                             `\u009b31m`,
		long:                                    `\x1b` + long[1:],
		"\x1b[" + strings.Repeat("1", 61) + "m": "\x1b[" + strings.Repeat("1", 61) + "m",
	} {
		for step := 1; step <= 5; step++ {
			if got := escapeInSteps(t, []byte(in), step, true); got != want {
				t.Errorf("%q in steps of %d: %q, want %q", in, step, got, want)
			}
		}
	}
}

// Text without colours of its own gets the tint; the others keep theirs.
func TestTint(t *testing.T) {
	var out strings.Builder
	e := &escaper{to: &out, colours: true, tint: colourRed}
	for _, text := range []string{"plain", "\x1b[32mgreen", " still", "\x1b[0m", "", "plain"} {
		if _, err := e.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if want := "\x1b[31mplain\x1b[0m\x1b[32mgreen still\x1b[0m\x1b[31mplain\x1b[0m"; out.String() != want || e.styled {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestEndsLine(t *testing.T) {
	for text, want := range map[string][2]bool{
		"a\n": {true, true}, "a": {false, true}, "a\n\x1b[0m": {true, true}, "a\n\x1b[0m\x1b[m": {true, true}, "\x1b[0m": {false, false},
		"\x1b[0mb": {false, true}, "a\n\x1b[2J": {false, true},
	} {
		if ends, known := endsLine([]byte(text)); ends != want[0] || known != want[1] {
			t.Errorf("%q: %v, %v", text, ends, known)
		}
	}
}

// FuzzEscape: the escaped text is safe, and does not depend on how the text is split into writes.
func FuzzEscape(f *testing.F) {
	f.Add([]byte("\x1b[2J漢\r\n\r\xff\u009b\u202e"), uint8(1))
	f.Add([]byte("\xe6\xbc"), uint8(2))
	f.Add([]byte("\x1b[1;31mred\x1b[>4m\x1b[0"), uint8(3))
	colour := regexp.MustCompile(`\x1b\[[0-9:;]*m`)
	f.Fuzz(func(t *testing.T, text []byte, step uint8) {
		for _, colours := range []bool{false, true} {
			shown := escapeInSteps(t, text, int(step%7)+1, colours)
			if whole := escapeInSteps(t, text, len(text)+1, colours); whole != shown {
				t.Fatalf("%q in pieces is %q, as a whole %q", text, shown, whole)
			}
			if !utf8.ValidString(shown) {
				t.Fatalf("%q is shown as invalid %q", text, shown)
			}
			if colours {
				shown = colour.ReplaceAllString(shown, "")
			}
			for _, r := range strings.ReplaceAll(shown, "\r\n", "\n") {
				if r != '\n' && r != '\t' && (r < 0x20 || r >= 0x7f && r < 0xa0 || reorders(r)) {
					t.Fatalf("%q is shown with %U", text, r)
				}
			}
		}
	})
}

// escapeInSteps writes text to an escaper, step bytes at a time.
func escapeInSteps(t *testing.T, text []byte, step int, colours bool) string {
	t.Helper()
	var out strings.Builder
	e := &escaper{to: &out, colours: colours}
	for rest := text; len(rest) > 0; {
		n := min(len(rest), step)
		if wrote, err := e.Write(rest[:n]); wrote != n || err != nil || len(e.pending) > maxColour {
			t.Fatal(wrote, err, len(e.pending))
		}
		rest = rest[n:]
	}
	if err := e.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// An escaped JSON document has the same meaning.
func TestEscapedJSONIsTheSame(t *testing.T) {
	var all strings.Builder
	for r := rune(0); r < 0x2100; r++ {
		all.WriteRune(r)
	}
	doc, err := json.Marshal(all.String())
	if err != nil {
		t.Fatal(err)
	}
	var back string
	if err := json.Unmarshal([]byte(EscapeText(string(doc))), &back); err != nil || back != all.String() {
		t.Errorf("%v", err)
	}
}

// An untrusted name with a newline can not forge a line of sandbox-run.
func TestIndentText(t *testing.T) {
	got := indentText("a\nsandbox-run: ok\x1b")
	if strings.Contains(got, "\nsandbox-run") || !strings.HasPrefix(got, "a\n ") || strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
}

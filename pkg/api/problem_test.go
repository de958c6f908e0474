package api

import "testing"

// Flags become fields, but not inside a name that the client chose.
func TestFieldNames(t *testing.T) {
	for text, want := range map[string]string{
		"leave out --lang":              "leave out language",
		"--entry main.py, or --lang go": "entry main.py, or language go",
		"`--memory`":                    "`memory`",
		"entry my--test.py":             "entry my--test.py",
		`there is no file "--timeout"`:  `there is no file "--timeout"`,
		"--no-such-flag":                "--no-such-flag",
	} {
		if got := fieldNames(text); got != want {
			t.Errorf("%q: %q instead of %q", text, got, want)
		}
	}
}

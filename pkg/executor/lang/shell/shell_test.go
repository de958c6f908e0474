package shell

import (
	"slices"
	"testing"
)

func TestSuspectFile(t *testing.T) {
	for text, file := range map[string]string{
		"/workspace/main.sh: line 3: syntax error near unexpected token `fi'\n":              "/workspace/main.sh",
		"./lib.sh: line 2: syntax error: unexpected end of file\n":                           "/workspace/lib.sh",
		"/workspace/main.sh: 3: Syntax error: \"fi\" unexpected\n":                           "/workspace/main.sh",
		"/workspace/main.sh:3: parse error near `fi'\n":                                      "/workspace/main.sh",
		"noise\n/workspace/main.sh: line 1: unexpected EOF while looking for matching `''\n": "/workspace/main.sh",
		"/workspace/main.sh: line 1: x: command not found\n":                                 "",
		": syntax error": "",
		"":               "",
	} {
		got := suspectFile([]byte(text), "/workspace")
		if file == "" && got != nil || file != "" && !slices.Equal(got, []string{file}) {
			t.Errorf("%q: %q instead of %q", text, got, file)
		}
	}
}

// FuzzSuspectFile: whatever a program prints, reading it does no harm.
func FuzzSuspectFile(f *testing.F) {
	f.Add([]byte(": syntax error"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got := suspectFile(text, "/w"); len(got) > 2 {
			t.Errorf("%q", got)
		}
	})
}

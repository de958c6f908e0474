package python

import (
	"slices"
	"testing"
)

func TestSuspectFile(t *testing.T) {
	for text, file := range map[string]string{
		"  File \"/workspace/main.py\", line 2\n    x = =\n        ^\nSyntaxError: invalid syntax\n": "/workspace/main.py",
		"Traceback (most recent call last):\n  File \"/workspace/main.py\", line 1, in <module>\n    import ret\n" +
			"  File \"/workspace/ret.py\", line 1\n    return 1\nSyntaxError: 'return' outside function\n": "/workspace/ret.py",
		"SyntaxError: Non-UTF-8 code starting with '\\xff' in file /workspace/a b.py on line 2, " +
			"but no encoding declared; see x\n": "/workspace/a b.py",
		"  File \"main.py\", line 1\nTabError: inconsistent\n": "/workspace/main.py",
		// no file of the program
		"  File \"<string>\", line 1\n    1 1\nSyntaxError: invalid syntax\n": "/workspace/<string>",
		"Traceback (most recent call last):\n  File \"/workspace/main.py\", line 1, in <module>\n    raise SyntaxError('mine')\n" +
			"SyntaxError: mine\n": "",
		"Traceback (most recent call last):\nValueError: SyntaxError\n": "",
		"":              "",
		"SyntaxError:":  "",
		"SyntaxError: ": "",
	} {
		got := suspectFile([]byte(text), "/workspace")
		if file == "" && got != nil || file != "" && !slices.Equal(got, []string{file}) {
			t.Errorf("%q: %q instead of %q", text, got, file)
		}
	}
}

// FuzzSuspectFile: whatever a program prints, reading it does no harm.
func FuzzSuspectFile(f *testing.F) {
	f.Add([]byte("  File \"x\", line 1\nSyntaxError: y"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got := suspectFile(text, "/w"); len(got) > 2 {
			t.Errorf("%q", got)
		}
	})
}

func TestIsModule(t *testing.T) {
	for name, is := range map[string]bool{"a": true, "a.b_1": true, "größe": true, "": false, "a..b": false, "1a": false, "a-b": false,
		"a b": false, ".a": false} {
		if isModule(name) != is {
			t.Errorf("%q: %v", name, !is)
		}
	}
}

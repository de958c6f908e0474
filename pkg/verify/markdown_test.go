package verify

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestScan(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string // line, info and text of each fence
		err  string
	}{
		"none":            {"text\n\n    ```indented code\n", "", ""},
		"two":             {"# a\n```python x\nprint(1)\n```\n\n~~~ output\n1\n~~~\n", `2 "python x" "print(1)\n";6 "output" "1\n";`, ""},
		"no last newline": {"```\na\n```", `1 "" "a\n";`, ""},
		"empty":           {"```a\n```\n", `1 "a" "";`, ""},
		"longer fence":    {"````md\n```python\n1\n```\n````\n", `1 "md" "` + "```python\\n1\\n```" + `\n";`, ""},
		"longer close":    {"```a\n1\n`````  \nafter\n", `1 "a" "1\n";`, ""},
		"other mark":      {"~~~a\n```\n~~~\n", `1 "a" "` + "```" + `\n";`, ""},
		"info has marks":  {"``` `a` ```\ntext\n", "", ""},
		"tildes may":      {"~~~ a`b\n1\n~~~\n", "1 \"a`b\" \"1\\n\";", ""},
		"two marks":       {"``\na\n``\n", "", ""},
		"CRLF":            {"```a\r\n1\r\n\r\n2\r\n```\r\n", `1 "a" "1\n\n2\n";`, ""},
		"indented":        {"   ```a\n   1\n     2\n 3\n   ```\n", `1 "a" "1\n  2\n3\n";`, ""},
		"list":            {"- item\n\n  ```a\n  1\n\n    2\n  ```\n- ```b\n  3\n  ```\n", `3 "a" "1\n\n  2\n";8 "b" "3\n";`, ""},
		"deep list":       {"1. one\n   - two\n\n     ```a\n     x\n     ```\n", `4 "a" "x\n";`, ""},
		"list is over":    {"- item\n\ntext\n\n     ```a\n", "", ""},
		"tab":             {"1.\tone\n\n\t```a\n\tx\n\t```\n", `3 "a" "x\n";`, ""},
		"rule":            {"- - -\n```a\nx\n```\n", `2 "a" "x\n";`, ""},
		"comment":         {"<!--\n```a\n1\n```\n-->\n<!-- one line -->\n```b\n```\n", `7 "b" "";`, ""},
		"quote":           {"> ```a\n> 1\n> ```\n", "", ""},
		"not closed":      {"a\n```a\n1\n", "", "line 2: the fence is not closed"},
		"shorter close":   {"````a\n1\n```\n", "", "line 1: the fence is not closed"},
		"left the list":   {"- ```a\ntext\n  ```\n", "", "line 1: the fence is not closed in its list item, which ends at line 2"},
		"NUL":             {"```a\n\x00\n```\n", `1 "a" "\x00\n";`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			fences, err := Scan(c.text)
			got := ""
			for _, f := range fences {
				got += fmt.Sprintf("%d %q %q;", f.Line, f.Info, f.Text)
			}
			if said := fmt.Sprint(err); got != c.want && c.err == "" || c.err != "" && said != c.err || c.err == "" && err != nil {
				t.Errorf("got %s, %v\nwant %s, %s", got, err, c.want, c.err)
			}
		})
	}
}

// A fence that is rendered with its own content is the same text, and with any content it is read as that content.
func TestRender(t *testing.T) {
	for _, text := range []string{"```a\n1\n```", "- x\n\n  ~~~~ output b\n  1\n\n  2\n  ~~~~", "```a\r\n1\r\n```"} {
		for _, content := range []string{"", "1\n", "a\n\n  b\n", "```\n", "  ````` \nx\n~~~~\n", "<!--\n"} {
			for _, after := range []string{"", "\n", "\r\n", "\nafter\n"} {
				whole := text + after
				fences, err := Scan(whole)
				if err != nil || len(fences) != 1 {
					t.Fatal(fences, err)
				}
				f := fences[0]
				if same := whole[:f.start] + f.render(f.Text) + whole[f.end:]; strings.ReplaceAll(same, " output b", "output b") != strings.ReplaceAll(whole, " output b", "output b") {
					t.Errorf("%q became %q", whole, same)
				}
				next, err := Scan(whole[:f.start] + f.render(content) + whole[f.end:])
				if err != nil || len(next) != 1 || next[0].Text != content {
					t.Errorf("%q with %q: %+v %v", whole, content, next, err)
				}
			}
		}
	}
}

func isTestLanguage(name string) bool { return name == "python" || name == "shell" }

func TestReadBlocks(t *testing.T) {
	block := func(info string) string { return "```" + info + "\nx\n```\n" }
	for name, c := range map[string]struct{ text, want, err string }{
		"plain":     {block("python") + block("output"), `python output 4;`, ""},
		"text":      {block("") + block("json file") + block("text stdin"), "", ""},
		"words":     {block("python skip title=a,fail=3"), "python skip fail=3;", ""},
		"commas":    {block("python,fail"), "python fail=any;", ""},
		"braces":    {block("{.python timeout=2s}"), "python timeout=2s;", ""},
		"marked":    {block("python") + "text\n" + block("text output"), "python output 5;", ""},
		"file":      {block("text file=a/b.txt") + block("python stdin=a/b.txt"), `python stdin="x\n";`, ""},
		"quoted":    {block(`text file="a b"`) + block(`python stdin="a b"`), `python stdin="x\n";`, ""},
		"continue":  {block("python") + block("shell") + block("python continue"), "python session=line 1;shell;python session=line 1;", ""},
		"session":   {block("python session=a") + block("python session=a"), "python session=a;python session=a;", ""},
		"verdict":   {block("python fail=time_limit"), "python fail=time_limit;", ""},
		"output":    {block("output"), "", "line 1: there is no code block to which this output belongs"},
		"outputs":   {block("python") + block("output") + block("output"), "", "line 7: there is no code block to which this output belongs"},
		"between":   {block("python") + block("json") + block("output"), "", "line 7: there is no code block"},
		"typo":      {block("python skipp"), "", `line 1: unknown attribute "skipp"; is it skip?`},
		"twice":     {block("python skip skip"), "", "line 1: the attribute skip is there twice"},
		"no value":  {block("python timeout"), "", "line 1: the attribute timeout has no value"},
		"empty":     {block("python fail="), "", "line 1: the attribute fail has no value"},
		"value":     {block("python skip=1"), "", "line 1: the attribute skip takes no value"},
		"timeout":   {block("python timeout=0"), "", "line 1: timeout=0 is no duration"},
		"fail":      {block("python fail=0"), "", "line 1: fail=0 is neither"},
		"ok":        {block("python fail=ok"), "", "line 1: fail=ok is neither"},
		"no stdin":  {block("python stdin=a"), "", "line 1: stdin=a: no block before this one has file=a"},
		"nothing":   {block("python continue"), "", "line 1: there is no block in python to continue"},
		"both":      {block("python continue session=a"), "", "line 1: continue and session=a"},
		"escapes":   {block("text file=../a"), "", "line 1: "},
		"absolute":  {block("text file=/etc/passwd"), "", "line 1: "},
		"quotation": {block(`python stdin="a`), "", "line 1: a quotation mark is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			blocks, err := readBlocks(c.text, isTestLanguage)
			got := ""
			for _, b := range blocks {
				got += b.Language
				if b.Skip {
					got += " skip"
				}
				if b.Fail != "" {
					got += " fail=" + b.Fail
				}
				if b.Timeout > 0 {
					got += fmt.Sprintf(" timeout=%v", b.Timeout)
				}
				if b.Session != "" {
					got += " session=" + b.Session
				}
				if b.Stdin != "" {
					got += fmt.Sprintf(" stdin=%q", b.Stdin)
				}
				if b.Output != nil {
					got += fmt.Sprintf(" output %d", b.Output.Line)
				}
				got += ";"
			}
			at := new(ScanError)
			switch {
			case c.err == "" && (err != nil || got != c.want):
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			case c.err != "" && (!errors.As(err, &at) || !strings.HasPrefix(err.Error(), c.err)):
				t.Errorf("got %v, want %s", err, c.err)
			}
		})
	}
}

func FuzzScan(f *testing.F) {
	f.Add("- a\n\n  ```python x=\"\n  1\n  ```\n\n  ~~~output\n  ~~~\n")
	f.Fuzz(func(t *testing.T, text string) {
		fences, err := Scan(text)
		if err != nil {
			return
		}
		at := 0
		for _, b := range fences {
			if b.start < at || b.end < b.start || b.end > len(text) {
				t.Fatalf("%+v", b)
			}
			at = b.end
		}
		_, _ = readBlocks(text, isTestLanguage)
	})
}

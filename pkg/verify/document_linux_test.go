package verify

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// newEngine returns an executor on the native backend. Nothing is left of it after the test.
func newEngine(t testing.TB) *executor.Executor {
	t.Helper()
	testenv.NeedRoot(t)
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		t.Setenv("SANDBOX_RUN_INIT", filepath.Join(dir, "sandbox-init"))
	}
	dir, err := os.MkdirTemp("/var/tmp", "verify-test-")
	if err != nil {
		t.Fatal(err)
	}
	b, err := native.New(native.Options{CacheDir: filepath.Join(dir, "disks")})
	if err != nil {
		t.Fatal(err)
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if left := m.List(); len(left) > 0 {
			t.Errorf("%d sandboxes are left", len(left))
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return executor.New(m, executor.Options{
		WarmDir:    testenv.WarmDir(filepath.Join(dir, "warm")),
		Toolchains: &toolchain.Finder{NoStore: true, Environ: []string{"PATH=/usr/local/go/bin:/usr/bin:/bin", "HOME=" + dir}},
	})
}

// fenced is a block of a document.
func fenced(info, text string) string { return "```" + info + "\n" + text + "\n```\n\n" }

func statuses(r *Report) (text string) {
	for _, c := range r.Checks {
		text += fmt.Sprintf("%d %s;", c.Line, c.Status)
	}
	return text
}

func TestDocuments(t *testing.T) {
	e := newEngine(t)
	for name, c := range map[string]struct {
		text, want string
		said       string // in the first failure
	}{
		"passes":     {fenced("python", "print(1 + 1)") + fenced("output", "2"), "1 passed;", ""},
		"differs":    {fenced("python", "print('a')\nprint('b')") + fenced("output", "a\nc"), "1 failed;", "the output differs from that of line 6:\n--- document\n+++ program\n@@ -1,2 +1,2 @@\n a\n-c\n+b"},
		"spaces":     {fenced("python", "print('a  ')\nprint()") + fenced("output", "a\n\n\n"), "1 passed;", ""},
		"no output":  {fenced("python", "print('a')"), "1 passed;", ""},
		"nothing":    {"no blocks", "", ""},
		"raises":     {fenced("python", "raise ValueError('why')"), "1 failed;", "it ended with the verdict nonzero_exit and exit code 1\n"},
		"fails":      {fenced("python fail", "print('x')\nraise SystemExit(3)") + fenced("output", "x") + fenced("python fail=3", "exit(3)") + fenced("python fail=2", "exit(3)"), "1 passed;10 passed;14 failed;", "and its attribute says fail=2"},
		"succeeds":   {fenced("python fail", "pass"), "1 failed;", "it succeeded, and its attribute fail says that it does not"},
		"hangs":      {fenced("python timeout=1s", "while True: pass") + fenced("python timeout=1s fail=time_limit", "import time\ntime.sleep(100)"), "1 timeout;5 passed;", "the verdict time_limit"},
		"stderr":     {fenced("python fail stderr", "import sys\nprint('no')\nsys.exit('yes')") + fenced("output", "yes"), "1 passed;", ""},
		"files":      {fenced("csv file=in/a.csv", "1,2") + fenced("python stdin=in/a.csv", "print(input())\nprint(open('in/a.csv').read())") + fenced("output", "1,2\n1,2"), "5 passed;", ""},
		"session":    {fenced("python", "x = 20") + fenced("python continue", "x + 1") + fenced("output", "21") + fenced("python", "print('x' in globals())") + fenced("output", "False"), "1 passed;5 passed;13 passed;", ""},
		"two":        {fenced("python session=a", "x = 1") + fenced("python session=b", "x = 2") + fenced("python session=a", "print(x)") + fenced("output", "1"), "1 passed;5 passed;9 passed;", ""},
		"ends":       {fenced("python session=a", "import os\nos._exit(1)") + fenced("python session=a", "1"), "1 failed;6 error;", "verdict"},
		"late file":  {fenced("python session=a", "pass") + fenced("text file=b.txt", "late") + fenced("python session=a", "print(open('b.txt').read())") + fenced("output", "late"), "1 passed;9 passed;", ""},
		"empty":      {fenced("python", "") + fenced("python", "1"), "1 error;5 passed;", "there is no code"},
		"skipped":    {fenced("python skip", "raise"), "1 skipped;", ""},
		"shell":      {fenced("sh", "echo a; echo b >&2") + fenced("output", "a"), "1 passed;", ""},
		"controls":   {fenced("python", `print('\x1b[31mred')`) + fenced("output", "red"), "1 failed;", "it has control characters"},
		"no network": {fenced("python fail", "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)"), "1 passed;", ""},
		"no host":    {fenced("python", "import os\nprint(os.path.exists('/root/.ssh'), os.listdir('.'))") + fenced("output", "False ['main.py']"), "1 passed;", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, err := Documents(t.Context(), e, []Source{{"a.md", c.text}}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, k := range r.Checks {
				if k.Failure != nil && said == "" {
					said = k.Failure.Message
				}
			}
			if got := statuses(r); got != c.want || !strings.Contains(said, c.said) || c.said == "" && said != "" {
				t.Errorf("got %s\nwant %s\nsaid %s\nwant %s", got, c.want, said, c.said)
			}
			if r.Success() == (strings.Contains(c.want, "failed") || strings.Contains(c.want, "timeout") || strings.Contains(c.want, "error")) {
				t.Errorf("success %v", r.Success())
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	e := newEngine(t)
	text := "- item\r\n\r\n  ```python\r\n  print('a')\r\n  print('```')\r\n  ```\r\n\r\n  ``` output\r\n  old\r\n  ```\r\n\r\n" +
		"```python\nprint('same')\n```\n```output\nsame\n```\n```python\nraise ValueError\n```\n```output\nkept\n```\n" +
		"```python\nprint(chr(27))\n```\n```output\nescape\n```"
	r, updates, err := Documents(t.Context(), e, []Source{{"a.md", text}}, Options{})
	if err != nil || len(updates) != 1 {
		t.Fatal(updates, err)
	}
	want := strings.Replace(text, "``` output\r\n  old\r\n  ```\r\n", "````output\r\n  a\r\n  ```\r\n  ````\r\n", 1)
	if got := updates[0].Text; got != want {
		t.Errorf("%s", difference(want, got))
	}
	r.Accept(updates[0])
	if got := statuses(r); got != "3 passed;12 passed;18 failed;24 failed;" {
		t.Error(got)
	}
	// The update is stable: the next call changes nothing.
	_, again, err := Documents(t.Context(), e, []Source{updates[0].Source}, Options{})
	if err != nil || len(again) != 0 {
		t.Errorf("%+v %v", again, err)
	}
}

func TestDocumentErrors(t *testing.T) {
	e := newEngine(t)
	for text, want := range map[string]string{
		"a\n```python\n":                       "a.md:2: the fence is not closed",
		fenced("python wat", "") + "```output": "a.md:5: the fence is not closed",
		fenced("python skp", ""):               `a.md:1: unknown attribute "skp"; is it skip?`,
	} {
		if _, _, err := Documents(t.Context(), e, []Source{{"a.md", text}}, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, _, err := Documents(t.Context(), e, nil, Options{Languages: []string{"klingon"}}); err == nil {
		t.Error("an unknown language is accepted")
	}
	r, _, err := Documents(t.Context(), e, []Source{{"a.md", fenced("sh", "false") + fenced("py", "1")}}, Options{Languages: []string{"python3"}})
	if err != nil || statuses(r) != "5 passed;" {
		t.Errorf("%v %v", r, err)
	}
}

//go:build linux

// Package scripts has tests of the scripts beside it.
package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository is a git work tree that wording.sh checks.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	for _, program := range []string{"bash", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
	r := repository{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	r.commit("Anything that was committed before the rule is left as it is.")
	return r
}

func (r repository) git(args ...string) {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

func (r repository) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r repository) commit(subject string) {
	r.t.Helper()
	r.git("commit", "-q", "--allow-empty", "-m", subject)
}

// check runs wording.sh and fails unless its output has every wanted text; without one, it must succeed silently.
func (r repository) check(want ...string) {
	r.t.Helper()
	out, err := exec.Command("bash", "wording.sh", r.dir).CombinedOutput()
	if (err != nil) != (len(want) > 0) || len(want) == 0 && len(out) > 0 {
		r.t.Errorf("%v, want %q\n%s", err, want, out)
	}
	for _, text := range want {
		if !strings.Contains(string(out), text) {
			r.t.Errorf("no %q in\n%s", text, out)
		}
	}
}

func TestWordingWords(t *testing.T) {
	r := newRepository(t)
	bad := "// Some" + "body waits.\n" // in two parts: this file is checked as well
	r.write("a/a.go", "// The caller waits.\npackage a\n")
	r.write("a/account.go", `const passwd = "no`+`body:x:65534:65534::/:/bin/false"`+"\n")
	r.write("a/a_test.go", `var names = []string{"no`+`body"}`+"\n")
	r.write("a/a.txt", bad)
	r.check()

	r.write("b/b.go", bad+"package b\n")
	r.write("doc.md", "Who"+"ever reads this.\n")
	r.check("b/b.go:1:", "doc.md:1:")
}

func TestWordingSubjects(t *testing.T) {
	r := newRepository(t)
	r.write("scripts/wording.sh", "#!/bin/bash\n")
	r.git("add", ".")
	r.commit("scripts: check the wording")
	r.commit("pool, api: refill after the response is written")
	r.commit("x: " + strings.Repeat("ä", 69))
	r.check()

	long := "x: " + strings.Repeat("a", 70)
	bad := map[string]string{long: "72 characters", "pool: Refill": "lower case", "pool: refill.": "full stop", "no area": "lower case"}
	for subject := range bad {
		r.commit(subject)
	}
	var want []string
	for subject, reason := range bad {
		want = append(want, reason, ": "+subject+"\n")
	}
	r.check(want...)

	r.git("update-ref", "refs/remotes/origin/main", "HEAD") // landed commits are not checked
	r.check()
	r.commit("Not good")
	r.check(": Not good\n")
}

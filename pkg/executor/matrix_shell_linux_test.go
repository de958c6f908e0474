package executor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/shell"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestShell(t *testing.T) {
	runRows(t, "shell", []row{
		{name: "bash by default", req: Request{Code: "a=(1 2 3); echo ${#a[@]} ${BASH_VERSION:+bash}"},
			want: want{stdout: "3 bash\n", silent: true}},
		{name: "by name", req: Request{Language: "sh", Code: "echo ${BASH_VERSION:-not bash}"}, want: want{has: []string{""}},
			more: func(t *testing.T, r *Result) {
				// What sh is, is the machine's.
				bare, err := exec.Command("/bin/sh", "-c", "echo ${BASH_VERSION:-not bash}").Output()
				if err != nil || string(bare) != string(r.Stdout.Bytes()) {
					t.Errorf("%q instead of %q (%v)", r.Stdout.Bytes(), bare, err)
				}
			}},
		{name: "by extension", req: Request{Files: tree("x.bash", "echo $0 ${BASH_VERSION:+bash}")},
			want: want{stdout: "/workspace/x.bash bash\n"}},
		{name: "by shebang", req: Request{Files: tree("tool", "#!/bin/bash -e\necho ${BASH_VERSION:+bash}")}, want: want{stdout: "bash\n"}},
		{name: "several files",
			req: Request{Files: append(tree("main.sh", "source ./lib.sh; greet; ./tool.sh", "lib.sh", "greet() { echo lib; }"),
				File{Path: "tool.sh", Mode: 0o755, Data: []byte("#!/bin/sh\necho tool\n")})}, want: want{stdout: "lib\ntool\n"}},
		{name: "stdin, args, env", req: Request{Code: `read -r l; echo "$l|$1|$#|$GREETING"`, Stdin: strings.NewReader("line\n"),
			Args: []string{"a b", "-x"}, Env: map[string]string{"GREETING": "hi"}}, want: want{stdout: "line|a b|2|hi\n"}},
		{name: "exit code", req: Request{Code: "exit 7"}, want: want{verdict: nonzero, exit: 7}},
		{name: "failing command", req: Request{Code: "set -e\nfalse\necho no"}, want: want{verdict: nonzero}},
		{name: "trace", req: Request{Code: "echo one\nno_such_command\nset -u\necho $nothing\n"},
			want: want{verdict: nonzero, exit: 1, stdout: "one\n",
				said: []string{"/workspace/main.sh: line 2: no_such_command: command not found",
					"/workspace/main.sh: line 4: nothing: unbound variable"}}},
		{name: "syntax error", req: Request{Code: "echo 1\nif true; then\nfi\n"},
			want: want{verdict: noSyntax, said: []string{"/workspace/main.sh: line 3: syntax error"}}},
		{name: "syntax error of sh", req: Request{Language: "sh", Code: "if true; then\nfi\n"},
			want: want{verdict: noSyntax, said: []string{"/workspace/main.sh: "}}},
		{name: "unclosed quote", req: Request{Code: "echo 'abc\n"}, want: want{verdict: noSyntax}},
		{name: "syntax error in another file", req: Request{Files: tree("main.sh", "set -e\n. ./lib.sh", "lib.sh", "case x in\n")},
			want: want{verdict: noSyntax, said: []string{"lib.sh: line"}}},
		{name: "syntax error of what it evaluates", req: Request{Code: "eval 'if then'"}, want: want{verdict: nonzero, exit: 2}},
		{name: "syntax error it speaks of", req: Request{Code: "echo \"$0: line 1: syntax error\" >&2; exit 1"}, want: want{verdict: nonzero}},
		{name: "files", req: Request{Code: "mkdir out; tr a-z A-Z <in.txt >out/r.txt", Inputs: tree("in.txt", "text"),
			Outputs: sandbox.Selection{Patterns: []string{"out/**"}}}, want: want{files: map[string]string{"out/r.txt": "TEXT"}}},
		{name: "system files are read-only",
			req: Request{Code: "for f in /usr/bin/x /etc/passwd /bin/sh; do echo x 2>/dev/null >$f && echo wrote $f; done; echo x >/workspace/x " +
				"&& cat /workspace/x; test -r /etc/passwd && echo readable"}, want: want{stdout: "x\nreadable\n"}},
		{name: "children and pipes",
			req: Request{Code: "seq 1 5 | while read x; do echo $((x*x)); done | sort -rn | head -1; (sleep 0.05; echo late) & wait; echo " +
				"$(echo nested)"}, want: want{stdout: "25\nlate\nnested\n"}},
		{name: "Unicode", req: Request{Code: "s='grüße 日本 🎉'; echo \"$s\" ${#s}"}, want: want{stdout: "grüße 日本 🎉 10\n"}},
		{name: "standard programs",
			req:  Request{Code: "printf 'b\\na\\n' | sort | awk '{print NR\":\"$1}' | sed 's/:/=/' ; date -u -d @0 +%Y; echo 'a b' | grep -o b"},
			want: want{stdout: "1=a\n2=b\n1970\nb\n"}},
		{name: "time limit", req: Request{Code: "while :; do :; done", Limits: sandbox.Limits{Wall: ms(500)}},
			want: want{verdict: sandbox.VerdictTimeLimit}},
		{name: "memory limit", req: Request{Code: "x=a; while :; do x=$x$x; done", Limits: sandbox.Limits{Memory: 32 * sandbox.MiB}},
			want: want{verdict: sandbox.VerdictMemoryLimit}},
	})
}

func TestZsh(t *testing.T) {
	if _, err := exec.LookPath("zsh"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("zsh is missing")
		}
		t.Skip("needs zsh: scripts/deps.sh test")
	}
	runRows(t, "zsh", []row{
		{name: "by name", req: Request{Code: "a=(x y z); echo $a[1] ${ZSH_VERSION:+zsh}"}, want: want{stdout: "x zsh\n", silent: true}},
		{name: "by extension", req: Request{Files: tree("x.zsh", "echo ${ZSH_VERSION:+zsh}")}, want: want{stdout: "zsh\n"}},
		{name: "by shebang", req: Request{Files: tree("x.sh", "#!/usr/bin/env zsh\necho ${ZSH_VERSION:+zsh}")}, want: want{stdout: "zsh\n"}},
		{name: "syntax error", req: Request{Code: "echo 1\nfi\n"}, want: want{verdict: noSyntax, said: []string{"main.sh:2: parse error"}}},
		{name: "exit code", req: Request{Code: "exit 7"}, want: want{verdict: nonzero, exit: 7}},
		{name: "restricted", req: Request{Code: "echo *; ls; cat main.sh", Options: LanguageOptions{Commands: []string{"ls"}}},
			want: want{verdict: nonzero, exit: 127, stdout: "main.sh\nmain.sh\n"}},
	})
}

func TestMissingShell(t *testing.T) {
	j := fakeJob(t, Request{Language: "zsh", Code: "x"})
	delete(j.Tool.Programs, "zsh")
	if _, err := newPlan(j, bigMachine); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "zsh") {
		t.Errorf("%v", err)
	}
}

// probeCommands says of each program whether it can be found, by its name and by all paths it may have.
const probeCommands = `for p in ls find grep cat sed python3 sh dash perl env; do
  if type -P $p >/dev/null; then echo "$p: named"; fi
  for d in /usr/local/bin /usr/bin /bin /sbin /usr/sbin; do if test -e $d/$p; then echo "$p: there"; break; fi; done
done`

func TestRestrictedCommands(t *testing.T) {
	restricted := LanguageOptions{Commands: []string{"ls", "find", "grep", "cd"}}
	all := expect(t, Request{Language: "bash", Code: probeCommands}, want{})
	few := expect(t, Request{Language: "bash", Code: probeCommands, Options: restricted},
		want{stdout: "ls: named\nls: there\nfind: named\nfind: there\ngrep: named\ngrep: there\n"})
	for _, p := range []string{"ls", "find", "grep", "cat", "sed", "python3", "sh", "env"} {
		if !strings.Contains(string(all.Stdout.Bytes()), p+": there") {
			t.Errorf("%s is not there without the restriction either: the probe proves nothing", p)
		}
	}
	if few.Isolation.Tier != all.Isolation.Tier {
		t.Errorf("another tier: %s instead of %s", few.Isolation.Tier, all.Isolation.Tier)
	}
	runRows(t, "bash", []row{
		{name: "they work", req: Request{Code: "ls; find . -name '?' -type f; grep -rl needle d; cd d && ls -l b >/dev/null && echo ok",
			Inputs: tree("d/b", "needle", "d/longer", "hay"), Options: restricted},
			want: want{stdout: "d\nmain.sh\n./d/b\nd/b\nok\n", silent: true}},
		{name: "others are not found", req: Request{Code: "cat main.sh", Options: restricted},
			want: want{verdict: nonzero, exit: 127, said: []string{"cat: command not found"}}},
		{name: "nor by their paths", req: Request{Code: "/usr/bin/cat main.sh || /bin/cat main.sh", Options: restricted},
			want: want{verdict: nonzero, exit: 127, said: []string{"No such file or directory"}}},
		{name: "nor by the loader",
			req: Request{Code: "for l in /lib64/ld-linux*.so* /lib/ld-*.so*; do test -e $l && $l /usr/bin/cat main.sh; done; exit 9",
				Options: restricted}, want: want{verdict: nonzero, exit: 9}},
		{name: "nor from the programs that are", req: Request{Code: "find . -name main.sh -exec cat {} ';'; exit 3", Options: restricted},
			want: want{verdict: nonzero, exit: 3, said: []string{"cat"}}},
		{name: "what it brings along is its own", req: Request{Files: tree("main.sh", "cp x y"), Options: restricted},
			want: want{verdict: nonzero, exit: 127}},
		{name: "syntax error", req: Request{Code: "if fi", Options: restricted}, want: want{verdict: noSyntax}},
		{name: "only the shell", req: Request{Code: "echo *; ls", Options: LanguageOptions{Commands: []string{"cd"}}},
			want: want{verdict: nonzero, exit: 127, stdout: "main.sh\n"}},
		{name: "through links", req: Request{Code: "awk 'BEGIN {print 6*7}'", Options: LanguageOptions{Commands: []string{"awk"}}},
			want: want{stdout: "42\n"}},
		{name: "sh", req: Request{Language: "sh", Code: "ls; cat main.sh", Options: LanguageOptions{Commands: []string{"ls"}}},
			want: want{verdict: nonzero, exit: 127, stdout: "main.sh\n"}},
		{name: "Unicode", req: Request{Code: "s='grüße 日本'; echo \"$s\" ${#s}; ls", Files: nil, Inputs: named("ü"), Options: restricted},
			want: want{stdout: "grüße 日本 8\nmain.sh\nü\n", silent: true}},
		{name: "unrestricted control", req: Request{Code: "cat main.sh && /bin/cat main.sh >/dev/null"},
			want: want{stdout: "cat main.sh && /bin/cat main.sh >/dev/null"}},
	})
	for name, commands := range map[string][]string{
		"unknown":             {"ls", "no-such-program"},
		"path":                {"/usr/bin/ls"},
		"empty":               {""},
		"up":                  {".."},
		"of another language": {slices.Concat(scriptIn(t, "python"), []string{"no-such-script"})[0]},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := realEngine(t).Execute(t.Context(), Request{Language: "bash", Code: "ls", Options: LanguageOptions{Commands: commands}})
			if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "commands") {
				t.Errorf("%v", err)
			}
		})
	}
}

// scriptIn is the name of a script that the machine has in a language.
func scriptIn(t *testing.T, language string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob("/usr/bin/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err == nil && strings.Contains(File{Data: data}.Interpreter(), language) {
			return append(names, filepath.Base(p))
		}
	}
	return names
}

// A script among the commands works by its shell, which is then there as well.
func TestRestrictedScript(t *testing.T) {
	names := scriptIn(t, "sh")
	if len(names) == 0 {
		t.Fatal("this machine has no script of a shell in /usr/bin")
	}
	expect(t, Request{Language: "bash", Code: "type -P " + names[0] + " >/dev/null && test -x /bin/sh && echo both",
		Options: LanguageOptions{Commands: []string{names[0]}}}, want{stdout: "both\n"})
}

// One file that is many programs is shown under the names that were asked for, and not under its own.
func TestRestrictedMultiCall(t *testing.T) {
	realEngine(t)
	const busybox = "/usr/bin/busybox"
	if _, err := os.Stat(busybox); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs busybox: scripts/deps.sh test")
	}
	dir := filepath.Join(shared.dir, "bin")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink(busybox, filepath.Join(dir, "uname")),
		os.Symlink(busybox, filepath.Join(dir, "nproc"))); err != nil {
		t.Fatal(err)
	}
	usual := shell.CommandDirs
	t.Cleanup(func() { shell.CommandDirs = usual })
	shell.CommandDirs = append([]string{dir}, usual...)
	r := expect(t,
		Request{Language: "bash", Code: "PATH=" + dir + "; uname -s; for p in " + busybox + " " + dir +
			"/nproc; do test -e $p && echo $p is there; done; exit 0", Options: LanguageOptions{Commands: []string{"uname"}}},
		want{stdout: "Linux\n"})
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "busybox") {
		t.Errorf("notes are %q", r.Notes)
	}
	expect(t, Request{Language: "bash", Code: "test -e " + busybox + " && echo there"}, want{stdout: "there\n"}) // without the restriction
}

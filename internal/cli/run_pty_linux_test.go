package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/app"
)

// colours lets the commands of the screen use colour.
func (s *screen) colours() *screen {
	s.env = []string{"TERM=xterm"}
	return s
}

// On a terminal a run prints a header, both streams as one or in different colours, and a summary.
func TestRunOnTerminal(t *testing.T) {
	needRoot(t)
	const both = `import sys; print("out"); print("err", file=sys.stderr)`
	for name, test := range map[string]struct {
		args []string
		code int
		want []string
		not  []string
	}{
		"ok": {[]string{"-l", "python", "-c", both}, 0,
			[]string{"\x1b[2mpython 3.", " · tier container (native)\x1b[0m\r\n", "out\r\nerr\r\n", "sandbox-run: \x1b[32mok\x1b[0m  ",
				"exit 0", "wall ", "cpu ", "memory "},
			[]string{"why:", "tier container (native)  "}},
		"apart": {[]string{"--no-merge-output", "-l", "python", "-c", both}, 0, []string{"out\r\n\x1b[31merr"}, nil},
		"no colour": {[]string{"--color", "never", "-l", "python", "-c", both}, 0, []string{"python 3.", "out\r\nerr\r\nsandbox-run: ok "},
			[]string{"\x1b[0", "\x1b[1", "\x1b[2", "\x1b[3"}}, // not \x1b[K, which erases a line of progress
		"always": {[]string{"--color", "always", "--no-merge-output", "-l", "python", "-c", both}, 0, []string{"\x1b[31merr"}, nil},
		"raw":    {[]string{"--raw", "-l", "python", "-c", `print("\x1b[1mbold")`}, 0, []string{"\x1b[1mbold"}, nil},
		"escaped": {[]string{"-l", "python", "-c", `import sys; print("\x1b[2J"); print("\x1b]0;t\a", file=sys.stderr)`}, 0,
			[]string{`\x1b[2J`, `\x1b]0;t\x07`}, []string{"\x1b[2J", "\x1b]0"}},
		"coloured": {[]string{"-l", "python", "-c", `import sys; print("\x1b[1;32mgreen\x1b[0m\x1b[2J"); print("\x1b[41mleft red", end="")`}, 0,
			[]string{"\x1b[1;32mgreen\x1b[0m\\x1b[2J\r\n\x1b[41mleft red\x1b[0m\r\nsandbox-run: "}, nil},
		"not coloured": {[]string{"--color", "never", "-l", "python", "-c", `print("\x1b[32mgreen")`}, 0, []string{`\x1b[32mgreen`}, nil},
		"offline": {[]string{"-l", "python", "-c", `import socket; socket.create_connection(("127.0.0.1", 9))`}, 1,
			[]string{"Network is unreachable", "network:\x1b[0m 1 attempt(s) to connect or to send failed: the sandbox has no network",
				"for a loopback of its own: --network localhost"}, nil},
		"quiet": {[]string{"-q", "-l", "python", "-c", both}, 0, []string{"out\r\n"}, []string{"python 3", "sandbox-run:"}},
		"memory": {[]string{"--memory", "64m", "-l", "python", "-c", "x = bytearray(300 << 20)"}, 137,
			[]string{"memory_limit", "why:", "64 MiB of memory (peak ", "--memory 128m"}, nil},
		"syntax": {[]string{"-l", "python", "-c", "print("}, 1,
			[]string{"SyntaxError", "compile_error", "the program does not compile"}, nil},
		"no newline": {[]string{"-l", "python", "-c", `print("abc", end="")`}, 0, []string{"abc\r\nsandbox-run: "}, nil},
		"whole": {[]string{"--no-stream", "-l", "python", "-c", `import sys; print("err", file=sys.stderr); print("out")`}, 0,
			[]string{"(native)\x1b[0m\r\nerr\r\nout\r\n"}, nil},
		"whole and apart": {[]string{"--no-stream", "--no-merge-output", "-l", "python", "-c",
			`import sys; print("err", file=sys.stderr); print("out")`}, 0, []string{"(native)\x1b[0m\r\nout\r\n\x1b[31merr"}, nil},
		"cut": {[]string{"--no-stream", "--output-limit", "10", "-l", "python", "-c", `print("a" * 5 + "b" * 20 + "c" * 4)`}, 0,
			[]string{"aaaaa\r\n… 20 bytes are left out here …\r\ncccc\r\n", "to see the rest: --output-limit, --spill"}, nil},
		"refused": {[]string{"-l", "python", "-c", `import os; os.system("chroot /usr true")`}, 0, []string{"refused:", "chroot ×1"}, nil},
		"json": {[]string{"--json", "-l", "python", "-c", both}, 0,
			[]string{"{\r\n  \"success\": true,"}, []string{"tier container (", "sandbox-run:"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, shown := newScreen(t).colours().run(test.args...)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, w := range test.want {
				if !strings.Contains(shown, w) {
					t.Errorf("%q is not in\n%q", w, shown)
				}
			}
			for _, w := range test.not {
				if strings.Contains(shown, w) {
					t.Errorf("%q is in\n%q", w, shown)
				}
			}
		})
	}
}

// The summary names the files that were copied out, and those that were not.
func TestRunShowsFiles(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	_, shown := newScreen(t).run("--out", "*.txt:"+dir, "--out", "p:"+dir, "-l", "python", "-c",
		`import os; open("a.txt", "w").write("abc"); os.mkfifo("p")`)
	if !strings.Contains(shown, "wrote: "+filepath.Join(dir, "a.txt")+" (3 B)") || !strings.Contains(shown, "not taken: p: ") {
		t.Error(shown)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(text) != "abc" {
		t.Error(text, err)
	}
}

// The name of a file can not forge a line of sandbox-run.
func TestRunShowsOneLinePerFile(t *testing.T) {
	needRoot(t)
	_, shown := newScreen(t).run("--out", "*:"+t.TempDir(), "-l", "python", "-c",
		`import os; open("a\nsandbox-run: forged", "w"); os.mkfifo("b\nsandbox-run: forged")`)
	if strings.Contains(shown, "\nsandbox-run: forged") || strings.Count(shown, `\nsandbox-run: forged`) != 2 {
		t.Error(shown)
	}
}

// Typed input reaches the program, and Ctrl-C sandbox-run.
func TestRunInput(t *testing.T) {
	needRoot(t)
	s := newScreen(t)
	cmd := s.start("-l", "python", "-c", `print("hello", input("name? ")); print("ready", flush=True); import time; time.sleep(60)`)
	s.waitFor("name? ")
	s.typeIn("bob\r")
	s.waitFor("hello bob")
	s.waitFor("ready")
	s.typeIn("\x03")
	if code := exitCode(t, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d", code)
	}
	s.waitFor("\nsandbox-run: cancelled ")
	s.waitFor("cancelled by Ctrl-C")
}

// With --tty the program has a terminal.
func TestRunTTY(t *testing.T) {
	needRoot(t)
	s := newScreen(t)
	cmd := s.start("run", "-t", "-l", "python", "-c",
		`import os, sys; print(sys.stdin.isatty(), sys.stdout.isatty(), os.get_terminal_size()); print("got", input())`)
	s.waitFor("True True os.terminal_size(columns=100, lines=30)")
	s.waitFor(" · tier container (native)\r\nTrue") // the header, before the terminal is raw
	s.typeIn("hello\r")
	s.waitFor("got hello")
	if code := exitCode(t, cmd.Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Code is read from a terminal until Ctrl-D, and the command says so.
func TestRunTypedCode(t *testing.T) {
	needRoot(t)
	s := newScreen(t)
	cmd := s.start("-l", "python")
	s.waitFor("sandbox-run: reading code from the terminal; end with Ctrl-D\r\n")
	s.typeIn("print(6 * 7)\r\x04")
	s.waitFor("\n42\r\n")
	if code := exitCode(t, cmd.Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A bash without the bash-completion package completes commands, flags, their values, and the names of templates, workspaces and images.
func TestCompletionInBash(t *testing.T) {
	needRoot(t)
	images, err := preparedImages()
	if err != nil {
		t.Fatal(err)
	}
	s := newScreen(t)
	dir := filepath.Dir(binary(t))
	s.env = append(s.env, "TERM=dumb",
		"PATH="+dir+":"+os.Getenv("PATH"), "PS1=> ", "XDG_CONFIG_HOME="+t.TempDir(), "XDG_DATA_HOME="+t.TempDir(),
		app.ImagesVariable+"="+images)
	for _, args := range [][]string{
		{"template", "new", "tidy-up", "--lang", "python"}, {"--workspace", "my-files", "-l", "shell", "-c", "true"},
	} {
		cmd := command(t, args...)
		cmd.Env = append(os.Environ(), s.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	bash := s.startAs("/bin/bash", "--norc", "--noprofile", "-i")
	s.waitFor("> ")
	s.typeIn("source <(sandbox-run completion bash); echo sour''ced\r")
	s.waitFor("sourced\r\n")
	for i, test := range [][2]string{
		{"ru", "run "}, {"--lang pyt", "--lang python "}, {"run --lang=pyt", "run --lang=python "},
		{"exec --network loc", "exec --network localhost "}, {"--template tidy", "--template tidy-up "},
		{"template show tidy", "template show tidy-up "}, {"run --workspace my", "run --workspace my-files "},
		{"workspace rm my", "workspace rm my-files "}, {"--image test/b", "--image test/box:latest "},
		{"image rm test/b", "image rm test/box:latest "},
	} {
		s.typeIn("sandbox-run " + test[0] + "\t")
		s.waitFor("> sandbox-run " + test[1])
		// The line becomes the arguments of a command that does nothing. (Bash may hold a Ctrl-C back until the next key.) What is typed before
		// the prompt is lost.
		s.typeIn(fmt.Sprintf("\x01: \x05; echo do''ne%d\r", i))
		s.waitFor(fmt.Sprintf("\ndone%d\r\n> ", i))
	}
	s.typeIn("exit\r")
	if err := bash.Wait(); err != nil {
		t.Error(err)
	}
}

// The line of progress appears after a second, and is removed before other output.
func TestProgress(t *testing.T) {
	s := newScreen(t)
	p := &Progress{To: s.slave}
	p.Start("compiling")
	s.waitFor("| compiling, 1s")
	p.End()
	p.End()
	s.waitFor("1s" + clearLine)
	before := s.text()
	if !strings.HasSuffix(before, clearLine) {
		t.Errorf("the line stays: %q", before)
	}
	p.Start("brief")
	p.End()
	var none *Progress
	none.Start("x")
	none.End()
	if time.Sleep(10 * time.Millisecond); s.text() != before {
		t.Errorf("something brief was shown: %q", s.text())
	}
}

// The line of progress is cut to the width of the terminal: clearLine does not remove a line that is wrapped.
func TestProgressInNarrowTerminal(t *testing.T) {
	s := newScreen(t)
	s.resize(10, 12)
	p := &Progress{To: s.slave}
	p.Start("installing packages")
	s.waitFor("/ ")
	p.End()
	s.waitFor(" installin" + clearLine)
	if text := s.text(); strings.Contains(text, "installing") {
		t.Errorf("%q", text)
	}
}

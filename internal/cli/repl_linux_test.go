package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// window is a terminal of tmux with a command in it: what it shows is what a person sees.
type window struct {
	*testing.T
	socket string
}

const (
	windowWidth  = 80
	windowHeight = 50
)

// newWindow starts sandbox-run in a window of its own.
func newWindow(t *testing.T, args ...string) *window {
	t.Helper()
	needRoot(t)
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("needs tmux")
	}
	w := &window{t, filepath.Join(t.TempDir(), "tmux")}
	w.tmux(append([]string{
		"new-session", "-d", "-x", strconv.Itoa(windowWidth), "-y", strconv.Itoa(windowHeight), "env", "NO_COLOR=1",
		"XDG_STATE_HOME=" + t.TempDir(), "sh", "-c", `set -m; "$0" "$@"; echo "exit code $?"; exec sleep 1d`, filepath.Join(binDir, CommandName),
	}, args...)...)
	t.Cleanup(func() { w.tmux("kill-server") })
	return w
}

func (w *window) tmux(args ...string) string {
	w.Helper()
	cmd := exec.Command("tmux", append([]string{"-u", "-S", w.socket, "-f", "/dev/null"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm")
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// shown is the text of the window without the empty lines below it.
func (w *window) shown() string {
	return strings.TrimRight(w.tmux("capture-pane", "-p"), "\n") + "\n"
}

// waitFor waits until the window ends with a text.
func (w *window) waitFor(end string) {
	w.Helper()
	w.eventually(fmt.Sprintf("ends with %q", end), func(now string) bool { return strings.HasSuffix(strings.TrimRight(now, " \n"), end) })
}

// eventually waits until what the window shows is right.
func (w *window) eventually(what string, right func(now string) bool) {
	w.Helper()
	for deadline := time.Now().Add(testTimeout); !right(w.shown()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("the window never %s:\n%s", what, w.shown())
		}
	}
}

// keys types keys by their names in tmux, and text literally.
func (w *window) keys(names ...string) {
	w.Helper()
	for _, name := range names {
		w.tmux("send-keys", name)
	}
}

// enter types a line and waits for the end of what follows.
func (w *window) enter(line, end string) {
	w.Helper()
	before := w.shown()
	if line != "" {
		w.tmux("send-keys", "-l", line)
		w.eventually("shows what is typed", func(now string) bool { return now != before }) // else it may end so from before
	}
	w.keys("Enter")
	w.waitFor(end)
}

// figures are what differs from run to run.
var figures = regexp.MustCompile(`[0-9.]+(ns|µs|ms|s)  memory [0-9.]+ [KM]iB|python 3[0-9.]+`)

// compare compares the window with a golden file; -update writes it.
func (w *window) compare(name string) {
	w.Helper()
	got := figures.ReplaceAllString(w.shown(), "<FIGURES>")
	golden := filepath.Join("testdata", "screen", name+".txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			w.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(want, []byte(got)) {
		w.Errorf("the window is not %s (%v; go test -update writes it):\n%s", golden, err, got)
	}
}

const prompt = "python>"

// A person defines a function over several lines, completes a name, interrupts a loop, answers a question, and leaves.
func TestReplOnTerminal(t *testing.T) {
	w := newWindow(t, "repl")
	w.waitFor(prompt)
	w.enter("def greet(name):", "def greet(name):") // the indent follows
	w.enter(`return "héllo " + name`, `+ name`)
	w.enter("", "MiB\n"+prompt)
	w.enter(`greet("you")`, "MiB\n"+prompt)
	w.enter("import os; first = 1; firmly = 2", "MiB\n"+prompt)
	w.tmux("send-keys", "-l", "fir")
	w.keys("Tab")
	w.waitFor("firmly  first")
	w.keys("Tab", "Enter")
	w.waitFor("MiB\n" + prompt)
	w.tmux("send-keys", "-l", "os.path.joi")
	w.keys("Tab")
	w.waitFor("os.path.join")
	w.keys("C-c")
	w.waitFor("\n" + prompt)
	w.enter(`while True: print("round") or __import__("time").sleep(1e6)`, "\nround")
	w.keys("C-c")
	w.waitFor("MiB\n" + prompt)
	w.enter(`input("name? ")`, "\nname?") // on a line of its own: not while it is typed
	w.enter("Bob", "MiB\n"+prompt)
	w.enter(`__import__("getpass").getpass()`, "Password:")
	w.keys("secret", "Enter") // without echo
	w.waitFor("MiB\n" + prompt)
	w.keys("Up", "Up", "Up", "Up", "Up", "Up", "Up")
	w.waitFor(`+ name`)
	w.keys("C-c")
	w.waitFor("\n" + prompt)
	w.keys("C-d")
	w.waitFor("exit code 0")
	w.compare("repl")
}

// What a cell prints can not control the terminal, a cell that is ended by a limit says so, and commands follow it.
func TestReplHostileOutput(t *testing.T) {
	w := newWindow(t, "repl", "--memory", "64m")
	w.waitFor(prompt)
	w.enter(`print("\x1b[2J\x1b]0;title\a")`, "MiB\n"+prompt)
	w.enter(`"\x1b[2J" if False else type("T", (), {"__repr__": lambda s: "\x1b[2Jx\u202ey"})()`, "MiB\n"+prompt)
	w.enter(`print(end="no newline")`, "MiB\n"+prompt)
	w.enter(`1/0`, "before the division\n"+prompt)
	w.enter(":nonsense", prompt)
	w.enter("x = 5; open('f.txt', 'w').write('abc')", "MiB\n"+prompt)
	w.enter(":vars", prompt)
	w.enter(":files", prompt)
	w.enter(":restart", "\n"+prompt+" :restart\n"+prompt)
	w.enter(":vars", "there are no variables\n"+prompt)
	w.enter("exit(7)", "exit code 7")
	w.compare("repl_hostile")
}

// A failed cell has the cause and the next steps below its own output, and nothing in them controls the terminal.
func TestReplDiagnosis(t *testing.T) {
	w := newWindow(t, "repl")
	w.waitFor(prompt)
	w.enter("import cv2", "try: :deps opencv-python-headless\n"+prompt)
	w.enter("total = 1; totl", "try: probably total is meant\n"+prompt)
	w.enter(`raise NameError("name '\x1b[2Ja\u202eb' is not defined")`, "has the name \\x1b[2Ja\\u202eb\n"+prompt)
	w.compare("repl_diagnosis")
}

// In the last row of the terminal the prompt and the lines above it are as elsewhere.
func TestReplAtTheBottom(t *testing.T) {
	w := newWindow(t, "repl", "--quiet")
	w.tmux("resize-window", "-x", "40", "-y", "12")
	w.waitFor(prompt)
	for i := range 6 {
		w.enter(fmt.Sprintf("print(%d)", i), fmt.Sprintf("\n%d\n%s", i, prompt))
	}
	w.enter("def f(n):", "def f(n):")
	w.enter(`return n * len("a long line, which wraps")`, "wraps\")")
	w.enter("", "wraps\")\n\n"+prompt)
	w.enter("f(2)", "\n48\n"+prompt)
	w.compare("repl_bottom")
}

// SIGTERM ends a REPL and its sandbox, and the terminal is as it was.
func TestReplTerminated(t *testing.T) {
	s := newScreen(t)
	s.env = append(s.env, "XDG_STATE_HOME="+t.TempDir())
	needRoot(t)
	cmd := s.start("repl")
	s.waitFor(prompt + " ")
	if err := cmd.Process.Signal(os.Interrupt); err != nil { // as a signal, at the prompt: nothing is interrupted
		t.Fatal(err)
	}
	s.typeIn("1+1\r")
	s.waitFor("\n2\r\n")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 143 {
		t.Errorf("exit code %d\n%q", code, s.text())
	}
}

package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// screen is a terminal that records everything that is printed to it.
type screen struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	env    []string // added to the environment of commands

	mu    sync.Mutex
	shown bytes.Buffer
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs /dev/ptmx: ", err)
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, master: master, slave: slave, env: []string{"NO_COLOR=1", "TERM=xterm"}}
	s.resize(30, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			s.mu.Lock()
			s.shown.Write(buf[:n])
			s.mu.Unlock()
			if err != nil { // EIO: no process has the other end open
				return
			}
		}
	}()
	t.Cleanup(func() {
		slave.Close()
		<-done
		master.Close()
	})
	return s
}

func (s *screen) resize(rows, cols uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

func (s *screen) waitFor(text string) {
	s.t.Helper()
	for deadline := time.Now().Add(testTimeout); !strings.Contains(s.text(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%q was not shown:\n%q", text, s.text())
		}
	}
}

func (s *screen) typeIn(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.master, keys); err != nil {
		s.t.Fatal(err)
	}
}

// start runs the command in the foreground of the screen.
func (s *screen) start(args ...string) *exec.Cmd {
	s.t.Helper()
	return s.startAs(binary(s.t), args...)
}

// startAs is start with another executable.
func (s *screen) startAs(path string, args ...string) *exec.Cmd {
	s.t.Helper()
	cmd := command(s.t, args...)
	cmd.Path = path
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Env = append(os.Environ(), s.env...)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	return cmd
}

// run starts the command, waits for its end, and returns the exit code and the output.
func (s *screen) run(args ...string) (int, string) {
	s.t.Helper()
	code := exitCode(s.t, s.start(args...).Wait())
	// The end mark arrives after all output of the command.
	fmt.Fprint(s.slave, "\x00end")
	s.waitFor("\x00end")
	return code, strings.TrimSuffix(s.text(), "\x00end")
}

// Threat A6 on a real terminal. As controls, --raw and a pipe pass the same bytes unchanged.
func TestThreatA6Terminal(t *testing.T) {
	needRoot(t)
	const evil = "\x1b[2J\x1b]0;title\a\rgone\xff\n"
	args := []string{"exec", "--", "printf", `\033[2J\033]0;title\007\rgone\377\n`}
	code, shown := newScreen(t).run(args...)
	if want := `\x1b[2J\x1b]0;title\x07\rgone\xff`; code != 0 || !strings.HasPrefix(shown, want+"\r\n") || strings.Contains(shown, "\x1b") {
		t.Errorf("exit code %d, shown %q", code, shown)
	}
	raw := append([]string{"exec", "--raw"}, args[1:]...)
	if _, shown := newScreen(t).run(raw...); !strings.Contains(shown, strings.TrimSuffix(evil, "\n")) {
		t.Errorf("--raw shows %q", shown)
	}
	if out, err := command(t, args...).Output(); err != nil || string(out) != evil {
		t.Errorf("a pipe gets %q, %v", out, err)
	}
}

func TestSummary(t *testing.T) {
	needRoot(t)
	for name, test := range map[string]struct {
		args []string
		code int
		want []string
		not  []string
	}{
		"ok": {[]string{"--", "true"}, 0,
			[]string{"ok ", "exit 0", "wall ", "cpu ", "memory ", "tier container (native)"}, []string{"why:"}},
		"no newline": {[]string{"--", "printf", "abc"}, 0, []string{"abc\r\nsandbox-run: ok "}, nil},
		"failing":    {[]string{"--", "sh", "-c", "exit 3"}, 3, []string{"nonzero_exit ", "exit 3"}, []string{"why:"}},
		"timeout":    {[]string{"--timeout", "200ms", "--", "sleep", "9"}, 124, []string{"time_limit ", "SIGTERM", "why: ", "--timeout"}, nil},
		"signal":     {[]string{"--", "sh", "-c", "kill -SEGV $$"}, 139, []string{"signaled ", "SIGSEGV"}, nil},
		"cut": {[]string{"--output-limit", "1k", "--", "seq", "1000"}, 0,
			[]string{"1000\r\nsandbox-run: ok ", "output_limit: ", "--output-limit"}, nil},
		"refused": {[]string{"--", "sh", "-c", "for i in 1 2 3; do chroot /usr true; done; unshare -U true; true"}, 0,
			[]string{"ok ", "refused: chroot ×3, unshare(CLONE_NEWUSER) ×1\r\n"}, []string{"not counted", "syscall:"}},
		"flooded": {[]string{"--", "sh", "-c", "for i in $(seq 70); do chroot /usr true; done; true"}, 0,
			[]string{"Function not implemented", "refused: chroot ×64; further ones were refused and not counted\r\n"}, nil},
		"quiet": {[]string{"--quiet", "--timeout", "200ms", "--", "sleep", "9"}, 124, nil, []string{"time_limit", "why"}},
		"json":  {[]string{"--json", "--", "true"}, 0, []string{"  \"success\": true,\r\n"}, []string{"why", "tier container ("}},
	} {
		t.Run(name, func(t *testing.T) {
			code, shown := newScreen(t).run(append([]string{"exec"}, test.args...)...)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, w := range test.want {
				if !strings.Contains(shown, w) {
					t.Errorf("%q is not in\n%s", w, shown)
				}
			}
			for _, w := range test.not {
				if strings.Contains(shown, w) {
					t.Errorf("%q is in\n%s", w, shown)
				}
			}
		})
	}
}

// Ctrl-C typed at the terminal reaches the program once, as SIGINT. A program that goes on is ended by the second.
func TestCtrlCTyped(t *testing.T) {
	needRoot(t)
	s := newScreen(t)
	cmd := s.start("exec", "--grace", "1h", "--", "sh", "-c",
		`trap 'echo got INT' INT; trap 'echo got TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
	s.waitFor("ready")
	s.typeIn("\x03")
	s.waitFor("got INT")
	s.waitFor("\nsandbox-run: the program got SIGINT and has 1h0m0s to end; Ctrl-C again ends it now\r\n")
	s.typeIn("\x03")
	if code := exitCode(t, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d", code)
	}
	s.waitFor("SIGKILL")
	s.waitFor("cancelled by Ctrl-C")
	if strings.Contains(s.text(), "got TERM") || strings.Count(s.text(), "got INT") != 1 {
		t.Errorf("the program got another signal: %q", s.text())
	}
}

// The summary begins a line, and no empty line stands before it: after the notice if no second Ctrl-C came, after its echo otherwise.
func TestSummaryAfterCtrlC(t *testing.T) {
	needRoot(t)
	for keys, want := range map[string]string{
		"":     "Ctrl-C again ends it now\r\nsandbox-run: cancelled ",
		"\x03": "Ctrl-C again ends it now\r\n^C\r\nsandbox-run: cancelled ",
	} {
		s := newScreen(t)
		cmd := s.start("exec", "--grace", "2s", "--", "sh", "-c", `trap "" INT TERM; echo ready; while :; do sleep 0.05; done`)
		s.waitFor("ready")
		s.typeIn("\x03")
		s.waitFor("Ctrl-C again ends it now\r\n")
		s.typeIn(keys)
		if code := exitCode(t, cmd.Wait()); code != 130 {
			t.Errorf("exit code %d", code)
		}
		s.waitFor(want)
	}
}

func TestTTY(t *testing.T) {
	needRoot(t)
	s := newScreen(t)
	before, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.start("exec", "-t", "--", "sh", "-c",
		`trap 'echo got INT' INT; trap 'echo size: $(stty size)' WINCH; test -t 0 && test -t 1 && test -t 2 && echo three ttys; stty size
		printf '\033[1mraw\033[0m'; echo ready; read x; echo "read <$x>"; while :; do sleep 0.05; done`)
	s.waitFor("ready")
	for _, want := range []string{"three ttys", "30 100", "\x1b[1mraw\x1b[0m"} {
		if !strings.Contains(s.text(), want) {
			t.Errorf("%q is not in %q", want, s.text())
		}
	}
	during, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil || during.Lflag&(unix.ISIG|unix.ECHO|unix.ICANON) != 0 {
		t.Errorf("our terminal is not raw: %v", err)
	}
	s.typeIn("hello\r")
	s.waitFor("read <hello>")
	s.typeIn("\x03")
	s.waitFor("got INT") // the program gets it, and sandbox-run goes on
	s.resize(40, 120)
	s.waitFor("size: 40 120")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 143 {
		t.Errorf("exit code %d", code)
	}
	after, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal was not restored: %v\n%+v\n%+v", err, before, after)
	}
}

// With --tty, the input may be a pipe: its end is typed as Ctrl-D.
func TestTTYFromPipe(t *testing.T) {
	needRoot(t)
	for _, input := range []string{"one\ntwo\n", "no newline", ""} {
		cmd := command(t, "exec", "-t", "--timeout", "10s", "--", "sh", "-c", "stty -echo; echo ready; cat; echo over")
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.Output()
		if err != nil || !strings.HasSuffix(string(out), "over\r\n") || !strings.Contains(string(out), strings.ReplaceAll(input, "\n", "\r\n")) {
			t.Errorf("%q: %q, %v", input, out, err)
		}
	}
}

func TestDoctorColours(t *testing.T) {
	needRoot(t)
	s := newScreen(t)
	if code, shown := s.run("doctor"); code != 0 || strings.Contains(shown, "\x1b") || !strings.Contains(shown, "ok: the default tier") {
		t.Errorf("exit code %d\n%s", code, shown)
	}
}

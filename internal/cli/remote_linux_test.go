package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// server is a local server of a test.
type server struct {
	t      testing.TB
	socket string
	state  string // its XDG_STATE_HOME
	cmd    *exec.Cmd
	log    string
	ended  chan struct{}
}

// startServerIn starts a server whose socket and log are in dir. The caller stops it.
func startServerIn(t testing.TB, env []string, dir string) (*server, error) {
	s := &server{t: t, socket: filepath.Join(dir, "s", "server.sock"), log: filepath.Join(dir, "server.log"), ended: make(chan struct{})}
	if err := os.MkdirAll(filepath.Dir(s.socket), 0o700); err != nil {
		return nil, err
	}
	out, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s.cmd = exec.Command(binary(t), "serve")
	s.cmd.Env = append(append([]string{}, env...), wire.SocketVariable+"="+s.socket)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait()
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(s.log)
		if bytes.Contains(text, []byte("serving on")) {
			return s, nil
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("it does not serve: %s", text)
		default:
		}
		if time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("it does not begin to serve: %s", text)
		}
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.t.Error("the server did not end")
	}
}

// startLocalServer starts a local server, which all later commands of the test find, with its own audit log.
func startLocalServer(t *testing.T) *server {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	s, err := startServerIn(t, os.Environ(), dir)
	if err != nil {
		t.Fatal(err)
	}
	s.state = filepath.Join(dir, "state")
	t.Cleanup(s.stop)
	t.Setenv(wire.SocketVariable, s.socket)
	return s
}

// runs counts the runs in the audit log: those at the server, and those of commands.
func (s *server) runs() (there, here int) {
	text, _ := os.ReadFile(filepath.Join(s.state, "sandbox-run", "audit.jsonl")) // absent: none
	for line := range bytes.Lines(text) {
		switch {
		case !bytes.Contains(line, []byte(`"kind":"run"`)): // start of the server, refusals
		case bytes.Contains(line, []byte(`"door":"api"`)):
			there++
		case bytes.Contains(line, []byte(`"door":"cli"`)):
			here++
		}
	}
	return there, here
}

// The scripts of runs pass at a server as well.
func TestScriptAtServer(t *testing.T) {
	needRoot(t)
	files, err := filepath.Glob("testdata/script/run_*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	// run_compiled expects the output of a compiler, and TestScript has compiled its programs into the shared cache. Its languages also
	// change the environment digest.
	leftOut, least := []string{"run_compiled.txtar"}, 60
	if !testenv.All() { // TestScript runs them here, and the server's limits and languages have other tests
		leftOut, least = append(leftOut, "run_harness.txtar", "run_limits.txtar"), 40
	}
	files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains(leftOut, filepath.Base(f)) })
	var (
		mu    sync.Mutex
		total int // runs at servers
	)
	t.Cleanup(func() { // after all scripts, which run in parallel
		if !t.Failed() && total < least {
			t.Errorf("only %d runs took place at a server", total)
		}
	})
	testscript.Run(t, scripts(func(env *testscript.Env) error {
		s, err := startServerIn(t, env.Vars, env.WorkDir)
		if err != nil {
			return err
		}
		s.state = env.Getenv("XDG_STATE_HOME")
		env.Setenv(wire.SocketVariable, s.socket)
		env.Defer(s.stop)
		env.Defer(func() {
			there, here := s.runs()
			t.Logf("%s: %d runs at the server, %d here", filepath.Base(env.WorkDir), there, here)
			mu.Lock()
			defer mu.Unlock()
			total += there
		})
		return nil
	}, "", files...))
}

// The output on a terminal is the same at a server.
func TestTerminalAtServer(t *testing.T) {
	s := startLocalServer(t)
	for name, test := range map[string]func(*testing.T){
		"shown": TestRunOnTerminal, "files": TestRunShowsFiles, "one line per file": TestRunShowsOneLinePerFile, "asks": TestRunInput,
		"terminal": TestRunTTY,
	} {
		t.Run(name, test)
	}
	if there, here := s.runs(); there != 22 || here != 0 {
		t.Errorf("%d runs at the server, %d here\n", there, here)
	}
}

// volatile matches what differs between runs: times, sizes in memory, random names.
var volatile = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`"(execution_time|memory_used|wall_time|cpu_time|cpu_user|cpu_system|memory_peak|memory_current|` +
		`io_read_bytes|io_write_bytes|processes_peak|processes_current|throttled_time|startup_time|` +
		`cpu_percent|disk_used_bytes|seq|process_limit_hits|oom_kills)":[-+.e0-9]+`), `"$1":0`},
	{regexp.MustCompile(`"time":"[^"]*"`), `"time":""`},
	{regexp.MustCompile(`(?m)^.*"kind":"metric".*\n`), ""},
	{regexp.MustCompile(`\(peak [^)]*\)`), "(peak)"},
	{regexp.MustCompile(`0x[0-9a-f]{6,}`), "0x"},
	{regexp.MustCompile(` +\d+ ms`), " 0 ms"},
	{regexp.MustCompile(`\{"control":"disk","state":"enforced","reason":"overcommitted[^}]*\}`), ""}, // a small disk, as in a virtual machine
	{regexp.MustCompile(`overcommitted: [^"]*`), "overcommitted"},                                    // its free space
}

func normalise(text string) string {
	for _, v := range volatile {
		text = v.what.ReplaceAllString(text, v.with)
	}
	// The boundaries of output events vary: join their data.
	if strings.Contains(text, `"kind":"stdout"`) {
		var data strings.Builder
		piece := regexp.MustCompile(`"data":("(?:[^"\\]|\\.)*")`)
		var rest []string
		for line := range strings.Lines(text) {
			output := strings.Contains(line, `"kind":"stdout"`) || strings.Contains(line, `"kind":"stderr"`)
			if m := piece.FindStringSubmatch(line); m != nil && output {
				data.WriteString(strings.Trim(m[1], `"`))
				continue
			}
			rest = append(rest, line)
		}
		text = strings.Join(rest, "") + data.String()
	}
	return text
}

// commandResult is the output and the exit code of a command, without volatile parts.
type commandResult struct {
	stdout, stderr string
	code           int
}

func runCommandIn(t *testing.T, dir, stdin string, args ...string) commandResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), args...)
	cmd.Dir = dir
	if stdin != "-" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	code := exitCode(t, cmd.Run())
	return commandResult{normalise(stdout.String()), normalise(stderr.String()), code}
}

// Output, exit code and files of a command are the same here and at a server.
func TestSameEitherWay(t *testing.T) {
	s := startLocalServer(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.py": "import sys; print(sys.argv, sys.stdin.read())", "data.csv": "1,2\n", "bin.dat": "\x00\xff\xfe",
		"p/main.py": "import helper; print(helper.X)", "p/helper.py": "X = 42", "s.sh": "echo $0 $1; exit 7",
		"m.go":   "package main\nfunc main() { println(1) }\n",
		"bad.go": "package main\nfunc main() { x }\n", "q.sql": "select 1 as a, 'x' as b;", "c.yaml": "- {name: right, args: [1], want: 1}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	python := func(code string, more ...string) []string { return append(more, "-l", "python", "-c", code) }
	both := "import sys; print('out'); print('err', file=sys.stderr)"
	runCommandIn(t, dir, "", "--server", "never", "--compile-timeout", "5m", "m.go") // so that both find it in the cache
	for name, c := range map[string]struct {
		args  []string
		stdin string
		here  bool // with --server auto, the program runs here
	}{
		"hello":          {args: python("print('hello')")},
		"both streams":   {args: python(both)},
		"merged streams": {args: python("import sys\nfor i in range(99): print(i); print(i, file=sys.stderr)", "--merge-output")},
		"json":           {args: python(both, "--json")},
		"ndjson":         {args: python("print('x' * 10)", "--format", "ndjson")},
		"exit code":      {args: python("import sys; sys.exit(42)")},
		"signal":         {args: python("import os; os.kill(os.getpid(), 9)")},
		"traceback":      {args: python("1/0")},
		"syntax error":   {args: python("print(")},
		"bytes":          {args: python("import sys; sys.stdout.buffer.write(bytes(range(256)))")},
		"bytes in json":  {args: python("import sys; sys.stdout.buffer.write(bytes(range(256)))", "--json")},
		"stdin":          {args: python("import sys; print(len(sys.stdin.buffer.read()))"), stdin: strings.Repeat("x", 3<<20)},
		"stdin bytes":    {args: python("import sys; print(sys.stdin.buffer.read())"), stdin: "a\xff\x00b"},
		"stdin unread":   {args: python("print(1)"), stdin: strings.Repeat("x", 3<<20)},
		"no stdin":       {args: python("import sys; print(sys.stdin.read())"), stdin: "-"},
		"code by stdin":  {args: []string{"-l", "python", "-"}, stdin: "print('from stdin')"},
		"file and args":  {args: []string{"a.py", "one", "--", "--two"}, stdin: "in"},
		"shell":          {args: []string{"s.sh", "x"}},
		"directory":      {args: []string{"p"}},
		"entry":          {args: []string{"p", "--entry", "helper.py"}},
		"go":             {args: []string{"m.go", "--compile-timeout", "5m"}},
		"go, again":      {args: []string{"--json", "m.go", "--compile-timeout", "5m"}},
		"go that fails":  {args: []string{"bad.go", "--compile-timeout", "5m"}},
		"sql":            {args: []string{"q.sql"}},
		"sql in json":    {args: []string{"--json", "q.sql"}},
		"timeout":        {args: python("import time; time.sleep(60)", "--timeout", "0.5")},
		"memory":         {args: python("x = bytearray(500 << 20)", "--memory", "64m")},
		"memory in json": {args: python("x = bytearray(500 << 20)", "--memory", "64m", "--json")},
		"output":         {args: python("print('x' * 100000)", "--output-limit", "1k", "--json")},
		"kill on output": {args: python("print('x' * 100000)", "--output-limit", "1k", "--kill-on-output", "--quiet")},
		"no stream":      {args: python(both, "--no-stream")},
		"environment":    {args: python("import os; print(os.environ['A'], os.environ.get('B'))", "--env", "A=ä", "--env", "B")},
		"in and out": {args: python("open('out.txt', 'w').write(open('data.csv').read()); print(open('bin.dat', 'rb').read())",
			"--in", "data.csv", "--in", "bin.dat", "--out", "out.txt")},
		"out in json": {args: python("open('o.bin', 'wb').write(bytes(range(256)))", "--out", "*.bin", "--json")},
		"out missing": {args: python("pass", "--out", "none.txt")},
		"world": {args: python("import os, socket; print(os.getcwd(), os.getuid(), os.getgid(), socket.gethostname(), sorted(os.environ))",
			"--hostname", "box", "--uid", "1234", "--workdir", "/tmp")},
		"refused call":  {args: python("import os; os.system('chroot /usr true')", "--json")},
		"harness":       {args: []string{"--template", "harness", "--var", "cases=@c.yaml", "-l", "python", "-c", "def f(x): return x"}},
		"forbidden":     {args: python("import socket", "--forbid-imports", "socket")},
		"commands":      {args: []string{"-l", "shell", "--commands", "ls,cat", "-c", "ls /workspace; id"}},
		"strict":        {args: python("print(1)", "--strict", "--json"), here: true},
		"no language":   {args: []string{"-l", "cobol", "-c", "x"}, here: true},
		"no language 2": {args: []string{"--json", "-l", "cobol", "-c", "x"}, here: true},
		"nothing":       {args: []string{"-l", "python", "-c", " "}, here: true},
		"too large":     {args: python("print(1)", "--memory", "900t"), here: true},
		"option":        {args: python("print(1)", "--edition", "2021"), here: true},
		"too weak":      {args: python("print(1)", "--require", "microvm"), here: true},
		"volume":        {args: python("import os; print(os.listdir('/v'))", "--volume", "p:/v"), here: true},
		"workspace":     {args: python("open('x', 'a').write('x'); print(open('x').read()[:1])", "--workspace", "either"), here: true},
		"dry run":       {args: python("print(1)", "--dry-run"), here: true},
		"backend":       {args: python("print(1)", "--backend", "native"), here: true},
		"no audit":      {args: python("print(1)", "--audit-log", "off"), here: true},
		"not UTF-8":     {args: python("import sys, os; print(os.fsencode(sys.argv[1]))", "--quiet")},
		"exec":          {args: []string{"exec", "--", "echo", "hello"}, here: true},
	} {
		t.Run(name, func(t *testing.T) {
			args := c.args
			if name == "not UTF-8" {
				args, c.here = append(args, "--", "\xff"), true
			}
			before, _ := s.runs()
			there := runCommandIn(t, dir, c.stdin, args...)
			after, _ := s.runs()
			if ran := after > before; ran == c.here {
				t.Errorf("run at the server: %v", ran)
			}
			brought, _ := os.ReadFile(filepath.Join(dir, "out.txt"))
			t.Setenv("SANDBOX_RUN_SERVER", "never")
			here := runCommandIn(t, dir, c.stdin, args...)
			again, _ := s.runs()
			if again != after {
				t.Error("never was at the server, too")
			}
			if name == "kill on output" { // how much is printed before the kill varies
				here.stdout, there.stdout = "", ""
			}
			if here != there {
				t.Errorf("here:\n%.3000s\nat the server:\n%.3000s", fmt.Sprint(here), fmt.Sprint(there))
			}
			if own, _ := os.ReadFile(filepath.Join(dir, "out.txt")); !bytes.Equal(own, brought) {
				t.Errorf("%q and %q were brought back", own, brought)
			}
			t.Setenv("SANDBOX_RUN_SERVER", "unix://"+s.socket)
			named := runCommandIn(t, dir, c.stdin, args...)
			if name == "kill on output" {
				named.stdout = ""
			}
			if !c.here && named != here {
				t.Errorf("here:\n%.3000s\nat the server by name:\n%.3000s", fmt.Sprint(here), fmt.Sprint(named))
			}
		})
	}
}

// A run that the server of --server can not do is an error that names the flag.
func TestNamedServerRefusals(t *testing.T) {
	s := startLocalServer(t)
	address := "unix://" + s.socket
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"volume":    {[]string{"--volume", "/usr:/v"}, 2, "--volume: unix://"},
		"dry run":   {[]string{"--dry-run"}, 2, "--dry-run: unix://"},
		"backend":   {[]string{"--backend", "native"}, 2, "--backend: unix://"},
		"workspace": {[]string{"--workspace", "x"}, 2, "--workspace: unix://"},
		"audit":     {[]string{"--audit-log", "off"}, 2, "--audit-log: unix://"},
		"spill":     {[]string{"--spill", filepath.Join(t.TempDir(), "s")}, 2, "--spill: unix://"},
		"tier":      {[]string{"--require", "microvm"}, 126, "microvm"},
		"weaker":    {[]string{"--require", "process"}, 126, "require"},
		"option":    {[]string{"--edition", "2021"}, 2, "--edition: "},
		"language":  {[]string{"--lang", "cobol"}, 2, "--lang: "},
		"ceiling":   {[]string{"--timeout", "300h"}, 126, "--timeout"},
		"image":     {[]string{"--image", "sandbox-run/none"}, 127, `image "sandbox-run/none" is not here; try: sandbox-run image build none`},
		"key file":  {[]string{"--server-key-file", "/x"}, 2, "--server-key-file: "},
		"control":   {[]string{"--env", "A=1"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := runCommandIn(t, t.TempDir(), "", append([]string{"--server", address, "-l", "python", "-c", "print(1)"}, c.args...)...)
			if got.code != c.code || !strings.Contains(got.stderr, c.says) {
				t.Errorf("%+v", got)
			}
		})
	}
	for address, says := range map[string]string{
		"unix:///none/such.sock": "no server listens there", "unix://relative": "absolute", "ftp://x": "use one of", "https://": "",
		"http://127.0.0.1:1": "refused",
	} {
		got := runCommandIn(t, t.TempDir(), "", "--server", address, "-l", "python", "-c", "print(1)")
		if got.code != 2 && got.code != 125 || !strings.Contains(got.stderr, says) || got.stdout != "" {
			t.Errorf("%s: %+v", address, got)
		}
	}
}

// The first Ctrl-C ends the program gracefully, at a server as here, even if the program has not read its input.
func TestInterruptAtServer(t *testing.T) {
	s := startLocalServer(t)
	const program = `
import os, signal, sys, time
def end(number, _): # print may be interrupted itself
    os.write(1, b"ending by %s\n" % signal.Signals(number).name.encode())
    sys.exit(3)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)`
	for _, c := range []struct {
		signal syscall.Signal
		code   int
		unread int
	}{{syscall.SIGINT, 130, 0}, {syscall.SIGTERM, 143, 8 << 20}} {
		var all []commandResult
		for _, where := range []string{"auto", "never"} {
			cmd := command(t, "--server", where, "--grace", "10s", "-l", "python", "-c", program)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			in, err := cmd.StdinPipe() // stays open
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = in.Close() })
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			first := make([]byte, 6)
			if _, err := io.ReadFull(out, first); err != nil || string(first) != "ready\n" {
				t.Fatalf("%q %v", first, err)
			}
			if c.unread > 0 {
				go func() { _, _ = in.Write(make([]byte, c.unread)) }() // ends with the command
				time.Sleep(time.Second)                                 // the write blocks by then
			}
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(out)
			code := exitCode(t, cmd.Wait())
			all = append(all, commandResult{string(rest), stderr.String(), code})
		}
		if all[0] != all[1] || all[0].code != c.code || all[0].stdout != "ending by "+unix.SignalName(c.signal)+"\n" {
			t.Errorf("at the server: %+v\nhere: %+v", all[0], all[1])
		}
	}
	if there, _ := s.runs(); there != 2 {
		t.Errorf("%d runs at the server", there)
	}
}

// A killed command ends its program at the server.
func TestKilledAtServer(t *testing.T) {
	s := startLocalServer(t)
	cmd := command(t, "-l", "python", "-c", `print("ready", flush=True); import time; time.sleep(600)`, "--timeout", "4m")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(20 * time.Millisecond) {
		if there, _ := s.runs(); there == 1 { // the entry is written when the run has ended
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it runs on")
		}
	}
}

// A closed reader of the output ends the program at the server.
func TestBrokenPipeAtServer(t *testing.T) {
	s := startLocalServer(t)
	cmd := command(t, "-l", "python", "-c", "while True: print('x' * 1000)")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	if code := exitCode(t, cmd.Wait()); code != CodeBrokenPipe {
		t.Errorf("exit code %d", code)
	}
	if there, _ := s.runs(); there != 1 {
		t.Errorf("%d runs at the server", there)
	}
}

// A server that dies while a program runs is an error, and the program is not run again.
func TestServerDies(t *testing.T) {
	s := startLocalServer(t)
	for _, where := range []string{"auto", "unix://" + s.socket} {
		marker := fmt.Sprintf("ready %s", where)
		cmd := command(t, "--server", where, "-l", "python", "-c", `print("`+marker+`", flush=True); import time; time.sleep(600)`)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		first := make([]byte, len(marker))
		if _, err := io.ReadFull(out, first); err != nil {
			t.Fatal(err)
		}
		_ = s.cmd.Process.Kill()
		rest, _ := io.ReadAll(out)
		if code := exitCode(t, cmd.Wait()); code != codeOurs || strings.Contains(string(rest), "ready") ||
			!strings.Contains(stderr.String(), "the program may have run, and is not run again") {
			t.Errorf("%s: exit code %d: %q %s", where, code, rest, &stderr)
		}
		<-s.ended
		if where == "auto" {
			next, err := startServerIn(t, os.Environ(), filepath.Dir(filepath.Dir(s.socket)))
			if err != nil {
				t.Fatal(err)
			}
			*s = *next
		}
	}
	// Without a server, the program runs here.
	if got := runCommandIn(t, t.TempDir(), "", "-l", "python", "-c", "print(1)"); got != (commandResult{"1\n", "", 0}) {
		t.Errorf("%+v", got)
	}
}

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// An interrupt that comes before the code has reached the driver ends the cell.
func TestInterruptAtOnce(t *testing.T) {
	forDialects(t, quick(func(d *dialect) string { return d.loop }), func(s tester, d *dialect) {
		s.has(d.set, "")
		for name, cell := range map[string]Cell{
			"in Begin": {Begin: func(context.Context, uint64) error { return s.Interrupt() }},
			"when busy": {Begin: func(context.Context, uint64) error {
				go func() { _ = s.Interrupt() }()
				return nil
			}},
		} {
			cell.Code, cell.Limits.Wall = d.loop, time.Minute
			if r := s.cell(cell); r.Verdict != sandbox.VerdictCancelled || !r.Interrupted || r.State != StateIdle {
				s.Errorf("%s: %s, interrupted %t, %s", name, r.Verdict, r.Interrupted, r.State)
			}
			s.alive(d)
		}
	})
}

// An interrupt never hits the cell after the one that it was meant for.
func TestLateInterrupt(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	for i := range 200 {
		var asked sync.WaitGroup
		s.cell(Cell{Code: "1", OnEvent: func(e sandbox.Event) {
			if e.Kind == sandbox.EventDisplay { // the cell is at its end
				asked.Go(func() { _ = s.Interrupt() })
			}
		}})
		asked.Wait()
		s.shows(fmt.Sprintf("sum(range(20000)) * 0 + %d", i), fmt.Sprint(i))
	}
}

// A driver that asks without end and reads no answer takes no memory of the supervisor.
func TestQuestionFlood(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	before := runtime.NumGoroutine()
	over, most := make(chan struct{}), make(chan int)
	go func() {
		highest := 0
		for {
			select {
			case <-over:
				most <- highest
				return
			case <-time.After(time.Millisecond):
				highest = max(highest, runtime.NumGoroutine())
			}
		}
	}()
	r := s.cell(Cell{Code: "import os\nwhile True: os.write(63, b'input 1 2\\n{}' * 100)", Limits: sandbox.Limits{Wall: 2 * time.Second}})
	close(over)
	if r.Verdict != sandbox.VerdictTimeLimit {
		t.Errorf("%s", r.Verdict)
	}
	if n := <-most - before; n > 50 {
		t.Errorf("%d goroutines more", n)
	}
}

// What a cell computes while it says that it waits counts for its time limit.
func TestComputesWhileItWaits(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	wall := sandbox.Limits{Wall: 2 * time.Second}
	answer := func(after time.Duration) func(context.Context, protocol.Input) (string, bool) {
		return func(ctx context.Context, _ protocol.Input) (string, bool) {
			select {
			case <-time.After(after):
			case <-ctx.Done():
			}
			return "line", true
		}
	}
	r := s.cell(Cell{Code: "input()", Limits: wall, Input: answer(3 * time.Second)}) // control
	if r.Verdict != sandbox.VerdictOK {
		t.Errorf("a cell that waits: %s", r.Verdict)
	}
	busy := "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\ninput()"
	r = s.cell(Cell{Code: busy, Limits: sandbox.Limits{Wall: time.Second / 2}, Input: answer(patience)})
	if r.Verdict != sandbox.VerdictTimeLimit {
		t.Errorf("a cell that computes: %s after %v, of which processor time %v", r.Verdict, r.Metrics.WallTime, r.Metrics.CPUTime)
	}
}

// A cell that waits for its user is sampled rarely.
func TestSamplesWhileWaiting(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	var mu sync.Mutex
	samples, waiting := 0, false
	r := s.cell(Cell{Code: "input()", OnEvent: func(e sandbox.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == sandbox.EventMetric && waiting {
			samples++
		}
	}, Input: func(context.Context, protocol.Input) (string, bool) {
		mu.Lock()
		waiting = true
		mu.Unlock()
		time.Sleep(3 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		waiting = false
		return "", true
	}})
	if r.Verdict != sandbox.VerdictOK || samples > 3 {
		t.Errorf("%s, %d samples", r.Verdict, samples)
	}
}

// A session expires also after a cell that took longer than its idle time, and during one that waits for its user.
func TestExpiryAfterLongCell(t *testing.T) {
	ended := make(chan string, 1)
	m := newManager(t, Options{OnClose: func(_, _, why string) { ended <- why }})
	req := in("python")
	req.Idle = time.Second
	for _, code := range []string{"import time; time.sleep(1.5)", "import time; time.sleep(1.5); input()"} {
		s := create(t, m, req)
		_, _ = s.Execute(context.Background(), Cell{Code: code, Input: func(ctx context.Context, _ protocol.Input) (string, bool) {
			<-ctx.Done()
			return "", false
		}})
		select {
		case why := <-ended:
			if !strings.Contains(why, "idle") {
				t.Errorf("%q: reason %q", code, why)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%q: the session does not expire", code)
			s.Close()
			<-ended
		}
	}
}

// A session that is closed while it is renewed leaves nothing; its fork keeps the sandbox. The manager's test checks for leftovers.
func TestCloseWhileRenewed(t *testing.T) {
	m := newManager(t, Options{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rounds := 4
	if testenv.All() {
		rounds = 12
	}
	for i := range rounds {
		s := create(t, m, in("python"))
		f := s.fork(ForkOptions{})
		f.shows("x = 5", "")
		renew := s.Reset
		if i%2 == 0 {
			renew = s.Restart
		}
		var renewing sync.WaitGroup
		renewing.Go(func() {
			if err := renew(ctx); err != nil && !errors.Is(err, ErrNotFound) {
				t.Logf("renew: %v", err)
			}
		})
		time.Sleep(time.Duration(i) * 5 * time.Millisecond) // any moment will do
		s.Close()
		renewing.Wait()
		f.shows("x", "5")
		f.Close()
		if n := len(b(s).List()); n > 0 {
			t.Fatalf("%d sandboxes are left after round %d", n, i)
		}
	}
}

func b(s tester) *sandbox.Manager {
	m, _ := s.present().session.Sandbox()
	return m
}

// Forks and ends at the same time leave nothing, and hang nothing.
func TestForkWhileClosed(t *testing.T) {
	m := newManager(t, Options{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range 10 {
		s := create(t, m, in("python"))
		var forking sync.WaitGroup
		forking.Go(func() {
			if f, err := s.Fork(ctx, ForkOptions{}); err == nil {
				f.Close()
			}
		})
		time.Sleep(time.Duration(i) * 3 * time.Millisecond) // any moment will do
		s.Close()
		forking.Wait()
		if n := len(b(s).List()); n > 0 {
			t.Fatalf("%d sandboxes are left after round %d", n, i)
		}
	}
}

// The number of a fork is the driver's word. One that is no new child of the init is refused, and changes nothing.
func TestForgedFork(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	s.shows("import os, threading, time, subprocess; x = 5; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "")
	s.shows("p = subprocess.Popen(['sleep', '1000']); z = os.fork() or os._exit(0)", "")
	pids := []int{-1 << 40, -1, 0, 1, 1 << 22, 1 << 40, 99999}
	for _, code := range []string{"os.getpid()", "max(map(int, os.listdir('/proc/self/task')))", "p.pid", "z"} {
		var pid int
		if _, err := fmt.Sscan(shown(s.do(code)), &pid); err != nil || pid <= 1 {
			t.Fatalf("%s: %d, %v", code, pid, err)
		}
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		live, err := s.present().driver.live.Fork(ctx, func(string) (int, error) { return pid, nil })
		cancel()
		if err == nil {
			t.Errorf("the process %d was taken on", pid)
			_ = live.Close()
		}
		s.shows("x", "5")
	}
	f := s.fork(ForkOptions{}) // control
	f.shows("x", "5")
}

// What the threads of a cell write between two cells is read slowly: the supervisor's time is not theirs.
func TestFloodBetweenCells(t *testing.T) {
	for name, flood := range map[string]struct {
		write string
		most  int // MiB in 4 seconds
	}{
		"output": {"1, b'x' * 65536", 130},
		"frames": {"63, b'display 1 65516\\n' + b' ' * 65516", 330},
		"small":  {"63, b'display 1 0\\n' * 500", 11}, // as many times 500
	} {
		t.Run(name, func(t *testing.T) {
			if name != "frames" {
				testenv.NeedAll(t, "TestFloodBetweenCells/frames")
			}
			s := create(t, newManager(t, Options{}), in("python"))
			s.shows(`import os, threading, time
f = os.open("n", os.O_RDWR | os.O_CREAT)
def write(fd, data):
    while data: data = data[os.write(fd, data):]
def flood():
    n = 0
    time.sleep(0.5)
    while True:
        write(`+flood.write+`)
        n += 65536
        os.pwrite(f, str(n).encode(), 0)
threading.Thread(target=flood, daemon=True).start()`, "")
			time.Sleep(4 * time.Second)
			var n int
			if _, err := s.Take(context.Background(), sandbox.Selection{Patterns: []string{"n"}, MaxFiles: 1, MaxBytes: 100},
				func(_ sandbox.File, _ sandbox.Size, r io.Reader) error {
					_, err := fmt.Fscan(r, &n)
					return err
				}); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d MiB", n>>20)
			if n == 0 || n>>20 > flood.most {
				t.Errorf("%d MiB were read", n>>20)
			}
		})
	}
}

// A frame whose content takes many times its size in memory ends the driver.
func TestLargeFrames(t *testing.T) {
	m := newManager(t, Options{})
	for name, body := range map[string]string{
		"display 1": `'{"data":{' + ','.join('"%d":0' % i for i in range(500000)) + '}}'`,
		"install 1": `'{"packages":[' + ','.join(['""'] * 1000000) + ']}'`,
		"reply 1":   `'{"variables":[' + ','.join(['{}'] * 1000000) + ']}'`,
		"control 1": "'{}'",
	} {
		s := create(t, m, in("python"))
		r := s.cell(Cell{Code: "import os\ndata = (" + body + ").encode()\ndata = b'" + strings.Replace(name, "control", "display", 1) +
			" %d\\n' % len(data) + data\nwhile data: data = data[os.write(63, data):]"})
		want := StateEnded
		if name == "control 1" {
			want = StateIdle
		}
		if r.State != want {
			t.Errorf("%s: %s, %s, %d displays", name, r.State, r.Verdict, len(r.Displays))
		}
	}
}

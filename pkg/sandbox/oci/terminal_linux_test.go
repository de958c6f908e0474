package oci

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A program on a terminal that enters a phase just when the phase ends gets a phase of its own, like any other.
func TestTerminalComesLate(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			m := sandbox.NewManager(b, sandbox.Options{})
			defer m.Close()
			ctx := t.Context()
			id, err := m.Create(ctx, sandbox.Spec{Require: byName(runtime).tier})
			if err != nil {
				t.Fatal(err)
			}
			for n := range 6 { // the phase ends while the runtime starts, a little later each time
				began, ended := make(chan struct{}), make(chan error, 1)
				go func() {
					_, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", "echo; exec sleep 0.0" + strconv.Itoa(n)}},
						sandbox.IO{OnEvent: func(e sandbox.Event) {
							if e.Kind == sandbox.EventStdout && e.Offset == 0 {
								close(began)
							}
						}})
					ended <- err
				}()
				<-began
				res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"echo", "late"}, TTY: &sandbox.TTY{Rows: 24, Cols: 80}}, sandbox.IO{})
				if err != nil || string(res.Stdout.Bytes()) != "late\r\n" {
					t.Errorf("%d: %+v, %v", n, res, err)
				}
				if err := <-ended; err != nil {
					t.Errorf("%d: the first: %v", n, err)
				}
			}
			if err := m.Delete(context.WithoutCancel(ctx), id); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that its phase can not take does not count in it: the phase ends with its other processes.
func TestPhaseRefuses(t *testing.T) {
	b, _ := newBackend(t, "runsc")
	spec := &sandbox.Spec{Hostname: sandbox.UserName, User: sandbox.DefaultUser, Limits: sandbox.DefaultLimits(), Network: sandbox.NetworkNone}
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	p := &sandbox.Process{Args: []string{"/bin/sleep", "0.5"}, Phase: "run", Limits: spec.Limits, Network: sandbox.NetworkNone, Workdir: "/"}
	task, err := i.Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	other := *p
	other.Network = sandbox.NetworkLocalhost
	if _, err := i.Start(t.Context(), &other); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("a loopback in a phase without: %v", err)
	}
	_, err1 := task.Wait()
	_, err2 := task.Finish(t.Context())
	if err := errors.Join(err1, err2); err != nil {
		t.Error(err)
	}
	if left := descendants(os.Getpid()); len(left) > 0 {
		t.Errorf("%v live on", left)
	}
	if err := i.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// A terminal works in every phase, whichever process is the program's parent: bytes, exits, other programs, keys.
func TestTerminal(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			m := sandbox.NewManager(b, sandbox.Options{})
			defer m.Close()
			ctx := t.Context()
			id, err := m.Create(ctx, sandbox.Spec{Require: byName(runtime).tier})
			if err != nil {
				t.Fatal(err)
			}
			noise := make([]byte, 300<<10)
			for i := range noise {
				noise[i] = byte(rand.Uint32())
			}
			if err := m.Put(ctx, id, []sandbox.File{{Path: "/workspace/noise", Mode: 0o644, Data: noise}}); err != nil {
				t.Fatal(err)
			}
			on := func(phase, script string, tty bool, streams sandbox.IO) (*sandbox.Result, error) {
				p := sandbox.Process{Phase: phase, Args: []string{"sh", "-c", script}, Limits: sandbox.Limits{Wall: time.Minute}}
				if tty {
					p.TTY = &sandbox.TTY{Rows: 24, Cols: 80}
				}
				return m.Run(ctx, id, p, streams)
			}
			run := func(script string) *sandbox.Result {
				t.Helper()
				res, err := on("", script, true, sandbox.IO{})
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			if res := run("stty raw -echo; cat noise; exit 130"); !bytes.Equal(res.Stdout.Bytes(), noise) ||
				res.Verdict != sandbox.VerdictNonzeroExit || res.Exit.Code != 130 {
				t.Errorf("%d bytes of %d, or others; %s, %+v", res.Stdout.Total, len(noise), res.Verdict, res.Exit)
			}
			if _, err := m.Run(ctx, id, sandbox.Process{Args: []string{"no-such-program"}, TTY: &sandbox.TTY{}}, sandbox.IO{}); err == nil ||
				!strings.Contains(err.Error(), "no-such-program") {
				t.Errorf("no such program: %v", err)
			}
			// A program that kills its own process group kills itself and the server of its terminal; no caller is left
			// waiting.
			if res := run("kill -KILL 0; sleep 60"); res.Verdict != sandbox.VerdictSignaled || res.Exit.Signal != 9 {
				t.Errorf("SIGKILL to all: %s, %+v", res.Verdict, res.Exit)
			}
			if runtime == "runsc" { // elsewhere the parent is the init, which no program inside can kill
				// The program reports that it runs, and gets the order to continue: without its console it could not
				// have been started.
				typed, keys := io.Pipe()
				res, err := on("", "echo; read go; kill -KILL $PPID; sleep 0.3; exit 5", true, sandbox.IO{Stdin: typed, OnEvent: func(e sandbox.Event) {
					if e.Kind == sandbox.EventStdout && e.Offset == 0 {
						go func() { _, _ = keys.Write([]byte("go\n")) }()
					}
				}})
				if err != nil || res.Exit.Code != 5 {
					t.Errorf("without a console: %+v, %v", res, err)
				}
				_ = keys.Close()
			}
			// Job control: typed keys reach the foreground process, and stop it. Orphans are reaped.
			typed, keys := io.Pipe()
			defer keys.Close()
			var said bytes.Buffer
			step := 0
			steps := []struct{ after, key string }{{"one\r\n", "\x1a"}, {"stopped\r\n", "x\x7fab\x04\x04"}, {"ab.two\r\n", "\x03"}}
			const script = "for i in 1 2 3; do (true & exec true) & done; wait; sleep 1; grep -l '^State:.Z' /proc/[0-9]*/status; set " +
				"-m; (echo one; exec sleep 60); echo stopped; cat; echo .two; (exec sleep 60)"
			res, err := on("", script, true, sandbox.IO{Stdin: typed, OnEvent: func(e sandbox.Event) {
				said.Write(e.Data)
				if step < len(steps) && strings.Contains(said.String(), steps[step].after) {
					key := steps[step].key
					step++
					go func() {
						time.Sleep(200 * time.Millisecond) // until the next process has started
						_, _ = keys.Write([]byte(key))
					}()
				}
			}})
			if err != nil || said.String() != "one\r\n^Zstopped\r\nx\b \babab.two\r\n^C" || res.Exit.Signal != 2 {
				t.Errorf("job control: %q, %+v, %v", said.String(), res, err)
			}
			// Other programs, with a terminal and without: the end of one does not end the other.
			for _, first := range []bool{true, false} {
				long := make(chan string, 1)
				began := make(chan struct{})
				go func() {
					res, err := on("both", "echo began; sleep 1; echo through", first, sandbox.IO{OnEvent: func(e sandbox.Event) {
						if e.Kind == sandbox.EventStdout && e.Offset == 0 {
							close(began)
						}
					}})
					if err != nil {
						long <- err.Error()
						return
					}
					long <- string(bytes.ReplaceAll(res.Stdout.Bytes(), []byte("\r"), nil))
				}()
				select {
				case <-began:
				case got := <-long:
					t.Fatalf("%q", got)
				}
				if res, err := on("both", "exit 7", !first, sandbox.IO{}); err != nil || res.Exit.Code != 7 {
					t.Errorf("%+v, %v", res, err)
				}
				if got := <-long; got != "began\nthrough\n" {
					t.Errorf("terminal first: %v: %q", first, got)
				}
			}
			if err := m.Delete(context.WithoutCancel(ctx), id); err != nil {
				t.Error(err)
			}
		})
	}
}

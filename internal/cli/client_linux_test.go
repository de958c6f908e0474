package cli

import (
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// Every method of the Go client works against the real server.
func TestClientMethods(t *testing.T) {
	s := startLocalServer(t)
	transport := &client.Unix{Path: s.socket}
	t.Cleanup(func() { _ = transport.Close() })
	c := client.New(transport)
	shell := func(code string) *wire.Run { return &wire.Run{Language: "shell", Code: code} }
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// collect reads events to their end and returns the standard output and the result.
	collect := func(t *testing.T, next func() (executor.Event, error)) (string, *executor.Result) {
		t.Helper()
		var out strings.Builder
		for {
			ev, err := next()
			must(t, err)
			if ev.Kind == sandbox.EventStdout {
				out.Write(ev.Data)
			}
			if ev.Result != nil {
				return out.String(), ev.Result
			}
		}
	}

	methods := map[string]func(*testing.T){
		"Sessions": func(t *testing.T) {
			s, err := c.Sessions().Create(t.Context(), &wire.Session{Run: wire.Run{Language: "python"}})
			must(t, err)
			defer s.Close()
			_, err = s.Execute(t.Context(), session.Cell{Code: "x = 20"})
			must(t, err)
			r, err := s.Execute(t.Context(), session.Cell{Code: "x + 1"})
			must(t, err)
			if r.Value() != "21" {
				t.Errorf("%q, %s", r.Value(), r.Verdict)
			}
		},
		"Headers": func(t *testing.T) {
			h, err := c.Headers(t.Context())
			must(t, err)
			if h.Get(wire.HeaderVersion) == "" {
				t.Errorf("no version among %v", h)
			}
		},
		"Version": func(t *testing.T) {
			v, err := c.Version(t.Context())
			must(t, err)
			if v != ownVersion(t) {
				t.Errorf("version %q, want %q", v, ownVersion(t))
			}
		},
		"Health": func(t *testing.T) {
			h, err := c.Health(t.Context(), true)
			must(t, err)
			if !h.Live || !h.Ready || h.Deep == nil || !h.Deep.OK {
				t.Errorf("%+v", h)
			}
		},
		"Languages": func(t *testing.T) {
			list, err := c.Languages(t.Context())
			must(t, err)
			if !slices.ContainsFunc(list, func(a executor.Availability) bool { return a.Name == "python" && a.Version != "" }) {
				t.Errorf("%+v", list)
			}
		},
		"Run": func(t *testing.T) {
			r, err := c.Run(t.Context(), shell("echo out; echo err >&2; exit 3"))
			must(t, err)
			stdout, stderr := string(r.Stdout.Bytes()), string(r.Stderr.Bytes())
			if r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 3 || stdout != "out\n" || stderr != "err\n" {
				t.Errorf("%+v", r)
			}
		},
		"Stream": func(t *testing.T) {
			var out strings.Builder
			var result *executor.Result
			for ev, err := range c.Stream(t.Context(), shell("echo streamed")) {
				must(t, err)
				if ev.Kind == sandbox.EventStdout {
					out.Write(ev.Data)
				}
				result = ev.Result
			}
			if out.String() != "streamed\n" || result == nil || !result.Success() {
				t.Errorf("%q, %+v", out.String(), result)
			}
		},
		"Open": func(t *testing.T) {
			running, err := c.Open(t.Context(), shell("echo begun; sleep 60"))
			must(t, err)
			defer running.Close()
			for {
				ev, err := running.Next()
				must(t, err)
				if ev.Kind == sandbox.EventStdout {
					break
				}
			}
			must(t, running.Cancel(t.Context()))
			if _, r := collect(t, running.Next); r.Verdict != sandbox.VerdictCancelled {
				t.Errorf("%+v", r)
			}
			if _, err := running.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("after the result: %v", err)
			}
		},
		"Start": func(t *testing.T) {
			first, err := c.Start(t.Context(), shell("echo once"), "a-key")
			must(t, err)
			again, err := c.Start(t.Context(), shell("echo once"), "a-key")
			must(t, err)
			if first.ID == "" || again.ID != first.ID {
				t.Errorf("%+v, then %+v", first, again)
			}
		},
		"Wait": func(t *testing.T) {
			info, err := c.Start(t.Context(), shell("sleep 0.2; echo done"), "")
			must(t, err)
			info, err = c.Wait(t.Context(), info.ID, time.Minute)
			must(t, err)
			if r, err := wire.DecodeResult(info.Result); err != nil || string(r.Stdout.Bytes()) != "done\n" {
				t.Errorf("%v, %+v", err, info)
			}
		},
		"Cell": func(t *testing.T) {
			s, err := c.Sessions().Create(t.Context(), &wire.Session{Run: wire.Run{Language: "shell"}})
			must(t, err)
			defer s.Close()
			_, err = s.Execute(t.Context(), session.Cell{Code: "echo done"})
			must(t, err)
			info, err := c.Cell(t.Context(), s.ID(), "1")
			must(t, err)
			if r, err := wire.DecodeResult(info.Result); err != nil || string(r.Stdout.Bytes()) != "done\n" {
				t.Errorf("%v, %+v", err, info)
			}
			if _, err := c.Cell(t.Context(), s.ID(), "2"); !errors.Is(err, session.ErrNotFound) {
				t.Error(err)
			}
		},
		"Get": func(t *testing.T) {
			info, err := c.Start(t.Context(), shell("echo done"), "")
			must(t, err)
			for deadline := time.Now().Add(time.Minute); info.State != wire.StateDone; time.Sleep(20 * time.Millisecond) {
				info, err = c.Get(t.Context(), info.ID)
				must(t, err)
				if time.Now().After(deadline) {
					t.Fatalf("%+v", info)
				}
			}
			if r, err := wire.DecodeResult(info.Result); err != nil || string(r.Stdout.Bytes()) != "done\n" {
				t.Errorf("%v, %s", err, info.Result)
			}
		},
		"Events": func(t *testing.T) {
			info, err := c.Start(t.Context(), shell("echo kept"), "")
			must(t, err)
			var out strings.Builder
			for ev, err := range c.Events(t.Context(), info.ID, 0) {
				must(t, err)
				if ev.Kind == sandbox.EventStdout {
					out.Write(ev.Data)
				}
			}
			if out.String() != "kept\n" {
				t.Errorf("%q", out.String())
			}
		},
		"Cancel": func(t *testing.T) {
			info, err := c.Start(t.Context(), shell("sleep 60"), "")
			must(t, err)
			must(t, c.Cancel(t.Context(), info.ID))
			must(t, c.Cancel(t.Context(), info.ID))
			var p *client.Problem
			if err := c.Cancel(t.Context(), "no-such-run"); !errors.As(err, &p) || p.Status != 404 {
				t.Errorf("a run that does not exist: %v", err)
			}
		},
		"Upload": func(t *testing.T) {
			up, err := c.Upload(t.Context(), "up", strings.NewReader("of the client"), 13)
			must(t, err)
			if up.ID != "up" || up.Size != 13 || len(up.SHA256) != 64 {
				t.Errorf("%+v", up)
			}
			run := shell("cat data")
			run.In = []wire.File{{Path: "data", ID: "up"}}
			r, err := c.Run(t.Context(), run)
			must(t, err)
			if string(r.Stdout.Bytes()) != "of the client" {
				t.Errorf("%+v", r)
			}
		},
		"Download": func(t *testing.T) {
			_, err := c.Upload(t.Context(), "down", strings.NewReader("there and back"), -1)
			must(t, err)
			file, err := c.Download(t.Context(), "down")
			must(t, err)
			defer file.Close()
			if text, err := io.ReadAll(file); err != nil || string(text) != "there and back" {
				t.Errorf("%q, %v", text, err)
			}
		},
		"Batch": func(t *testing.T) {
			inputs := []wire.Input{{Name: "a", Args: []string{"0"}}, {Name: "b", Args: []string{"1"}}, {Name: "c", Args: []string{"0"}}}
			batch := &wire.Batch{Run: shell(`exit "$1"`), Inputs: inputs, Parallel: 1, StopOnFailure: true}
			var items []client.Item
			for item, err := range c.Batch(t.Context(), batch) {
				must(t, err)
				items = append(items, item)
			}
			if len(items) != 4 || !items[0].Result.Success() || items[1].Result.Exit.Code != 1 || !items[2].Skipped || items[2].Name != "c" {
				t.Fatalf("%+v", items)
			}
			if s := items[3].Summary; s == nil || s.Items != 3 || s.Succeeded != 1 || s.Failed != 1 || s.Skipped != 1 {
				t.Errorf("%+v", s)
			}
		},
		"Tests": func(t *testing.T) {
			code := "import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self): pass\n    def test_b(self): self.fail()\n"
			var last client.TestEvent
			for ev, err := range c.Tests(t.Context(), &wire.Tests{Run: &wire.Run{Files: []wire.File{{Path: "test_a.py", Content: code}}}}) {
				must(t, err)
				last = ev
			}
			if r := last.Result; r == nil || r.Success || r.Summary.Passed != 1 || r.Summary.Failed != 1 {
				t.Errorf("%+v", last)
			}
		},
		"OpenInteractive": func(t *testing.T) {
			session, err := c.OpenInteractive(t.Context())
			must(t, err)
			defer session.Close()
			run := shell("read line; echo got $line")
			run.Interactive = true
			must(t, session.StartRun(t.Context(), run))
			_, err = session.Write([]byte("a line\n"))
			must(t, err)
			must(t, session.CloseWrite())
			if out, r := collect(t, func() (executor.Event, error) { return session.Next(t.Context()) }); out != "got a line\n" || !r.Success() {
				t.Errorf("%q, %+v", out, r)
			}
		},
		"Attach": func(t *testing.T) {
			run := shell("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.1; done")
			run.Interactive = true
			info, err := c.Start(t.Context(), run, "")
			must(t, err)
			session, err := c.Attach(t.Context(), info.ID, 0)
			must(t, err)
			defer session.Close()
			out, r := collect(t, func() (executor.Event, error) {
				ev, err := session.Next(t.Context())
				if ev.Kind == sandbox.EventStdout && strings.Contains(string(ev.Data), "ready") {
					must(t, session.Signal(t.Context(), "SIGUSR1"))
				}
				return ev, err
			})
			if out != "ready\ncaught\n" || r.Exit.Code != 7 {
				t.Errorf("%q, %+v", out, r)
			}
		},
	}
	for name, method := range methods {
		t.Run(name, method)
	}
	for m := range reflect.TypeOf(c).Methods() {
		if methods[m.Name] == nil {
			t.Errorf("the client's method %s is not tested here", m.Name)
		}
	}
}

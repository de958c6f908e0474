package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// full has every field set.
const full = `{"language":"python","code":"x","name":"n.py","entry":"e","args":["a"],"stdin":"eA==","stdin_encoding":"base64",
"env":{"A":"b"},"timeout":"1.5s","grace":2,"cpus":0.5,"cpu_time":"3s","memory":"1.5GiB","disk":1048576,"inodes":100,"pids":7,
"open_files":64,"output_limit":"1k","kill_on_output":true,"compile_timeout":4,"compile_memory":"1g",
"in":[{"path":"i","content":"/w==","encoding":"base64","mode":"0755"},{"path":"l","link":"i"}],"out":["*.png"],"workdir":"/tmp",
"net_rate":"1m","net_bytes":"1g","net_connections":9,"compile_network":"full",
"network":{"mode":"allow","allow":["a.example"],"deny":["b.example"],"registries":["npm"],"dns":true,"publish":["8080:80"]},
"scratch":"memory","writable_root":true,"hostname":"h","uid":2000,"require":"gvisor","strict":true,"merge_output":true,"labels":{"l":"m"},
"no_cache":true,"commands":["ls"],"forbid_imports":["os"],
"release":true,"edition":"2021","test":true,"enable_assertions":true,"module":"m",
"setup":["s.sql"],"tty":{"rows":24,"cols":80},"volumes":["/a:/b:rw"],"image":"im"}`

func TestRequest(t *testing.T) {
	run, err := Decode([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	req, err := run.Request()
	if err != nil {
		t.Fatal(err)
	}
	stdin, _ := io.ReadAll(req.Stdin)
	if string(stdin) != "x" {
		t.Errorf("stdin %q", stdin)
	}
	req.Stdin = nil
	want := executor.Request{
		Language: "python", Code: "x", Name: "n.py", Entry: "e", Image: "im", Args: []string{"a"}, Env: map[string]string{"A": "b"},
		NoCache: true,
		Limits: sandbox.Limits{
			Wall: 1500 * time.Millisecond, Grace: 2 * time.Second, CPUs: 0.5, CPUTime: 3 * time.Second, Memory: 1536 * sandbox.MiB,
			Disk:   sandbox.MiB,
			Inodes: 100, Processes: 7, OpenFiles: 64, Output: sandbox.KiB,
			NetRate: sandbox.MiB, NetBytes: sandbox.GiB, NetConnections: 9,
		},
		CompileLimits: sandbox.Limits{Wall: 4 * time.Second, Memory: sandbox.GiB},
		Policy: executor.Policy{
			Network: network.Policy{Mode: network.Allow, Allow: []string{"a.example"}, Deny: []string{"b.example"},
				Registries: []string{"npm"}, DNS: true, Publish: []string{"8080:80"}},
			CompileNetwork: network.Policy{Mode: network.Full},
			Volumes:        []sandbox.Volume{{Source: "/a", Target: "/b", Writable: true}}, Workdir: "/tmp",
			Scratch:      sandbox.ScratchMemory,
			WritableRoot: true, Hostname: "h", User: sandbox.User{UID: 2000}, Require: sandbox.TierGVisor, Strict: true, KillOnOutput: true,
			MergeOutput: true, Labels: map[string]string{"l": "m"},
		},
		Options: executor.LanguageOptions{Commands: []string{"ls"}, ForbidImports: []string{"os"}, Release: true, Edition: "2021", Test: true,
			EnableAssertions: true, Module: "m", Setup: []string{"s.sql"}},
		Inputs:  []executor.File{{Path: "i", Mode: 0o755, Data: []byte{0xff}}, {Path: "l", Link: "i"}},
		Outputs: sandbox.Selection{Patterns: []string{"*.png"}},
		TTY:     &sandbox.TTY{Rows: 24, Cols: 80},
	}
	if d := cmp.Diff(want, req, cmpopts.IgnoreUnexported(executor.Request{})); d != "" {
		t.Error(d)
	}
	// What a client writes, a server reads.
	text, err := json.Marshal(run)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(text)
	if err != nil || !reflect.DeepEqual(run, again) {
		t.Errorf("%v: %s", err, text)
	}
}

// TestEveryField: no field of the engine's request is out of reach, but for what only a program can give.
func TestEveryField(t *testing.T) {
	run, err := Decode([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	req, err := run.Request()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := map[string]bool{"Files": true, "HostDir": true, "Tests": true, "Asker": true, "Evidence": true, "Template": true, "Variables": true, "Lower": true,
		"OnPlan": true, "OnReady": true, "OnEvent": true, "Spill": true, "OutputSpace": true, "Resize": true, "Signals": true}
	v := reflect.ValueOf(req)
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() && v.Field(i).IsZero() && !elsewhere[field.Name] {
			t.Errorf("%s can not be asked for", field.Name)
		}
	}
	if v := reflect.ValueOf(req.Limits); true {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("the limit %s can not be asked for", v.Type().Field(i).Name)
			}
		}
	}
}

func TestUploadsAndTemplates(t *testing.T) {
	run := &Run{Files: []File{{Path: "a.py", ID: "u"}}}
	if _, err := run.Request(); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("%v", err)
	}
	req, err := run.RequestWith(func(id string) (func() (io.ReadCloser, error), error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(id)), nil }, nil
	})
	if err != nil || req.Files[0].Open == nil {
		t.Errorf("%v", err)
	}
	run.Files[0].Content = "x"
	if _, err := run.RequestWith(nil); err == nil || !strings.Contains(err.Error(), "both") {
		t.Errorf("%v", err)
	}
	if _, err := (&Run{Template: "there-is-none", Language: "python"}).Request(); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// TestUnits: what is written in another way means the same.
func TestUnits(t *testing.T) {
	for text, want := range map[string]time.Duration{`1`: time.Second, `"1"`: time.Second, `0.25`: 250 * time.Millisecond, `"1m"`: time.Minute,
		`1e1`: 10 * time.Second, `"1.5s"`: 1500 * time.Millisecond} {
		var d Duration
		if err := json.Unmarshal([]byte(text), &d); err != nil || time.Duration(d) != want {
			t.Errorf("%s: %v, %v", text, time.Duration(d), err)
		}
	}
	for text, want := range map[string]sandbox.Size{`1`: 1, `"1k"`: 1024, `1e3`: 1000, `1.5e1`: 15, `"1.5 MiB"`: 1536 * sandbox.KiB,
		`9223372036854775807`: 1<<63 - 1} {
		var s Size
		if err := json.Unmarshal([]byte(text), &s); err != nil || sandbox.Size(s) != want {
			t.Errorf("%s: %v, %v", text, s, err)
		}
	}
	for _, text := range []string{`0`, `-1`, `1.5`, `9223372036854775808`, `18446744073709551616`, `1e19`, `"x"`, `{}`, `[]`, `true`,
		`"1e3"`} {
		var s Size
		if err := json.Unmarshal([]byte(text), &s); err == nil {
			t.Errorf("%s is the size %d", text, s)
		}
	}
	for _, d := range []time.Duration{time.Nanosecond, 1500 * time.Millisecond, 24 * time.Hour, 12345 * time.Microsecond} {
		b, _ := json.Marshal(Duration(d))
		var again Duration
		if err := json.Unmarshal(b, &again); err != nil || time.Duration(again) != d {
			t.Errorf("%v is written as %s and read as %v: %v", d, b, time.Duration(again), err)
		}
	}
}

func TestManyMistakes(t *testing.T) {
	_, err := Decode([]byte(`{"memori":1,"timeout":-1,"files":[{"pth":"x"},{"path":7}],"args":{},"code":["a",{"b":[1]}],"tty":{"rows":"x"}}`))
	var p *Problem
	if !errors.As(err, &p) {
		t.Fatal(err)
	}
	var fields []string
	for _, e := range p.Errors {
		fields = append(fields, e.Field)
	}
	if d := cmp.Diff([]string{"memori", "timeout", "files[0].pth", "files[1].path", "args", "code", "tty.rows"}, fields); d != "" {
		t.Error(d)
	}
	if !strings.Contains(p.Errors[0].Message, "did you mean memory") || p.Status != 422 {
		t.Errorf("%+v", p)
	}
}

// result is one with something in every field.
func result() *executor.Result {
	r := &executor.Result{Language: "python", Version: "3.11",
		Phases: []executor.PhaseResult{{Name: "run", Verdict: sandbox.VerdictSignaled, ExitCode: 1, Limits: sandbox.DefaultLimits()}}}
	r.Result = sandbox.Result{
		Verdict: sandbox.VerdictSignaled, Exit: sandbox.Exit{Code: 1, Signal: 11}, Phase: "run", Limits: sandbox.DefaultLimits(),
		Isolation:  sandbox.NewIsolation("native"),
		Stdout:     sandbox.Output{Head: []byte("a<\xff"), Tail: []byte("z"), Dropped: 5, Total: 9, File: "f"},
		Stderr:     sandbox.Output{Head: []byte("e"), Total: 1},
		Image:      &sandbox.ImageRef{Reference: "r"},
		Violations: []sandbox.Violation{{Kind: "syscall", Name: "mount", Detail: "d", Count: 2}}, Notes: []string{"n"},
	}
	r.Metrics = monitor.Metrics{WallTime: 15e8, MemoryPeak: 7}
	r.Diagnosis = &diagnose.Diagnosis{
		Kind: diagnose.KindKey, Message: "KeyError: 'x'", Frames: []diagnose.Frame{{Function: "f", File: "main.py", Line: 2, User: true}},
		Location: &diagnose.Location{File: "main.py", Line: 2}, Excerpt: "> 2 | x", Cause: "there is no key", Suggestions: []string{"try another"},
	}
	r.Files = []executor.OutputFile{{Path: "a", Mode: 0o644, Data: []byte{0xfe}}, {Path: "b", Reason: "too large"}}
	return r
}

func TestDecodeResult(t *testing.T) {
	text, err := json.Marshal(result())
	if err != nil {
		t.Fatal(err)
	}
	r, err := DecodeResult(text)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := json.Marshal(r)
	if !bytes.Equal(text, again) {
		t.Errorf("it was\n%s\nand is\n%s", text, again)
	}
	if r.Exit.Signal != 11 || string(r.Stdout.Head) != "a<\xff" || string(r.Stdout.Tail) != "z" || r.Stdout.Total != 8+1 {
		t.Errorf("%+v", r.Stdout)
	}
}

// Both exit codes of a result arrive as they were sent, whatever the program made of its end.
func TestDecodeExitCodes(t *testing.T) {
	for _, want := range []sandbox.Result{
		{Verdict: sandbox.VerdictTimeLimit, Exit: sandbox.Exit{Code: 7}},
		{Verdict: sandbox.VerdictTimeLimit, Exit: sandbox.Exit{Signal: 15}},
		{Verdict: sandbox.VerdictCancelled, Exit: sandbox.Exit{Code: 7}, Code: 143},
		{Verdict: sandbox.VerdictCancelled, Exit: sandbox.Exit{Signal: 9}, Code: 129},
		{Verdict: sandbox.VerdictCompileError, Exit: sandbox.Exit{Code: 1}, Phase: "compile"},
		{Verdict: sandbox.VerdictDiskLimit, Exit: sandbox.Exit{Code: 5}, Phase: "compile"},
	} {
		sent, err := json.Marshal(&executor.Result{Result: want})
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeResult(sent)
		if err != nil || got.Exit != want.Exit || got.Code != want.Code || got.ExitCode() != want.ExitCode() {
			t.Errorf("%+v, %d became %+v, %d: %v", want.Exit, want.ExitCode(), got.Exit, got.ExitCode(), err)
		}
	}
	// A server of an earlier version has no program_exit_code.
	old, err := DecodeResult([]byte(`{"verdict":"time_limit","exit_code":7}`))
	if err != nil || old.Exit.Code != 7 || old.ExitCode() != 124 {
		t.Errorf("%+v, %v", old, err)
	}
}

func TestDecodeEvent(t *testing.T) {
	at := time.Now().Round(0)
	for _, ev := range []sandbox.Event{
		{Seq: 1, Time: at, Kind: sandbox.EventPhase, Phase: "run"},
		{Seq: 2, Time: at, Kind: sandbox.EventStdout, Data: []byte("a\xff\n"), Offset: 3, Phase: "run"},
		{Seq: 3, Time: at, Kind: sandbox.EventStderr, Data: []byte("text"), Phase: "compile"},
		{Seq: 4, Time: at, Kind: sandbox.EventViolation, Violation: &sandbox.Violation{Kind: "memory", Detail: "d"}},
		{Seq: 5, Time: at, Kind: sandbox.EventMetric, Metric: &monitor.Sample{At: at, Memory: 5, Processes: 2}},
	} {
		line, err := json.Marshal(ev.Document())
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeEvent(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		again, _ := json.Marshal(got.Document())
		if !bytes.Equal(line, again) {
			t.Errorf("it was\n%s\nand is\n%s", line, again)
		}
	}
	line, _ := json.Marshal(executor.Event{Event: sandbox.Event{Seq: 9, Time: at, Kind: executor.EventResult}, Result: result()})
	if ev, err := DecodeEvent(line); err != nil || ev.Result == nil || ev.Result.Verdict != sandbox.VerdictSignaled {
		t.Errorf("%v: %s", err, line)
	}
	if NoticeOf(line) != nil || NoticeOf([]byte(`{"kind":"gap","from":1,"to":2}`)) == nil {
		t.Error("a result is no notice, and a gap is one")
	}
}

func TestDefaultSocket(t *testing.T) {
	got := DefaultSocket()
	if os.Geteuid() == 0 && got != "/run/sandbox-run/server.sock" {
		t.Error(got)
	}
	if got != "" && !filepath.IsAbs(got) {
		t.Error(got)
	}
}

func TestSignalNumber(t *testing.T) {
	if n := SignalNumber("SIGINT"); n != 2 {
		t.Error(n)
	}
	if n := SignalNumber("INT"); n != 0 {
		t.Error(n)
	}
}

// FuzzDecode: whatever is sent, the answer is a run or a problem; and what encoding/json understands otherwise is not let through.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{full, `{}`, `{"code":"\ud83d\ude00"}`, `{"code":"a","code":"b"}`, `{"vars":{"a":[1,{"b":null}]}}`,
		`{"memory":1e3}`, `{"x":{"y":[[]]},"code":1}`, `{"tty":null,"files":null}`, "{\"code\":\"\xff\"}", `[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		run, err := Decode(b)
		if err != nil {
			var p *Problem
			if !errors.As(err, &p) || p.Status != 400 && p.Status != 422 || p.Status == 422 && len(p.Errors) == 0 {
				t.Fatalf("%v", err)
			}
			return
		}
		type tagged Run // without its own UnmarshalJSON
		var plain Run
		var settings map[string]json.RawMessage
		err = errors.Join(json.Unmarshal(b, (*tagged)(&plain)), json.Unmarshal(b, &settings))
		for _, s := range plain.Settings() {
			if text, given := settings[s.Name]; given {
				err = errors.Join(err, json.Unmarshal(text, s.Value))
			}
		}
		if err != nil || !reflect.DeepEqual(*run, plain) {
			t.Fatalf("%q: %v\n%+v\n%+v", b, err, *run, plain)
		}
		_, _ = run.Request()
	})
}

// FuzzRead: what a server sends may be anything, too.
func FuzzRead(f *testing.F) {
	text, _ := json.Marshal(result())
	f.Add(text)
	f.Add([]byte(`{"seq":1,"kind":"stdout","data":"x"}`))
	f.Add([]byte(`{"seq":1,"kind":"stdout","data":"x","encoding":"base64"}`))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = DecodeEvent(b)
		_, _ = DecodeResult(b)
		_ = NoticeOf(b)
	})
}

// TestNetworkField: errors in an object of rules name the field in it, and no request says what its operator allows.
func TestNetworkField(t *testing.T) {
	for text, says := range map[string]string{
		`{"network":"none"}`: "", `{"network":null}`: "", `{"network":{}}`: "", `{"compile_network":{"allow":["a.example"]}}`: "",
		`{"network":{"alow":["a.example"]}}`:        "network.alow: there is no such field; did you mean allow?",
		`{"network":{"Allow":["a.example"]}}`:       "network.Allow: there is no such field",
		`{"network":{"deny":["a"],"deny":[]}}`:      "network.deny: it is given twice",
		`{"compile_network":{"allow":"a.example"}}`: "compile_network.allow: it has to be a list of texts",
		`{"network":7}`:                             "network: it has to be the name of a mode, or an object",
		`{"network":["none"]}`:                      "network: it has to be the name of a mode, or an object",
		`{"network":{"bounds":{}}}`:                 "network.bounds: there is no such field",
		`{"bounds":{}}`:                             "bounds: there is no such field",
		`{"network":"host"}`:                        `network: unknown mode "host"`,
		`{"network":{"allow":["http://a"]}}`:        `network: allow: rule "http://a": it has a scheme`,
		`{"compile_network":{"allow":["a:0"]}}`:     `compile-network: allow: rule "a:0"`, // the server writes the field's name
		`{"network":{"mode":"none","allow":["a"]}}`: "network: rules do not fit the mode none",
	} {
		run, err := Decode([]byte(text))
		if err == nil {
			_, err = run.Request()
		}
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

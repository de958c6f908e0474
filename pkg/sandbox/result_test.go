package sandbox

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

func fields(t *testing.T, v any) map[string]any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// The names are stable (DESIGN.md, "The result, as JSON"). These lists are written by hand.
func TestResultNames(t *testing.T) {
	m := fields(t, &Result{Verdict: VerdictSignaled, Exit: Exit{Signal: 9},
		Metrics: monitor.Metrics{WallTime: monitor.Seconds(1500 * time.Millisecond), MemoryPeak: 7}, Isolation: NewIsolation("x")})
	for _, name := range strings.Fields("success verdict exit_code program_exit_code signal stdout stderr stdout_truncated stderr_truncated " +
		"execution_time memory_used metrics limits isolation violations") {
		if _, ok := m[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	metrics := m["metrics"].(map[string]any)
	want := strings.Fields("wall_time cpu_time cpu_user cpu_system memory_peak io_read_bytes io_write_bytes processes_peak " +
		"oom_kills throttled_time startup_time cpu_percent")
	if got := slices.Sorted(maps.Keys(metrics)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("metrics %q", got)
	}
	if got := slices.Sorted(maps.Keys(m["isolation"].(map[string]any))); !slices.Equal(got,
		[]string{"backend", "controls", "missing", "tier"}) {
		t.Errorf("isolation %q", got)
	}
	if m["execution_time"] != 1.5 || m["memory_used"] != 7.0 || m["success"] != false || m["verdict"] != "signaled" || m["exit_code"] != 137.0 ||
		m["program_exit_code"] != nil {
		t.Errorf("%v", m)
	}
	if s := m["signal"]; s != SignalName(9) {
		t.Errorf("signal %v", s)
	}
	// Lists are lists, also when empty.
	for _, name := range []string{"violations"} {
		if _, ok := m[name].([]any); !ok {
			t.Errorf("%s is %v", name, m[name])
		}
	}
	if _, ok := m["isolation"].(map[string]any)["missing"].([]any); !ok {
		t.Error("missing is no list")
	}
	info := fields(t, Describe(&Error{Op: "x", Kind: ErrRefused, Hint: "y"}))
	if got := slices.Sorted(maps.Keys(info)); !slices.Equal(got, []string{"code", "hint", "message"}) {
		t.Errorf("error %q", got)
	}
	all := []Verdict{
		VerdictOK, VerdictNonzeroExit, VerdictSignaled, VerdictCompileError, VerdictTimeLimit, VerdictCPULimit, VerdictMemoryLimit,
		VerdictDiskLimit,
		VerdictOutputLimit, VerdictCancelled, VerdictInternalError,
	}
	if got := strings.Join(verdictNames(all), " "); got != "ok nonzero_exit signaled compile_error time_limit cpu_limit "+
		"memory_limit disk_limit output_limit cancelled internal_error" {
		t.Errorf("verdicts %s", got)
	}
}

func verdictNames(v []Verdict) (names []string) {
	for _, each := range v {
		names = append(names, string(each))
	}
	return names
}

func TestResultOutput(t *testing.T) {
	m := fields(t, &Result{Verdict: VerdictOK, Stdout: Output{Head: []byte("a\xff\x00"), Total: 3},
		Stderr: Output{Head: []byte("häd"), Tail: []byte("tail"), Dropped: 5, Total: 13, File: "/f"}})
	for name, want := range map[string]any{
		"success": true, "stdout": "Yf8A", "stdout_encoding": "base64", "stdout_truncated": false, "stderr": "hädtail", "stderr_truncated": true,
		"stderr_head_bytes": 4.0, "stderr_dropped_bytes": 5.0, "stderr_file": "/f",
	} {
		if m[name] != want {
			t.Errorf("%s is %v, want %v", name, m[name], want)
		}
	}
	for _, name := range []string{"stderr_encoding", "stdout_head_bytes", "stdout_file", "signal", "notes"} {
		if v, ok := m[name]; ok {
			t.Errorf("%s is %v", name, v)
		}
	}
	// NUL and escapes are text (A6).
	if m := fields(t, &Result{Stdout: Output{Head: []byte("\x00\x1b[31m\r\n")}}); m["stdout"] != "\x00\x1b[31m\r\n" ||
		m["stdout_encoding"] != nil {
		t.Errorf("%q", m["stdout"])
	}
}

// Joining head and tail must not write into the head's array.
func TestOutputBytesDoesNotAlias(t *testing.T) {
	head := append(make([]byte, 0, 10), "ab"...)
	o := Output{Head: head, Tail: []byte("cd")}
	if string(o.Bytes()) != "abcd" || string(head[:4]) == "abcd" {
		t.Errorf("%q, %q", o.Bytes(), head[:4])
	}
}

func TestViolations(t *testing.T) {
	if v := violationsOf(facts{}, monitor.Metrics{}, DefaultLimits(), NetworkNone, Output{}, Output{}); v != nil {
		t.Errorf("%+v", v)
	}
	got := violationsOf(facts{wallHit: true, cpuHit: true, noRoutes: 4}, monitor.Metrics{OOMKills: 2, ProcessLimitHits: 3, DiskFull: true},
		DefaultLimits(), NetworkNone, Output{Dropped: 1, Total: 9}, Output{Dropped: 4, Total: 5})
	var kinds []string
	for _, v := range got {
		kinds = append(kinds, v.Kind)
		if v.Detail == "" || v.Count == 0 || !strings.HasPrefix(v.Allow, "--") {
			t.Errorf("%+v", v)
		}
	}
	if !slices.Equal(kinds, []string{"timeout", "cpu_time", "memory", "pids", "disk", "network", "output_limit", "output_limit"}) ||
		got[2].Count != 2 || got[3].Count != 3 || got[5].Count != 4 {
		t.Errorf("%+v", got)
	}
}

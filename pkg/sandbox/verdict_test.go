package sandbox

import (
	"strings"
	"syscall"
	"testing"
)

func TestJudge(t *testing.T) {
	failed, killed := Exit{Code: 3}, Exit{Signal: 9}
	for _, c := range []struct {
		f    facts
		want Verdict
	}{
		{facts{}, VerdictOK},
		{facts{exit: failed}, VerdictNonzeroExit},
		{facts{exit: killed}, VerdictSignaled},
		{facts{cancelled: true, wallHit: true, cpuHit: true, outputKilled: true, oomKills: 1, diskFull: true, exit: killed}, VerdictCancelled},
		{facts{wallHit: true, cpuHit: true, outputKilled: true, oomKills: 1, diskFull: true, exit: killed}, VerdictTimeLimit},
		{facts{cpuHit: true, outputKilled: true, oomKills: 1, diskFull: true, exit: killed}, VerdictCPULimit},
		{facts{outputKilled: true, oomKills: 1, diskFull: true, exit: killed}, VerdictMemoryLimit},
		{facts{outputKilled: true, diskFull: true, exit: killed}, VerdictDiskLimit},
		{facts{outputKilled: true, exit: killed}, VerdictOutputLimit},
		// A reached limit explains a failure, and nothing else.
		{facts{oomKills: 1}, VerdictOK},
		{facts{diskFull: true}, VerdictOK},
		{facts{oomKills: 1, diskFull: true}, VerdictOK},
		{facts{oomKills: 1, exit: failed}, VerdictMemoryLimit},
		{facts{diskFull: true, exit: failed}, VerdictDiskLimit},
		// The order to end decides the verdict, also if the program exits with 0.
		{facts{cancelled: true}, VerdictCancelled},
		{facts{wallHit: true}, VerdictTimeLimit},
		{facts{cpuHit: true}, VerdictCPULimit},
		{facts{outputKilled: true}, VerdictOutputLimit},
		{facts{overfull: true}, VerdictDiskLimit},
	} {
		if got := judge(c.f); got != c.want {
			t.Errorf("%+v is %s, want %s", c.f, got, c.want)
		}
	}
}

// Every verdict stands once in the table, and a limit's verdict says which and how to allow more.
func TestVerdictTable(t *testing.T) {
	seen := map[Verdict]bool{}
	for _, v := range Verdicts() {
		info := v.Info()
		if seen[v] || info.Verdict != v {
			t.Errorf("%q stands twice in the table", v)
		}
		seen[v] = true
		if info.Violation == "" {
			continue
		}
		why := info.Explain(&Result{Limits: DefaultLimits()}, "program", "--")
		if !strings.Contains(why, "the program ") || !strings.Contains(why, "to allow more: --") || strings.ContainsAny(why, "{}") {
			t.Errorf("%s: %q", v, why)
		}
	}
	if unknown := Verdict("unknown").Info(); unknown.Why != "" || unknown.Code != 0 || seen["unknown"] || !seen[VerdictOK] {
		t.Errorf("%+v", unknown)
	}
}

func TestCLICode(t *testing.T) {
	for _, c := range []struct {
		v    Verdict
		e    Exit
		want int
	}{
		{VerdictOK, Exit{}, 0}, {VerdictNonzeroExit, Exit{Code: 42}, 42}, {VerdictSignaled, Exit{Signal: 9}, 137},
		{VerdictSignaled, Exit{Signal: 11}, 139},
		{VerdictTimeLimit, Exit{Signal: 9}, 124}, {VerdictTimeLimit, Exit{}, 124}, {VerdictCPULimit, Exit{Signal: 15}, 124},
		{VerdictMemoryLimit, Exit{Code: 1}, 137},
		{VerdictDiskLimit, Exit{Code: 5}, 5}, {VerdictDiskLimit, Exit{Signal: 7}, 135}, {VerdictOutputLimit, Exit{Signal: 9}, 143},
		{VerdictOutputLimit, Exit{}, 143}, {VerdictCompileError, Exit{Code: 2}, 1},
		{VerdictCancelled, Exit{Signal: 15}, 130}, {VerdictInternalError, Exit{}, 125},
	} {
		if got := CLICode(c.v, c.e); got != c.want {
			t.Errorf("%s %+v is %d, want %d", c.v, c.e, got, c.want)
		}
	}
}

func TestSignalName(t *testing.T) {
	if got := SignalName(0); got != "" {
		t.Errorf("%q", got)
	}
	if got := SignalName(40); got != "signal 40" {
		t.Errorf("%q", got)
	}
	if got := SignalName(int(syscall.SIGKILL)); got != "SIGKILL" && got != "signal 9" {
		t.Errorf("%q", got)
	}
}

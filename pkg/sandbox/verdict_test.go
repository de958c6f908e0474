package sandbox

import (
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
		// A limit that was touched explains a failure, and nothing else.
		{facts{oomKills: 1}, VerdictOK},
		{facts{diskFull: true}, VerdictOK},
		{facts{oomKills: 1, diskFull: true}, VerdictOK},
		{facts{oomKills: 1, exit: failed}, VerdictMemoryLimit},
		{facts{diskFull: true, exit: failed}, VerdictDiskLimit},
		// Who was told to end is judged by that, even if it said goodbye nicely.
		{facts{cancelled: true}, VerdictCancelled},
		{facts{wallHit: true}, VerdictTimeLimit},
		{facts{cpuHit: true}, VerdictCPULimit},
		{facts{outputKilled: true}, VerdictOutputLimit},
	} {
		if got := judge(c.f); got != c.want {
			t.Errorf("%+v is %s, want %s", c.f, got, c.want)
		}
	}
}

func TestCLICode(t *testing.T) {
	for _, c := range []struct {
		v    Verdict
		e    Exit
		want int
	}{
		{VerdictOK, Exit{}, 0}, {VerdictNonzeroExit, Exit{Code: 42}, 42}, {VerdictSignaled, Exit{Signal: 9}, 137}, {VerdictSignaled, Exit{Signal: 11}, 139},
		{VerdictTimeLimit, Exit{Signal: 9}, 124}, {VerdictTimeLimit, Exit{}, 124}, {VerdictCPULimit, Exit{Signal: 15}, 124}, {VerdictMemoryLimit, Exit{Code: 1}, 137},
		{VerdictDiskLimit, Exit{Code: 5}, 5}, {VerdictDiskLimit, Exit{Signal: 7}, 135}, {VerdictOutputLimit, Exit{Signal: 9}, 143}, {VerdictOutputLimit, Exit{}, 143}, {VerdictCompileError, Exit{Code: 2}, 1},
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

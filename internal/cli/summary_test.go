package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestSuggestMemory(t *testing.T) {
	s := &outcome{machine: sandbox.Machine{Memory: 4 * sandbox.GiB}}
	for limit, want := range map[sandbox.Size]string{
		64 * sandbox.MiB: " 128m", 100 * sandbox.MiB: " 128m", 512 * sandbox.MiB: " 1g", 3 * sandbox.GiB: " 4g", 4 * sandbox.GiB: "",
	} {
		if got := s.suggestMemory(limit); got != want {
			t.Errorf("%v: %q, want %q", limit, got, want)
		}
	}
}

// A log says that the network's process ended: the verdict has only the signal.
func TestWarnsOfEndedNetwork(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := &Invocation{Std: Streams{Err: log}}
	c.printWarnings(&sandbox.Result{Verdict: sandbox.VerdictSignaled, Notes: []string{sandbox.NetworkNote + "it ended", "other"}}, &outcome{})
	text, _ := os.ReadFile(log.Name())
	if got := string(text); !strings.Contains(got, "it ended") || strings.Contains(got, "other") {
		t.Errorf("%q", got)
	}
}

// An installation has several steps, which the summary shows as one figure.
func TestSummaryAddsSteps(t *testing.T) {
	step := func(name string, seconds int) executor.PhaseResult {
		p := executor.PhaseResult{Name: name}
		p.Metrics.WallTime = monitor.Seconds(time.Duration(seconds) * time.Second)
		return p
	}
	s := &outcome{headed: true, phases: []executor.PhaseResult{
		step(executor.PhaseInstall, 3), step(executor.PhaseInstall, 1), step(executor.PhaseCompile, 2), step(executor.PhaseRun, 1),
	}}
	figures := strings.Join(listFigures(&sandbox.Result{Phase: executor.PhaseRun}, s), "  ")
	if !strings.HasSuffix(figures, "  install 4s  compile 2s") || strings.Count(figures, "install") != 1 {
		t.Error(figures)
	}
}

// An installation that the user cancels does not need more from an operator.
func TestWhyInstallationEnded(t *testing.T) {
	s := &outcome{noun: "program", cause: interrupt}
	for verdict, want := range map[sandbox.Verdict]string{
		sandbox.VerdictCancelled: "cancelled by Ctrl-C",
		sandbox.VerdictTimeLimit: "the installation of the packages ended with time_limit; fewer packages, or an operator who allows more",
	} {
		if got := s.whyEnded(&sandbox.Result{Phase: executor.PhaseInstall, Verdict: verdict}); got != want {
			t.Errorf("%s: %q", verdict, got)
		}
	}
}

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// doctor --attack runs the whole suite, and no attack succeeds.
func TestAttackCommand(t *testing.T) {
	needRoot(t)
	began := time.Now()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary(t), "doctor", "--attack", "--json")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	took := time.Since(began)
	t.Logf("took %v", took)
	var r attack.Report
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
		t.Fatalf("%v, %v: %.500s %s", err, jsonErr, out, stderr.String())
	}
	for _, res := range r.Results {
		if res.Outcome != attack.Held && !(res.ID == "S3" && res.Outcome == attack.NotApplicable) {
			t.Errorf("%s %s: %s", res.ID, res.Outcome, res.Detail)
		}
		control := slices.ContainsFunc(res.Probes, func(p attack.Probe) bool { return p.Control != "" }) || res.ID == "F14" || res.ID == "R10"
		if res.Outcome == attack.Held && (len(res.Probes) == 0 || !control) {
			t.Errorf("%s has no control: %+v", res.ID, res.Probes)
		}
		if len(res.Health.Residue) > 0 {
			t.Errorf("%s left %q", res.ID, res.Health.Residue)
		}
	}
	if err != nil || !r.OK || r.Backend != "native" || r.Tier != sandbox.TierContainer || len(r.Results) != len(attack.IDs()) {
		t.Errorf("%v, %s, %s, %s, %d of %d cases; %s", err, r.Grade, r.Backend, r.Tier, len(r.Results), len(attack.IDs()), stderr.String())
	}
	if os.Geteuid() == 0 && len(r.Isolation.Missing) == 0 && r.Grade != attack.GradeA {
		t.Errorf("grade %s", r.Grade)
	}
	// The documented 90 seconds hold for an idle machine; this one runs other tests.
	if took > 6*time.Minute {
		t.Errorf("took %v", took)
	}
	for _, name := range []string{
		"ok", "grade", "backend", "tier", "counts", "results", "id", "title", "result", "detail", "probes", "got", "control", "held", "health",
		"lateness_ms", "residue", "seconds", "not_applicable",
	} {
		if !bytes.Contains(out, []byte(`"`+name+`":`)) {
			t.Errorf("no %s in the document", name)
		}
	}
}

// Ctrl-C ends the suite and leaves nothing behind.
func TestAttackInterrupted(t *testing.T) {
	needRoot(t)
	var stderr bytes.Buffer
	cmd := command(t, "doctor", "--attack")
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4)
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "F1  " {
		t.Errorf("%q, %v", first, err)
	}
	go io.Copy(io.Discard, out)
	time.Sleep(100 * time.Millisecond)
	var claims []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "/run/sandbox-run/s") {
			claims = append(claims, to)
		}
	}
	if len(claims) == 0 {
		t.Error("it was not at work: this proves nothing")
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d", code)
	}
	if !strings.HasSuffix(stderr.String(), "sandbox-run: cancelled by Ctrl-C\n") {
		t.Errorf("stderr %q", stderr.String())
	}
	for _, c := range claims {
		if _, err := os.Lstat(c); err == nil {
			t.Errorf("%s is left", c)
		}
	}
	left, _ := filepath.Glob("/var/tmp/sandbox-attack-*")
	for _, d := range left {
		f, err := os.Open(d)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil { // the directory of a live suite is locked
			t.Errorf("%s is left", d)
		}
		f.Close()
	}
}

// An ordinary user's supervisor ends all processes of a fork bomb, although it has no cgroups (R1).
func TestAttackNotRoot(t *testing.T) {
	needRoot(t)
	testenv.NeedAll(t, "TestScript/doctor_attack, as root")
	cmd := exec.CommandContext(t.Context(), binary(t), "doctor", "--attack", "--json", "--backend", "process")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.Output()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs an executable that everybody can reach: ", err)
	}
	var r attack.Report
	if jsonErr := json.Unmarshal(out, &r); err != nil || jsonErr != nil || !r.OK || r.Grade != attack.GradeD {
		t.Errorf("%v, %v, %s %+v", err, jsonErr, r.Grade, r.Counts)
	}
	for _, res := range r.Results {
		if res.Outcome != attack.Held && res.Outcome != attack.NotApplicable {
			t.Errorf("%s %s: %s", res.ID, res.Outcome, res.Detail)
		}
	}
}

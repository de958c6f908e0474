package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/testnet"
)

// TestMain lets the test executable be the probe, as the command is, and the command that runs itself in a test internet.
func TestMain(m *testing.M) {
	if isProbe(os.Args) || testnet.Inside() {
		main()
	}
	goleak.VerifyTestMain(m)
}

// built has the executables in a directory.
func built(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return dir
	}
	bin := t.TempDir()
	build := exec.Command("go", "build", "-tags", "thin", "-o", bin, "../../../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// TestSmoke runs measures of each kind (make test-all: every one), three times each. Its figures mean nothing.
func TestSmoke(t *testing.T) {
	testenv.NeedRoot(t)
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine, and nothing to measure on an emulated processor")
	}
	only, want := "^(library|command|idle|audit|inits|crowd)$", 8
	if testenv.All() {
		only, want = "", 75
	}
	report := filepath.Join(t.TempDir(), "report.json")
	var out, progress strings.Builder
	if code := run(t.Context(), []string{"-smoke", "-only", only, "-bin", built(t), "-json", report}, &out, &progress); code != exitMet {
		t.Fatalf("code %d\n%s", code, progress.String())
	}
	t.Log("\n" + progress.String() + out.String())
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	barred := 0
	for _, row := range r.Rows {
		if row.Bar != nil {
			barred++
		}
		// How much memory the machine has left changes for other reasons, too.
		if row.Ours.N == 0 || row.Ours.P50 == 0 && row.Bar != nil {
			t.Errorf("%s: nothing was measured", row.Name)
		}
	}
	if barred != want {
		t.Errorf("%d rows have a bar, want %d (of all 75: 9 of the sandbox alone, one of tests, 4 of packages, 14 of sessions, 5 of its neighbours, 5 of networks, 11 of languages, "+
			"2 of images, one of unpacking, 2 of Docker, one of an OCI runtime, "+
			"one of the log, 9 of requests to a server, 6 of one under pressure, 2 of idle ones, 2 of agents)", barred, want)
	}
	if left, _ := filepath.Glob("/var/cache/sandbox-run-bench-*"); len(left) > 0 {
		// Another benchmark may be running; its directory can not be distinguished.
		t.Logf("left or in use: %v", left)
	}
}

// TestAgainstSmoke compares the executables with themselves (make test-all: in every row). Its figures mean nothing.
func TestAgainstSmoke(t *testing.T) {
	testenv.NeedRoot(t)
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine, and nothing to measure on an emulated processor")
	}
	only, want := "^(version|start)$", []string{"sandbox-run version,", "sandbox-run exec -- true,"}
	if testenv.All() {
		only = ""
		for _, language := range []string{"python", "shell", "javascript", "sql", "go"} {
			want = append(want, language+" hello, the whole command")
		}
		for _, language := range []string{"python", "shell", "javascript", "sql"} {
			want = append(want, language+" hello, HTTP")
		}
		want = append(want, "throughput of Python hello")
	}
	bin, report := built(t), filepath.Join(t.TempDir(), "report.json")
	args := []string{"-smoke", "-only", only, "-bin", bin, "-against", bin, "-json", report}
	var out, progress strings.Builder
	if code := run(t.Context(), args, &out, &progress); code != exitMet {
		t.Fatalf("code %d\n%s", code, progress.String())
	}
	t.Log("\n" + progress.String() + out.String())
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if row.Bar == nil || !row.Bar.OfInterval || row.Versus != "old" || row.Reference == nil || row.Ours.P50 <= 0 || row.Reference.P50 <= 0 {
			t.Errorf("%s: no comparison: %+v", row.Name, row)
		}
		want = slices.DeleteFunc(want, func(name string) bool { return strings.HasPrefix(row.Name, name) })
	}
	if len(want) > 0 {
		t.Errorf("no rows for %q", want)
	}
}

func TestAgainstRefuses(t *testing.T) {
	testenv.NeedRoot(t)
	bin := built(t)
	o, err := parse([]string{"-smoke", "-bin", bin, "-against", t.TempDir()}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := measure(t.Context(), o, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "the old version") {
		t.Errorf("without older executables: %v", err)
	}
}

// TestVersions holds that two versions share no directory, socket or init.
func TestVersions(t *testing.T) {
	testenv.NeedRoot(t)
	t.Setenv("SANDBOX_RUN_INIT", "/new/sandbox-init")
	t.Setenv("XDG_CACHE_HOME", "/shared")
	s := &environment{options: &options{against: "/old"}, cli: "/new/sandbox-run"}
	sides, remove, err := s.versions()
	if err != nil {
		t.Fatal(err)
	}
	directories := []string{"XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"}
	seen := map[string]bool{}
	for _, v := range sides {
		for _, entry := range v.environ() {
			name, _, _ := strings.Cut(entry, "=")
			if !strings.HasPrefix(name, "SANDBOX_RUN_") && !slices.Contains(directories, name) {
				continue
			}
			if seen[entry] || !strings.Contains(entry, v.dir+"/") {
				t.Errorf("%s version: %s is not its own", v.name, entry)
			}
			seen[entry] = true
		}
	}
	if len(seen) != 8 {
		t.Errorf("variables: %v", seen)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(sides[0].dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

// TestSoakSmoke soaks for a moment: growth is zero, and measured.
func TestSoakSmoke(t *testing.T) {
	testenv.NeedRoot(t)
	testenv.NeedAll(t, "TestSmoke")
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine")
	}
	var out, progress strings.Builder
	if code := run(t.Context(), []string{"-smoke", "-only", "^soak$", "-soak", "2s", "-bin", built(t)}, &out, &progress); code != exitMet {
		t.Fatalf("code %d\n%s", code, progress.String())
	}
	for _, what := range []string{"memory", "descriptors", "cgroups", "mounts"} {
		if !strings.Contains(out.String(), "soak: growth of the server's "+what) {
			t.Errorf("no %s:\n%s", what, out.String())
		}
	}
}

func TestMeasureRefuses(t *testing.T) {
	testenv.NeedRoot(t)
	o, err := parse([]string{"-smoke", "-bin", t.TempDir()}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := measure(context.Background(), o, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without executables: %v", err)
	}
}

func TestProbe(t *testing.T) {
	for _, work := range []string{"cpu", "syscalls"} {
		var out strings.Builder
		if code := probe([]string{work}, &out); code != exitMet {
			t.Fatalf("%s: code %d, %s", work, code, out.String())
		}
		s, err := selfTimed([]byte(out.String()))
		if err != nil || s.Wall <= 0 {
			t.Errorf("%s: %v, %v", work, s, err)
		}
	}
	if probe([]string{"nonsense"}, &strings.Builder{}) != exitFailed {
		t.Error("unknown work succeeds")
	}
	for _, bad := range []string{"", "x", "-5", "0"} {
		if _, err := selfTimed([]byte(bad)); err == nil {
			t.Errorf("%q is a time", bad)
		}
	}
}

func TestSumInits(t *testing.T) {
	trace := "init internal/bytealg @0.008 ms, 0.12 ms clock, 0 bytes, 0 allocs\nnoise\ninit runtime @0.1 ms, 0.25 ms clock, 0 bytes, 0 " +
		"allocs\n"
	if ms, n := sumInits(trace); math.Abs(ms-0.37) > 1e-9 || n != 2 {
		t.Errorf("got %v ms of %d packages", ms, n)
	}
}

func TestMegabytes(t *testing.T) {
	text := []byte("Rss:  9 kB\nPss:   1000 kB\nBad: x kB\n")
	if v, err := megabytes(text, "Pss:"); err != nil || v != 1.024 {
		t.Errorf("got %v, %v", v, err)
	}
	for _, bad := range []string{"None:", "Bad:"} {
		if _, err := megabytes(text, bad); err == nil {
			t.Errorf("%s was found", bad)
		}
	}
}

func TestChildren(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pids, err := children()
	found := false
	for _, pid := range pids {
		found = found || pid == cmd.Process.Pid
	}
	if err != nil || !found {
		t.Errorf("child %d is not among %v, %v", cmd.Process.Pid, pids, err)
	}
	if _, err := pssOf(strconv.Itoa(cmd.Process.Pid)); err != nil {
		t.Error(err)
	}
	if word("/proc/none", 0) != "?" {
		t.Error("a file that is not there has words")
	}
}

func TestProgramFails(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s := &environment{null: null}
	if err := s.program("/usr/bin/false").run(); err == nil {
		t.Error("false succeeds")
	}
	if err := s.program("/none/such").run(); err == nil {
		t.Error("a program that is not there runs")
	}
	out, err := s.program("/usr/bin/env").output()
	if err != nil || !strings.Contains(string(out), "LANG=C.UTF-8") {
		t.Errorf("got %q, %v", out, err)
	}
}

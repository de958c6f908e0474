package docker

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// executables is where the commands are.
func executables(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("SANDBOX_RUN_TEST_BIN")
	if bin == "" {
		bin = filepath.Join(engines.dir, "bin")
		cmd := exec.Command("go", "build", "-tags", "thin", "-buildvcs=false", "-o", bin+"/", "github.com/sandbox-run/sandbox-run/cmd/...")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return bin
}

// An operator attacks containers of an image.
func TestDoctorAttack(t *testing.T) {
	testenv.NeedAll(t, "TestAttackSuite")
	e := engines.start(t, "docker")
	t.Cleanup(func() { e.nothingLeft(t) })
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(executables(t), "sandbox-run"), "doctor", "--attack", "--json", "--backend",
		"docker", "--image", testImage)
	cmd.Env, cmd.Stderr = append(os.Environ(), "DOCKER_HOST="+e.host), &stderr
	out, err := cmd.Output()
	var r attack.Report
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil || r.Backend != Name || len(r.Results) != len(attack.IDs()) ||
		r.Counts.Breached > 0 {
		t.Errorf("%v, %v: %s %+v, %d results: %.300s %s", err, jsonErr, r.Grade, r.Counts, len(r.Results), out, stderr.String())
	}
	for _, res := range r.Results {
		t.Logf("%-4s %s (%.2f s): %s", res.ID, res.Outcome, res.Seconds, res.Detail)
		if res.Outcome == attack.Error {
			t.Errorf("%s: %s", res.ID, res.Detail)
		}
	}
}

// The whole command with either engine: the thin executable finds the full one, code is copied in, output and files are copied out.
func TestCommand(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		bin := executables(t)
		dir := t.TempDir()
		run := func(stdin string, args ...string) (stdout, stderr string, code int) {
			cmd := exec.Command(filepath.Join(bin, "sandbox-run"), args...)
			cmd.Env = append(os.Environ(), "SANDBOX_RUN_BACKEND=docker", "SANDBOX_RUN_DOCKER_HOST="+e.host, "SANDBOX_RUN_IMAGE="+testImage)
			cmd.Dir, cmd.Stdin = dir, bytes.NewReader([]byte(stdin))
			var out, diagnostics bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &diagnostics
			err := cmd.Run()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			return out.String(), diagnostics.String(), cmd.ProcessState.ExitCode()
		}
		program := "import sys\nopen('made.txt', 'w').write(sys.stdin.read().upper())\nprint('hello', sys.argv[1])\nsys.exit(3)\n"
		if err := os.WriteFile(filepath.Join(dir, "main.py"), []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := run("typed", "--quiet", "--out", "made.txt", "main.py", "--", "you")
		if made, err := os.ReadFile(filepath.Join(dir, "made.txt")); stdout != "hello you\n" || code != 3 || string(made) != "TYPED" {
			t.Errorf("%q, %q, %d; made %q, %v", stdout, stderr, code, made, err)
		}
		stdout, stderr, _ = run("", "--json", "--memory", "64MiB", "--lang", "python", "--code", "x = bytearray(300 << 20)")
		var doc struct {
			Verdict   sandbox.Verdict `json:"verdict"`
			Isolation struct {
				Backend string       `json:"backend"`
				Tier    sandbox.Tier `json:"tier"`
			} `json:"isolation"`
		}
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || doc.Verdict != sandbox.VerdictMemoryLimit ||
			doc.Isolation.Backend != Name || doc.Isolation.Tier != sandbox.TierContainer {
			t.Errorf("%+v, %v: %s%s", doc, err, stdout, stderr)
		}
		if stdout, stderr, code = run("", "exec", "--quiet", "--", "id", "-u"); stdout != "1000\n" || code != 0 {
			t.Errorf("%q, %q, %d", stdout, stderr, code)
		}
	})
}

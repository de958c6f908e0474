package conformance

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testnet"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Networks tests the networks with rules of a backend, in a test internet. bin is the directory of the executables.
func Networks(t *testing.T, bin string, newBackend func(*testing.T) sandbox.Backend, expect Expectations) {
	t.Helper()
	if !InInternet(t) {
		return
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	runRows(t, newBackend, expect, networkRows)
}

// InInternet runs a test in a test internet, by executing the test binary again, and reports whether that is where it is now. A caller
// that gets false returns.
func InInternet(t *testing.T) bool {
	t.Helper()
	if testnet.Inside() {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v")
	for _, arg := range os.Args {
		if strings.HasPrefix(arg, "-test.gocoverdir=") || strings.HasPrefix(arg, "-test.timeout=") {
			cmd.Args = append(cmd.Args, arg)
		}
	}
	testnet.Wrap(exe, cmd)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if why, unavailable := testnet.Unavailable(err, stderr.String()); unavailable {
		t.Skip("no test internet: ", why)
	}
	t.Logf("%s%s", stdout.Bytes(), stderr.Bytes())
	if err != nil || !strings.Contains(stdout.String(), "--- PASS: "+t.Name()+" (") {
		t.Errorf("in the test internet: %v", err)
	}
	return false
}

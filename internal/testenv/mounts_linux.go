package testenv

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// OwnMounts runs a test that mounts file systems in a mount namespace of its own, by executing the test binary again, and reports whether
// that is where it is now. A caller that gets false returns. Other tests look for mounts that were left behind.
func OwnMounts(t *testing.T) bool {
	t.Helper()
	const variable = "SANDBOXTEST_OWN_MOUNTS"
	if os.Getenv(variable) != "" {
		return true
	}
	NeedRoot(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	for _, arg := range os.Args {
		if strings.HasPrefix(arg, "-test.gocoverdir=") {
			cmd.Args = append(cmd.Args, arg)
		}
	}
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	switch {
	case err != nil:
		t.Error(err)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()+" ("):
		t.Skip("see above")
	case !strings.Contains(string(out), "--- PASS: "+t.Name()+" ("):
		t.Error("the test did not run in a mount namespace of its own")
	}
	return false
}

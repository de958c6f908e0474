package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// RunTypeScriptAgent uses a server of the Model Context Protocol with the official TypeScript SDK: a URL with the key, or a command. It
// installs the SDK from the npm registry if it is missing, and fails where that is not possible.
func RunTypeScriptAgent(t testing.TB, revision, key string, server ...string) {
	t.Helper()
	_, self, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(self), "../../scripts/mcp-sdk.sh")
	install := exec.CommandContext(t.Context(), script)
	install.Stderr = os.Stderr
	dir, err := install.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	agent := filepath.Join(strings.TrimSpace(string(dir)), "agent.mjs")
	node := exec.CommandContext(t.Context(), "node", append([]string{agent, revision}, server...)...)
	node.Env = append(os.Environ(), "KEY="+key)
	if out, err := node.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "done\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

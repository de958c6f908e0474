package cli

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// agentServer is a server over standard input and output that has answered its client.
type agentServer struct {
	cmd *exec.Cmd
	end func()
}

func startAgentServer(t *testing.T) *agentServer {
	t.Helper()
	cmd := command(t, "mcp", "--no-warm", "--audit-log", "off")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	_, err = in.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
		`"clientInfo":{"name":"test","version":"1"}}}` + "\n"))
	must(t, err)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	return &agentServer{cmd, func() {
		must(t, in.Close())
		must(t, cmd.Wait())
	}}
}

// TestMCPKilled: what a server leaves under SIGKILL is found by gc and by the next start; that of a living server is not touched.
func TestMCPKilled(t *testing.T) {
	needRoot(t)
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	left := func() (dirs []string) {
		entries, err := os.ReadDir(filepath.Join(state, "sandbox-run", "agents"))
		must(t, err)
		for _, e := range entries {
			dirs = append(dirs, filepath.Join(state, "sandbox-run", "agents", e.Name()))
		}
		return slices.DeleteFunc(dirs, func(p string) bool { return strings.HasSuffix(p, ".lock") })
	}
	living := startAgentServer(t)
	own := left()
	for _, collect := range []func(){
		func() {
			text, err := command(t, "gc").CombinedOutput()
			if err != nil || !strings.Contains(string(text), "removed  agent") || strings.Contains(string(text), own[0]) {
				t.Errorf("%v: %s", err, text)
			}
		},
		func() { startAgentServer(t).end() },
	} {
		dead := startAgentServer(t)
		must(t, dead.cmd.Process.Kill())
		_ = dead.cmd.Wait()
		if all := left(); len(all) != 2 {
			t.Fatal(all)
		}
		collect()
		if all := left(); !slices.Equal(all, own) {
			t.Errorf("%v, want %v", all, own)
		}
	}
	living.end()
	if all := left(); len(all) > 0 {
		t.Error(all)
	}
}

package cli

import (
	"path/filepath"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// TestMCPTypeScript: the official TypeScript SDK starts sandbox-run mcp, uses it in two revisions of the protocol, and ends it.
func TestMCPTypeScript(t *testing.T) {
	testenv.NeedRoot(t)
	t.Setenv("HOME", t.TempDir())
	for _, revision := range []string{"2025-11-25", "2024-11-05"} {
		testenv.RunTypeScriptAgent(t, revision, "", binary(t), "mcp", "--audit-log", filepath.Join(t.TempDir(), "audit.jsonl"))
	}
}

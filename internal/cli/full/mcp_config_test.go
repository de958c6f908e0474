package full

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var entry = agentEntry{Type: "stdio", Command: "/opt/a \"b\"/sandbox-run", Args: []string{"mcp", "--max-memory", "1g"}}

// Other settings of a client stay when the entry is written, twice; the file keeps its mode, and a copy of what it was.
func TestWriteAgentConfig(t *testing.T) {
	for _, client := range agentClients {
		if client.toml {
			continue
		}
		path := filepath.Join(t.TempDir(), "new", "config.json")
		for range 2 {
			if err := client.write(path, entry); err != nil {
				t.Fatal(err)
			}
		}
		old := `{"theme": "<dark>", "big": 12345678901234567890, "` + client.key + `": {"other": {"command": "x"}}}`
		if err := errors.Join(os.WriteFile(path, []byte(old), 0o600), os.Chmod(path, 0o640)); err != nil {
			t.Fatal(err)
		}
		if err := client.write(path, entry); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]json.RawMessage
		var servers map[string]agentEntry
		if json.Unmarshal(text, &doc) != nil || json.Unmarshal(doc[client.key], &servers) != nil {
			t.Fatalf("%s", text)
		}
		if string(doc["big"]) != "12345678901234567890" || string(doc["theme"]) != `"<dark>"` || servers["other"].Command != "x" ||
			servers[serverName].Command != entry.Command || len(servers[serverName].Args) != 3 {
			t.Errorf("%s", text)
		}
		if backup, err := os.ReadFile(path + ".bak"); err != nil || string(backup) != old {
			t.Errorf("%s, %v", backup, err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
			t.Errorf("%v, %v", st.Mode(), err)
		}
		left, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(left) != 2 {
			t.Errorf("%v, %v", left, err)
		}
	}
}

// A file that can not be merged stays as it is.
func TestWriteAgentConfigRefuses(t *testing.T) {
	for _, client := range agentClients {
		texts := []string{"// a comment\n{}", "[]", `{"` + client.key + `": 1}`, `"x"`, "{"}
		if client.toml {
			texts = []string{"[mcp_servers.sandbox-run]\ncommand = \"x\"\n", "[mcp_servers.\"sandbox-run\"]\n"}
		}
		for _, old := range texts {
			path := filepath.Join(t.TempDir(), "config")
			if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
				t.Fatal(err)
			}
			err := client.write(path, entry)
			if text, _ := os.ReadFile(path); err == nil || string(text) != old {
				t.Errorf("%s: %v, %s", client.name, err, text)
			}
		}
	}
}

func TestAppendTOML(t *testing.T) {
	client := &agentClients[len(agentClients)-1]
	const table = "[mcp_servers.sandbox-run]\ncommand = \"/opt/a \\\"b\\\"/sandbox-run\"\nargs = [\"mcp\", \"--max-memory\", \"1g\"]\n"
	for old, want := range map[string]string{"": table, "a = 1": "a = 1\n\n" + table, "[b]\nc = 2\n": "[b]\nc = 2\n\n" + table} {
		if got, err := client.merge([]byte(old), entry); err != nil || string(got) != want {
			t.Errorf("%q: %v\n%s", old, err, got)
		}
	}
	if !strings.Contains(table, client.key) {
		t.Error(client.key)
	}
}

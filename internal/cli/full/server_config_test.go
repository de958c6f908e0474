package full

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// readTestSettings reads a settings file and arguments as serve does.
func readTestSettings(t testing.TB, file string, args ...string) (*serveOptions, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, o := (&commands{&cli.Invocation{}}).serveCommand()
	if err := cmd.ParseFlags(append(args, "--config", path)); err != nil {
		t.Fatal(err)
	}
	return o, o.complete(cmd.Flags())
}

func TestServeSettings(t *testing.T) {
	const file = `
listen: [127.0.0.1:1, "unix:///a/b"]
max: {memory: 1g, timeout: 90, compile-memory: 3g}
max_pids: 7
allow_volume:
  - /srv/a
  - /srv/b
allow-workspaces: true
warm: python,node
queue: {wait: 5s}
log_level: warn
`
	o, err := readTestSettings(t, file, "--max-pids", "8", "--listen", "[::1]:2")
	if err != nil {
		t.Fatal(err)
	}
	s := o.settings
	if !slices.Equal(s.Listen, []string{"[::1]:2"}) || s.Max.Memory != sandbox.GiB || s.Max.Wall != 90*time.Second ||
		s.MaxCompile.Memory != 3*sandbox.GiB ||
		s.Max.Processes != 8 ||
		!slices.Equal(s.Volumes, []string{"/srv/a", "/srv/b"}) || !s.Workspaces || !slices.Equal(s.Warm, []string{"python", "node"}) ||
		s.QueueWait != 5*time.Second || s.LogLevel.String() != "WARN" ||
		s.DrainTimeout != defaultDrain {
		t.Errorf("%+v", s)
	}
	o, err = readTestSettings(t, `{"max_memory": "2g", "host": ["a.example"]}`)
	if err != nil || o.settings.Max.Memory != 2*sandbox.GiB || !slices.Equal(o.settings.Hosts, []string{"a.example"}) {
		t.Errorf("%+v, %v", o.settings, err)
	}
	o, err = readTestSettings(t, `
max_network: {mode: allow, allow: ["*.a.example", 10.0.0.0/8:22], registries: [npm], dns: true}
forbid_network: [10.1.0.0/16]
registries: {npm: npm.example, pypi: [a.example:1, b.example]}
allow_publish: true
`)
	want := network.Policy{Mode: network.Allow, Allow: []string{"*.a.example", "10.0.0.0/8:22"}, Registries: []string{"npm"}, DNS: true}
	if err != nil || !o.settings.Network.Equal(want) || !o.settings.Publish || !slices.Equal(o.settings.Forbidden, []string{"10.1.0.0/16"}) ||
		!slices.Equal(o.settings.Registries, []string{"npm=npm.example", "pypi=a.example:1", "pypi=b.example"}) {
		t.Errorf("%+v, %v", o.settings, err)
	}
	if _, err := readTestSettings(t, ""); err != nil {
		t.Errorf("an empty file: %v", err)
	}
	for file, says := range map[string]string{
		"max_network_allow: ['http://a']": "it has a scheme", "registries: {nix: a}": "unknown registry", "forbid_network: a": "10.0.0.0/8",
		"max_network: {allow: [a], mode: none}": "do not fit the mode none",
		"max_memmory: 1g":                       "line 1: unknown setting \"max_memmory\"; max_memory?",
		"max: {nonsense: 1}":                    "unknown setting", "help: true": "unknown setting", "json: true": "unknown setting",
		"config: x": "unknown setting", "- a": "not a mapping", "max_memory:": "null", "max_memory: ''": "it is empty",
		"allow_workspaces: maybe": "allow_workspaces", "listen: [[a]]": "a list",
		"max_cpus: .inf": "config", "rate: 0": "more than zero", "rate: -1": "more than zero", "max_memory: 1.5.5": "not a size",
	} {
		if _, err := readTestSettings(t, file); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", file, err, says)
		}
	}
}

// Every flag of serve is a setting, except those of the command itself.
func TestEveryFlagIsASetting(t *testing.T) {
	cmd, _ := (&commands{&cli.Invocation{}}).serveCommand()
	n := 0
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations[noSetting]) == 0 {
			n++
		} else if !slices.Contains([]string{"config", "check", "json"}, f.Name) {
			t.Errorf("--%s is none", f.Name)
		}
	})
	if n < 40 {
		t.Errorf("%d settings", n)
	}
}

func FuzzServeSettings(f *testing.F) {
	f.Add("listen: 127.0.0.1:1\nmax: {memory: 1g}\n")
	f.Add(`{"warm": ["a", "b"], "rate": 2.5}`)
	f.Fuzz(func(t *testing.T, file string) {
		o, err := readTestSettings(t, file)
		if err != nil && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", file, err)
		}
		if err == nil && (o.settings.DrainTimeout <= 0 || o.settings.Rate < 0) {
			t.Errorf("%q: %+v", file, o.settings)
		}
	})
}

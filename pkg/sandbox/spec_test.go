package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

func TestSpecDefaults(t *testing.T) {
	s, notes, err := Spec{}.complete(big, nil)
	if err != nil || notes != nil {
		t.Fatal(err, notes)
	}
	if s.Limits != DefaultLimits() || !s.Network.Equal(NetworkNone) || s.Scratch != ScratchAuto || s.Require != TierContainer ||
		s.Workdir != "/workspace" || s.Hostname != "sandbox" || s.User != (User{1000, 1000}) || s.WritableRoot || s.Strict {
		t.Errorf("%+v", s)
	}
}

// A completed spec shares no maps or slices with the caller's.
func TestSpecIsCopied(t *testing.T) {
	env, volumes := map[string]string{"A": "1"}, []Volume{{Source: "/a", Target: "/b"}}
	s, _, err := Spec{Env: env, Volumes: volumes}.complete(big, nil)
	if err != nil {
		t.Fatal(err)
	}
	env["A"], volumes[0].Target = "2", "/x"
	if s.Env["A"] != "1" || s.Volumes[0].Target != "/b" {
		t.Errorf("%+v", s)
	}
}

func adding(m ...Mount) Spec { return Spec{Root: Root{Add: m}} }

// A mount that is added to a root may lie anywhere but in the sandbox's own directories, also in another one; a volume
// may lie in it.
func TestSpecAdd(t *testing.T) {
	for _, s := range []Spec{
		adding(Mount{"/a", "/b"}, Mount{"/a", "/b/c"}, Mount{"/a", "/opt/x"}), adding(Mount{"/tmp/x", "/opt"}),
		adding(Mount{"/a", "/usr/lib/x"}), adding(Mount{"/a", "/home/other"}),
		{Root: Root{Dir: "/r", Add: []Mount{{"/a", "/b"}}}}, {Root: Root{HostPaths: []string{"/opt"}, Add: []Mount{{"/a", "/opt/x"}}}},
		{Root: Root{Add: []Mount{{"/a", "/v"}}}, Volumes: []Volume{{Source: "/s", Target: "/v/x"}}},
	} {
		if _, _, err := s.complete(big, nil); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestSpecValidate(t *testing.T) {
	many := map[string]string{}
	for i := range maxLabels + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for _, c := range []struct {
		field string
		s     Spec
	}{
		{"uid", Spec{User: User{UID: 0, GID: 5}}}, {"gid", Spec{User: User{UID: 5, GID: 0}}}, {"uid", Spec{User: User{UID: -1, GID: 1}}},
		{"uid", Spec{User: User{UID: 65534, GID: 1}}}, {"gid", Spec{User: User{UID: 1, GID: 1 << 40}}},
		{"network", Spec{Network: network.Policy{Mode: "internet"}}}, {"scratch", Spec{Scratch: "tape"}}, {"require", Spec{Require: "none"}},
		{"require", Spec{Require: "vm"}},
		{"workdir", Spec{Workdir: "relative"}}, {"workdir", Spec{Workdir: "/a/../b"}}, {"workdir", Spec{Workdir: "/a/"}},
		{"workdir", Spec{Workdir: "/a\x00"}},
		{"workdir", Spec{Workdir: "/" + strings.Repeat("x", 256)}}, {"workdir", Spec{Workdir: strings.Repeat("/x", 2100)}},
		{"hostname", Spec{Hostname: "a b"}}, {"hostname", Spec{Hostname: "-a"}}, {"hostname", Spec{Hostname: "a."}},
		{"hostname", Spec{Hostname: strings.Repeat("x", 65)}},
		{"hostname", Spec{Hostname: "ü"}}, {"hostname", Spec{Hostname: "a\n"}},
		{"root", Spec{Root: Root{Dir: "/x", HostPaths: []string{"/usr"}}}}, {"root", Spec{Root: Root{Dir: "/"}}},
		{"root", Spec{Root: Root{Dir: "x"}}},
		{"root", Spec{Root: Root{Dir: "/a/../b"}}}, {"root", Spec{Root: Root{Dir: "/a\x00"}}},
		{"root", Spec{Root: Root{HostPaths: []string{"/"}}}},
		{"root", Spec{Root: Root{HostPaths: []string{"/usr", "/proc"}}}}, {"root", Spec{Root: Root{HostPaths: []string{"/dev/shm"}}}},
		{"root", Spec{Root: Root{HostPaths: []string{"/tmp/x"}}}}, {"root", Spec{Root: Root{HostPaths: []string{"/usr/"}}}},
		{"root", adding(Mount{"/a", "/"})}, {"root", adding(Mount{"/a", "b"})}, {"root", adding(Mount{"a", "/b"})},
		{"root", adding(Mount{"/a/", "/b"})}, {"root", adding(Mount{"/a", "/b/../c"})},
		{"root", adding(Mount{"/", "/b"})}, {"root", adding(Mount{"/proc/sys", "/b"})}, {"root", adding(Mount{"/dev", "/b"})},
		{"root", adding(Mount{"/sys", "/b"})},
		{"root", adding(Mount{"", "/b"})}, {"root", adding(Mount{"/a", ""})}, {"root", adding(Mount{"/a\x00", "/b"})},
		{"root", adding(Mount{"/a", "/b\x00"})},
		{"root", adding(Mount{"/a", "/proc"})}, {"root", adding(Mount{"/a", "/dev/x"})}, {"root", adding(Mount{"/a", "/sys/x"})},
		{"root", adding(Mount{"/a", "/workspace"})},
		{"root", adding(Mount{"/a", "/tmp/x"})}, {"root", adding(Mount{"/a", "/home"})}, {"root", adding(Mount{"/a", "/home/sandbox/x"})},
		{"root", adding(Mount{"/a", "/b"}, Mount{"/c", "/b"})}, {"root", adding(slices.Repeat([]Mount{{"/a", "/b"}}, maxAdded+1)...)},
		{"root", Spec{Root: Root{Add: []Mount{{"/a", "/v/x"}}}, Volumes: []Volume{{Source: "/s", Target: "/v"}}}},
		{"root", Spec{Root: Root{Add: []Mount{{"/a", "/v"}}}, Volumes: []Volume{{Source: "/s", Target: "/v"}}}},
		{"root", Spec{Root: Root{HostPaths: []string{"/opt/x"}, Add: []Mount{{"/a", "/opt"}}}}},
		{"root", Spec{Root: Root{HostPaths: []string{"/opt"}, Add: []Mount{{"/a", "/opt"}}}}},
		{"env", Spec{Env: map[string]string{"": "x"}}}, {"env", Spec{Env: map[string]string{"A=B": "x"}}},
		{"env", Spec{Env: map[string]string{"A\x00": "x"}}},
		{"env", Spec{Env: map[string]string{"A": "\x00"}}},
		{"labels", Spec{Labels: many}}, {"volume", Spec{Volumes: []Volume{{}}}}, {"memory", Spec{Limits: Limits{Memory: 1}}},
	} {
		_, _, err := c.s.complete(big, nil)
		if !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%s: %.100v", c.field, err)
		}
	}
	good := Spec{
		Root: Root{Dir: "/srv/root"}, Workdir: "/", Hostname: "A-1.b", Network: NetworkLocalhost, Scratch: ScratchMemory, Require: TierProcess,
		Env: map[string]string{"a b": "\xff=", "X": ""}, Labels: map[string]string{"k": "v"}, User: User{UID: 1, GID: 65533},
	}
	if _, _, err := good.complete(big, nil); err != nil {
		t.Error(err)
	}
}

func TestProcessComplete(t *testing.T) {
	s, _, err := Spec{Env: map[string]string{"A": "spec", "B": "spec", "PATH": "/mine"}, Workdir: "/w",
		Network: NetworkLocalhost}.complete(big, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Process{Args: []string{"x"}, Env: map[string]string{"B": "process"}, Limits: Limits{Memory: MiB * 7}}.complete(s, big)
	if err != nil {
		t.Fatal(err)
	}
	if p.Phase != "run" || p.Workdir != "/w" || !p.Network.Equal(NetworkLocalhost) || p.Limits.Memory != 7*MiB || p.Limits.Wall != s.Limits.Wall {
		t.Errorf("%+v", p)
	}
	want := []string{"A=spec", "B=process", "HOME=/home/sandbox", "LANG=C.UTF-8", "LOGNAME=sandbox", "PATH=/mine", "USER=sandbox"}
	if got := p.Environ(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if p, err = (Process{Args: []string{"x"}, TTY: &TTY{}}).complete(s, big); err != nil || p.Env["TERM"] != "xterm-256color" {
		t.Errorf("%+v, %v", p.Env, err)
	}
	for _, c := range []struct {
		field string
		p     Process
	}{
		{"command", Process{}}, {"command", Process{Args: []string{""}}}, {"command", Process{Args: []string{"x", "a\x00"}}},
		{"command", Process{Args: []string{"x", strings.Repeat("y", maxArgBytes)}}},
		{"phase", Process{Args: []string{"x"}, Phase: "Run"}}, {"phase", Process{Args: []string{"x"}, Phase: "1"}},
		{"phase", Process{Args: []string{"x"}, Phase: "a/b"}},
		{"phase", Process{Args: []string{"x"}, Phase: strings.Repeat("a", 33)}}, {"phase", Process{Args: []string{"x"}, Phase: ".."}},
		{"workdir", Process{Args: []string{"x"}, Workdir: "w"}}, {"network", Process{Args: []string{"x"}, Network: network.Policy{Mode: "x"}}},
		{"env", Process{Args: []string{"x"}, Env: map[string]string{"": ""}}},
		{"env", Process{Args: []string{"x"}, Env: map[string]string{"A": strings.Repeat("y", maxArgBytes)}}},
		{"limits", Process{Args: []string{"x"}, Limits: Limits{Disk: GiB}}},
		{"limits", Process{Args: []string{"x"}, Limits: Limits{Inodes: 100}}},
		{"timeout", Process{Args: []string{"x"}, Limits: Limits{Wall: -1}}},
	} {
		if _, err := c.p.complete(s, big); !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%s: %.100v", c.field, err)
		}
	}
}

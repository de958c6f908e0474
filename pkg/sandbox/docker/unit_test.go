package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func listenUnix(path string) (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// The daemon's profile lists the calls of our policy, and no others.
func TestProfile(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		text, err := profile(arch)
		if err != nil {
			t.Fatal(err)
		}
		var p struct {
			DefaultAction   string
			DefaultErrnoRet int
			Architectures   []string
			Syscalls        []struct {
				Names  []string
				Action string
			}
		}
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if p.DefaultAction != "SCMP_ACT_ERRNO" || p.DefaultErrnoRet != 38 || len(p.Architectures) != 1 || len(p.Syscalls) != 1 ||
			p.Syscalls[0].Action != "SCMP_ACT_ALLOW" {
			t.Errorf("%+v", p)
		}
		for name, want := range map[string]bool{"read": true, "clone": true, "seccomp": true, "clone3": false, "io_uring_setup": true,
			"kexec_load": true} {
			if got := slices.Contains(p.Syscalls[0].Names, name); got != want && name != "io_uring_setup" && name != "kexec_load" {
				t.Errorf("%s: %s is %v", arch, name, got)
			}
		}
	}
	if _, err := profile("vax"); err == nil {
		t.Error("an unknown architecture is accepted")
	}
}

// Docker's own configuration names the daemon.
func TestContext(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("DOCKER_CONTEXT", "")
	if got := currentContext(); got != "" {
		t.Errorf("without a configuration: %q", got)
	}
	// sha256("colima")
	meta := filepath.Join(dir, "contexts", "meta", "f24fd3749c1368328e2b149bec149cb6795619f244c5b584e844961215dadd16")
	for _, err := range []error{
		os.MkdirAll(meta, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"currentContext":"colima"}`), 0o600),
		os.WriteFile(filepath.Join(meta, "meta.json"), []byte(`{"Name":"colima",
			"Endpoints":{"docker":{"Host":"unix:///home/me/.colima/default/docker.sock"}}}`), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := currentContext(); got != "unix:///home/me/.colima/default/docker.sock" {
		t.Errorf("%q", got)
	}
	t.Setenv("DOCKER_HOST", "")
	if host, err := findHost(context.Background(), ""); err != nil || host != "unix:///home/me/.colima/default/docker.sock" {
		t.Errorf("%q, %v", host, err)
	}
	t.Setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
	if host, err := findHost(context.Background(), ""); err != nil || host != "tcp://10.0.0.1:2375" {
		t.Errorf("%q, %v", host, err)
	}
	if host, err := findHost(context.Background(), "unix:///asked"); err != nil || host != "unix:///asked" {
		t.Errorf("%q, %v", host, err)
	}
}

// Setup shows its commands, and runs them only after a yes.
func TestSetup(t *testing.T) {
	for name, c := range map[string]struct {
		m    Machine
		want []string
	}{
		"debian": {Machine{OS: "linux", Release: "ID=debian\n", Systemd: true, Root: true},
			[]string{"apt-get update", "apt-get install -y docker.io", "systemctl enable --now docker"}},
		"mint": {Machine{OS: "linux", Release: "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", User: "me"},
			[]string{"sudo apt-get update", "sudo apt-get install -y docker.io", "sudo service docker start", "sudo usermod -aG docker me"}},
		"alpine": {Machine{OS: "linux", Release: "ID=alpine\n", OpenRC: true, Root: true},
			[]string{"apk add docker", "rc-update add docker", "service docker start"}},
		"installed": {Machine{OS: "linux", Release: "ID=plan9\n", Root: true, Installed: true}, []string{"service docker start"}},
	} {
		commands, err := c.m.Commands()
		var got []string
		for _, c := range commands {
			got = append(got, strings.Join(c, " "))
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, m := range []Machine{{OS: "darwin"}, {OS: "linux", Release: "ID=plan9\n"}} {
		if _, err := m.Commands(); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	var out bytes.Buffer
	harmless := Machine{OS: "linux", Release: "ID=debian\n", Root: true}
	if err := Setup(context.Background(), harmless, false, strings.NewReader("n\n"), &out); !errors.Is(err, ErrDeclined) ||
		!strings.Contains(out.String(), "apt-get install -y docker.io") {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := Setup(context.Background(), harmless, false, strings.NewReader(""), &out); !errors.Is(err, ErrDeclined) {
		t.Errorf("no answer: %v", err)
	}
}

// A running supervisor has its file locked; the file of a dead one can be locked.
func TestRegistrationLock(t *testing.T) {
	dir := t.TempDir()
	a, b := registrationLock{dir: dir}, registrationLock{dir: dir}
	if err := errors.Join(a.register(), b.register(), a.register()); err != nil {
		t.Fatal(err)
	}
	if dead, release := a.lockDead(b.name); dead {
		release(false)
		t.Error("a running supervisor counts as dead")
	}
	for _, odd := range []string{"", "../x", a.name} {
		if dead, _ := a.lockDead(odd); dead {
			t.Errorf("%q is dead", odd)
		}
	}
	if dead, _ := a.lockDead("0123"); !dead {
		t.Error("a supervisor without a file counts as running")
	}
	_ = b.file.Close()
	if dead, release := a.lockDead(b.name); !dead {
		t.Error("a dead supervisor counts as running")
	} else {
		release(true)
	}
	if names := a.names(); !slices.Equal(names, []string{a.name}) {
		t.Errorf("%q", names)
	}
	if err := errors.Join(a.release(), a.release()); err != nil || len(a.names()) != 0 {
		t.Errorf("%v, %q", err, a.names())
	}
}

// The stream of a container, cut anywhere, is reassembled; a malformed stream ends it.
func FuzzDemux(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x02hi\x02\x00\x00\x00\x00\x00\x00\x01e"))
	f.Fuzz(func(t *testing.T, text []byte) {
		stderr := &tail{}
		d := &demux{r: bytes.NewReader(text), errors: stderr}
		total := 0
		for buf := make([]byte, 7); ; {
			n, err := d.Read(buf)
			if total += n; err != nil {
				break
			}
		}
		if total > len(text) || len(stderr.text()) > maxSaid {
			t.Errorf("%d bytes out of %d", total, len(text))
		}
	})
}

// The helper's container may give files away only where the engine can not mount the scratch as the user's own.
func TestContainerCapabilities(t *testing.T) {
	b := &Backend{registration: registrationLock{dir: t.TempDir()}}
	for _, podman := range []bool{false, true} {
		d, s := &daemon{arch: "amd64", podman: podman, local: true}, &settings{Limits: sandbox.DefaultLimits()}
		setup := d.setup(s)
		_, host, err := b.config(d, s, setup, "volume")
		if err != nil {
			t.Fatal(err)
		}
		owned := strings.Contains(host.Tmpfs[sandbox.WorkspaceDir], fmt.Sprintf("uid=%d,gid=%d", setup.OuterUID, setup.OuterGID))
		if gives := slices.Contains(host.CapAdd, "CHOWN"); gives != podman || owned == podman || !slices.Equal(host.CapDrop, []string{"ALL"}) {
			t.Errorf("podman %v: %q, %q", podman, host.CapAdd, host.Tmpfs)
		}
	}
}

package cli

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// doctorFact runs doctor and returns the value of a fact.
func doctorFact(t *testing.T, name string, env []string, as *syscall.Credential) string {
	t.Helper()
	cmd := exec.Command(binary(t), "doctor", "--json", "--backend", "process")
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, _ := cmd.Output() // the exit code does not matter: the backend may be weak
	var d diagnosis
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, f := range d.Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// doctor reports whether runs take place at the local server and, if not, why.
func TestDoctorServer(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	socket := filepath.Join(dir, "server.sock")
	at := []string{wire.SocketVariable + "=" + socket}
	expect := func(as *syscall.Credential, env []string, words ...string) {
		t.Helper()
		said := doctorFact(t, "server", append(append([]string{}, at...), env...), as)
		for _, w := range words {
			if !strings.Contains(said, w) {
				t.Errorf("%q does not say %q", said, w)
			}
		}
	}
	expect(nil, nil, "none at "+socket)
	s := startServer(t, append(args, "--listen", "unix://"+socket)...)
	expect(nil, nil, "one at "+socket, "and is used")
	expect(nil, []string{"SANDBOX_RUN_SERVER=never"}, "not used", "never")
	expect(nil, []string{"GOPATH=/elsewhere"}, "not used", "differ")
	other := &syscall.Credential{Uid: 65534, Gid: 65534}
	version := exec.Command(binary(t), "version")
	version.SysProcAttr = &syscall.SysProcAttr{Credential: other}
	if out, err := version.CombinedOutput(); err != nil {
		t.Logf("another user can not execute %s (%v: %s): that part is not tried", binary(t), err, out)
	} else {
		expect(other, nil, "not used", "may not connect")
	}
	s.signal(syscall.SIGTERM)
	s.wait()
	expect(nil, nil, "none at "+socket)

	// A process that listens on the socket and is no server of this version.
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
			_ = c.Close()
		}
	}()
	expect(nil, nil, "one at "+socket, "not used")
}

// doctor reports preparation failures.
func TestDoctorFailedPreparation(t *testing.T) {
	cache := t.TempDir()
	env := []string{"XDG_CACHE_HOME=" + cache}
	if said := doctorFact(t, "slower starts", env, nil); said != "" {
		t.Error(said)
	}
	mark := filepath.Join(cache, "sandbox-run", "warm", "java-1", "jdk-2-ahead.failed")
	if err := os.MkdirAll(filepath.Dir(mark), 0o755); err != nil {
		t.Fatal(err)
	}
	const failure = `{"what":"Java machines that wait","error":"no room","at":"2026-01-02T03:04:05Z","attempts":3}`
	if err := os.WriteFile(mark, []byte(failure), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := doctorFact(t, "slower starts", env, nil); !strings.Contains(said, "no room") || !strings.Contains(said, "3 times") {
		t.Errorf("%q", said)
	}
}

package peer

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Each end of a unix socket sees the other. Other connections, and closed sockets, have no peer.
func TestOf(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("the kernel does not say")
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, c := range []net.Conn{in, out} {
		p, err := Of(c)
		if err != nil || p.UID != os.Geteuid() || runtime.GOOS == "linux" && p.PID != os.Getpid() {
			t.Errorf("%+v, %v", p, err)
		}
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if p, err := Of(a); err == nil || p.UID == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	_ = in.Close()
	if p, err := Of(in); err == nil || p.UID == 0 {
		t.Errorf("of a socket that is closed: %+v, %v", p, err)
	}
}

package census

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Data that is written to a socket and not read is counted, until it is read or the socket is closed.
func TestSockets(t *testing.T) {
	if !SeesSockets() {
		t.Skip("this kernel does not tell about unix sockets (module unix_diag)")
	}
	fd, err := NewDiag()
	if err != nil {
		t.Fatal(err)
	}
	c := &Census{diag: os.NewFile(uintptr(fd), "diag")}
	defer c.diag.Close()
	before := c.sockets()
	var all []int
	defer func() {
		for _, fd := range all {
			unix.Close(fd)
		}
	}()
	written := 0
	for range 300 { // more than one datagram of answers
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pair[0], pair[1])
		n, err := unix.Write(pair[0], make([]byte, 100<<10))
		if err != nil {
			t.Fatal(err)
		}
		written += n
	}
	if seen := c.sockets() - before; seen < uint64(written) || seen > 4*uint64(written) {
		t.Errorf("%d MiB seen of %d", seen>>20, written>>20)
	}
}

func FuzzDiag(f *testing.F) {
	f.Add([]byte("\x14\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x14\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xfe\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, head := range []int{unixMessageSize, inetMessageSize} {
			if sum, _, _ := memoryIn(b, head, unixMemory); sum > uint64(len(b))<<33 {
				t.Error(sum)
			}
		}
	})
}

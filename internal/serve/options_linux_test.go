package serve

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNothingBypassesRequestChecks: what net/http would answer by itself is ours to answer, too, and a body of it is not waited for (A4).
func TestNothingBypassesRequestChecks(t *testing.T) {
	s := startObserved(t)
	c, err := net.Dial("unix", filepath.Join(s.dir, "s.sock"))
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	fmt.Fprint(c, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: https://attacker.example\r\nContent-Length: 1000\r\n\r\n")
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil || !strings.HasPrefix(string(head), "HTTP/1.1 403") {
		t.Errorf("%q, %v", head, err)
	}
}

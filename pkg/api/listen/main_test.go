package listen

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain is also the main function of helper processes, selected by a variable: a server to be killed, one that systemd starts, another
// user.
func TestMain(m *testing.M) {
	if play := parts[os.Getenv("LISTEN_TEST_PART")]; play != nil {
		if err := play(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var parts = map[string]func() error{
	"server": func() error { // listens until it is killed
		set, err := Open(context.Background(), Options{Addresses: []Address{{Path: os.Getenv("LISTEN_TEST_PATH")}}})
		if err != nil {
			return err
		}
		fmt.Println("ready")
		_, _ = set.Listeners()[0].Accept()
		return set.Close()
	},
	"activated": func() error { // serves what it has inherited, one connection each
		os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
		in, err := Activated()
		if err != nil {
			return err
		}
		set, err := Open(context.Background(), Options{Inherited: in,
			Exposed: func(where string) error { return fmt.Errorf("exposed: %s", where) }})
		if err != nil {
			return err
		}
		for i, l := range set.Listeners() {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			fmt.Fprintf(c, "%s %s", in[i].Name, l.Via().Kind)
			c.Close()
		}
		if os.Getenv("LISTEN_FDS") != "" || os.Getenv("LISTEN_FDNAMES") != "" {
			return fmt.Errorf("children would think that they are meant")
		}
		return set.Close()
	},
	"dial": func() error { // says what comes from a socket
		c, err := net.DialTimeout("unix", os.Getenv("LISTEN_TEST_PATH"), 10*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		fmt.Print(string(buf[:n]))
		return err
	},
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

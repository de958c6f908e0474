//go:build linux

package delegate

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		runtime, bus string
		want         []address
	}{
		{"", "", []address{{"/run/user/7/systemd/private", false}, {"/run/user/7/bus", true}}},
		{"relative", "tcp:host=x", []address{{"/run/user/7/systemd/private", false}, {"/run/user/7/bus", true}}},
		{"/r", "unix:path=/r/bus,guid=12", []address{{"/r/systemd/private", false}, {"/r/bus", true}}},
		{"/r", "unix:abstract=/a%2cb;unix:path=", []address{{"/r/systemd/private", false}, {"\x00/a,b", true}, {"/r/bus", true}}},
	} {
		env := map[string]string{"XDG_RUNTIME_DIR": c.runtime, "DBUS_SESSION_BUS_ADDRESS": c.bus}
		if got := addresses(func(name string) string { return env[name] }, 7); !slices.Equal(got, c.want) {
			t.Errorf("%q, %q: %q", c.runtime, c.bus, got)
		}
	}
	if got := unescape("a%2fb%zz%2"); got != "a/b%zz%2" {
		t.Error(got)
	}
}

// server answers one connection with whatever serve does, after the greeting.
func server(t *testing.T, greeting string, serve func(in *bufio.Reader, out net.Conn)) address {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in := bufio.NewReader(c)
		for {
			line, err := in.ReadString('\n')
			if err != nil || strings.HasPrefix(line, "BEGIN") {
				break
			}
		}
		_, _ = c.Write([]byte(greeting))
		serve(in, c)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return address{path: path}
}

// Servers that are not systemd, or misbehave. The tests against a real systemd run in a virtual machine: see
// real_test.go.
func TestBadServers(t *testing.T) {
	defer goleak.VerifyNone(t)
	const welcome = "DATA\r\nOK 0123456789abcdef0123456789abcdef\r\n"
	wait := func(in *bufio.Reader, _ net.Conn) { _, _ = in.WriteTo(new(strings.Builder)) } // until the client closes
	answer := func(messages ...[]byte) func(*bufio.Reader, net.Conn) {
		return func(in *bufio.Reader, out net.Conn) {
			for _, m := range messages {
				for _, b := range m { // in the smallest pieces
					_, _ = out.Write([]byte{b})
				}
			}
			wait(in, out)
		}
	}
	text := func(s string) []byte {
		return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(s))), s...), 0)
	}
	for _, c := range []struct {
		name, greeting string
		serve          func(*bufio.Reader, net.Conn)
		want           error
		words          string
	}{
		{"rejects the credentials", "REJECTED EXTERNAL\r\n", wait, ErrRefused, "REJECTED"},
		{"says nothing at all", "", wait, ErrTimeout, ""},
		{"sends without end", strings.Repeat("x", 10000), wait, errMalformed, ""},
		{"closes at once", welcome, func(*bufio.Reader, net.Conn) {}, ErrRefused, "closed the connection"},
		{"does not answer", welcome, wait, ErrTimeout, ""},
		{"answers, and nothing happens", welcome, answer(reply(binary.LittleEndian, typeReturn, 3, "", "o", text("/j"))), ErrTimeout, ""},
		{"refuses", welcome, answer(reply(binary.LittleEndian, typeError, 3, "org.freedesktop.DBus.Error.AccessDenied", "s", text("not you"))),
			ErrRefused, "AccessDenied: not you"},
		{"fails", welcome, answer(reply(binary.LittleEndian, typeReturn, 3, "", "o", text("/j")),
			reply(binary.LittleEndian, typeSignal, 0, managerFace+".JobRemoved", "uoss",
				slices.Concat([]byte{5, 0, 0, 0}, text("/j"), []byte{0}, text("x.scope"), text("failed")))), ErrRefused, `"failed"`},
		{"is no D-Bus server", welcome, answer([]byte("HTTP/1.0 400 Bad Request\r\n\r\n")), errMalformed, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			began, timeout := time.Now(), time.Minute // long enough for every answer on a busy machine
			if errors.Is(c.want, ErrTimeout) {
				timeout = 300 * time.Millisecond
			}
			err := func() error {
				conn, err := dial(server(t, c.greeting, c.serve), began.Add(timeout))
				if err != nil {
					return wrapTimeout(err)
				}
				defer conn.close()
				return conn.startScope(t.Context(), false, "x.scope", func() (string, error) { return "/nowhere", nil })
			}()
			if err == nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v", err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestNoManager(t *testing.T) {
	if _, err := ownGroup(); err != nil {
		if !errors.Is(err, ErrLayout) {
			t.Error(err)
		}
		if err := Obtain(t.Context()); !errors.Is(err, ErrLayout) {
			t.Error(err)
		}
		t.Skip("this machine has v1 controllers; guest-systemd.sh has none")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	err := Obtain(t.Context())
	if !errors.Is(err, ErrNoManager) || !strings.Contains(err.Error(), "systemd/private: no such file") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Obtain(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

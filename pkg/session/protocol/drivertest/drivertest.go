//go:build unix

// Package drivertest starts a session's driver without a sandbox, for tests of drivers: standard input is a socket that speaks
// pkg/session/protocol, and output is collected.
package drivertest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// patience is how long a driver may take for one answer: a bound for a driver that hangs, not a measurement.
const patience = time.Minute

// Driver is a driver under test.
type Driver struct {
	*protocol.Conn
	Process *os.Process // the leader of a process group of its own

	t      *testing.T
	socket *os.File
	next   uint64
	ended  chan struct{}

	mu             sync.Mutex
	stdout, stderr bytes.Buffer
}

// Start starts a driver in a directory of its own, waits for the frame ready, and ends the driver with the test.
func Start(t *testing.T, env []string, args ...string) (*Driver, protocol.Ready) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(pair[0])
	syscall.CloseOnExec(pair[1])
	if err := syscall.SetNonblock(pair[0], true); err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "driver")
	d := &Driver{t: t, socket: os.NewFile(uintptr(pair[0]), "supervisor"), ended: make(chan struct{})}
	d.Conn = protocol.NewConn(d.socket)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, writer{d, &d.stdout}, writer{d, &d.stderr}
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	d.Process = cmd.Process
	go func() {
		_ = cmd.Wait()
		close(d.ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-d.Process.Pid, syscall.SIGKILL) //nolint:forbidigo // its group; it is not reaped before, unless it has ended by itself
		<-d.ended
		_ = d.socket.Close()
		if t.Failed() {
			t.Logf("stdout %q\nstderr %q", d.Stdout(), d.Stderr())
		}
	})
	var ready protocol.Ready
	d.decode(d.expect(protocol.KindReady, 0), &ready)
	return d, ready
}

type writer struct {
	d *Driver
	b *bytes.Buffer
}

func (w writer) Write(p []byte) (int, error) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	return w.b.Write(p)
}

// Stdout returns what the driver has written to standard output so far, which may be less than all of it.
func (d *Driver) Stdout() string { return d.text(&d.stdout) }

// Stderr is the same for standard error.
func (d *Driver) Stderr() string { return d.text(&d.stderr) }

func (d *Driver) text(b *bytes.Buffer) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return b.String()
}

// Printed waits until standard output or standard error has a text: pipes are read beside the socket.
func (d *Driver) Printed(text string) {
	d.t.Helper()
	deadline := time.Now().Add(patience)
	for !bytes.Contains([]byte(d.Stdout()+d.Stderr()), []byte(text)) {
		if time.Now().After(deadline) {
			d.t.Fatalf("%q was not printed", text)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Cell is what a cell answered.
type Cell struct {
	protocol.Done
	Displays []protocol.Display
}

// Result is the text of the last display that is a result; "" without one.
func (c *Cell) Result() (text string) {
	for _, d := range c.Displays {
		if d.Result {
			text = d.Text()
		}
	}
	return text
}

// Execute runs a cell to its end. Each question for input is answered with the next of the lines, or else with the end of file.
func (d *Driver) Execute(code string, lines ...string) Cell {
	d.t.Helper()
	return d.Finish(d.Send(code), lines...)
}

// Send starts a cell and returns its number.
func (d *Driver) Send(code string) uint64 {
	d.t.Helper()
	d.next++
	if err := d.Write(protocol.KindExecute, d.next, code); err != nil {
		d.t.Fatal(err)
	}
	return d.next
}

// Finish waits for the end of a cell.
func (d *Driver) Finish(id uint64, lines ...string) (c Cell) {
	d.t.Helper()
	for {
		f := d.read()
		if f.ID != id {
			d.t.Fatalf("frame %s of %d, want cell %d", f.Kind, f.ID, id)
		}
		switch f.Kind {
		case protocol.KindDisplay:
			var shown protocol.Display
			d.decode(f, &shown)
			c.Displays = append(c.Displays, shown)
		case protocol.KindInput:
			kind, line := protocol.KindEndInput, ""
			if len(lines) > 0 {
				kind, line, lines = protocol.KindInput, lines[0], lines[1:]
			}
			if err := d.Write(kind, id, line); err != nil {
				d.t.Fatal(err)
			}
		case protocol.KindDone:
			d.decode(f, &c.Done)
			return c
		default:
			d.t.Fatalf("frame %s while cell %d runs", f.Kind, id)
		}
	}
}

// Ask sends a question other than a cell and decodes the reply.
func (d *Driver) Ask(kind protocol.Kind, body string, reply any, arg ...string) {
	d.t.Helper()
	d.next++
	if err := d.Write(kind, d.next, body, arg...); err != nil {
		d.t.Fatal(err)
	}
	d.decode(d.expect(protocol.KindReply, d.next), reply)
}

// Interrupt sends SIGINT to the driver and all its processes.
func (d *Driver) Interrupt() {
	d.t.Helper()
	if err := syscall.Kill(-d.Process.Pid, syscall.SIGINT); err != nil { //nolint:forbidigo // its group, of a driver that runs
		d.t.Fatal(err)
	}
}

func (d *Driver) expect(kind protocol.Kind, id uint64) *protocol.Frame {
	d.t.Helper()
	f := d.read()
	if f.Kind != kind || f.ID != id {
		d.t.Fatalf("frame %s %d %q, want %s %d", f.Kind, f.ID, f.Body, kind, id)
	}
	return f
}

func (d *Driver) read() *protocol.Frame {
	d.t.Helper()
	_ = d.socket.SetReadDeadline(time.Now().Add(patience))
	f, err := d.Read()
	if err != nil {
		d.t.Fatalf("read from the driver: %v", err)
	}
	return f
}

func (d *Driver) decode(f *protocol.Frame, v any) {
	d.t.Helper()
	if err := f.Decode(v); err != nil {
		text, _ := json.Marshal(string(f.Body))
		d.t.Fatalf("%s: %v in %s", f.Kind, err, text)
	}
}

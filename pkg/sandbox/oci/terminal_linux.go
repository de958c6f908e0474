package oci

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
)

// terminalRelay is a terminal in a container whose kernel takes one only from the runtime: the runtime's exec starts the
// init's executable on it a second time, and that process runs the program. The runtime passes on the terminal's
// signals: a typed Ctrl-C, a new size.
type terminalRelay struct {
	name  string        // of the socket of the container's init
	ended chan struct{} // closes with the runtime's exec
	kill  func()        // ends it
}

// pollInterval is the time between two checks for a file that the runtime is about to write.
const pollInterval = 2 * time.Millisecond

// RunOnTerminal runs a program on a terminal of its own.
func (c *container) RunOnTerminal(ctx context.Context, m *initproto.Exec) (*spawn.Program, error) {
	master, slave, err := openTerminal(m.Rows, m.Cols)
	if err != nil {
		return nil, failure("open terminal", "terminal", err)
	}
	relay, err := c.openRelay(ctx, m.ID, master, slave)
	_ = slave.Close()
	if err != nil {
		_ = master.Close()
		if c.isEnding(ctx) {
			err = errors.Join(spawn.ErrGone, err)
		}
		return nil, err
	}
	m.Relay = relay.name
	program, err := c.Init.RunOnTerminal(ctx, m, master)
	if err != nil {
		relay.kill()
	}
	return program, err
}

// endingTimeout is how long an init may take to notice that its last program has ended.
const endingTimeout = 500 * time.Millisecond

// isEnding reports whether a relay could not be opened because the container ended: the init ends with its last program,
// and does not know yet that another one follows. The runtime may detect that end before the supervisor does.
func (c *container) isEnding(ctx context.Context) bool {
	select {
	case <-c.Init.Done():
		return true
	case <-ctx.Done():
	case <-time.After(endingTimeout):
	}
	return false
}

// openTerminal makes a terminal on the host. The supervisor's end is non-blocking, to be read through the poller.
func openTerminal(rows, cols uint16) (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0); err != nil {
		return nil, nil, err
	}
	raw, err := master.SyscallConn()
	if err == nil {
		var ioctlErr error
		err = raw.Control(func(fd uintptr) {
			if ioctlErr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioctlErr != nil {
				return
			}
			n, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
			if errno != 0 {
				ioctlErr = errno
				return
			}
			slave = os.NewFile(n, "terminal")
			if rows > 0 && cols > 0 {
				ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
			}
		})
		err = errors.Join(err, ioctlErr)
	}
	if err != nil {
		_ = slave.Close() // Close of nil is allowed
		_ = master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// openRelay lets the runtime put a relay on a terminal, and returns when the runtime passes on its signals.
func (c *container) openRelay(ctx context.Context, id uint64, master, slave *os.File) (*terminalRelay, error) {
	file := filepath.Join(c.dir, "relay"+strconv.FormatUint(id, 10))
	name := "relay-" + rand.Text()
	none := []string{}
	text, err := json.Marshal(process{
		Terminal: true, User: user{UID: c.i.Spec.User.UID, GID: c.i.Spec.User.GID, Umask: 0o022}, Args: []string{spawn.Name},
		Env: append(spawn.RelayEnviron(), "PATH="+initDir, spawn.RelayVariable+"="+name), Cwd: "/",
		Capabilities: capabilities{none, none, none, none, none}, NoNewPrivileges: true,
	})
	if err != nil {
		return nil, failure("make terminal relay", "terminal", err)
	}
	if err := c.ns.helper.Do(func() error { return os.WriteFile(file, text, 0o600) }); err != nil {
		return nil, failure("make terminal relay", "terminal", err)
	}
	args := append([]string{"--root", c.ns.stateDir()}, c.kind.global...)
	cmd := exec.Command(c.runtime, append(args, "exec", "--process", file, "--pid-file", file+".pid", c.id)...)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ(), "/", slave, slave, slave
	// This process gets the signals of typed keys.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.enter(cmd.SysProcAttr, c.Group, cmd.Start); err != nil {
		return nil, failure("start "+c.runtime, "terminal", err)
	}
	relay := &terminalRelay{name: name, ended: make(chan struct{}), kill: func() { _ = cmd.Process.Kill() }}
	c.opening.Lock()
	c.relays = append(c.relays, relay)
	c.opening.Unlock()
	go func() {
		defer close(relay.ended)
		_ = cmd.Wait() // the init reports the exit of the program
	}()
	err = c.waitForRelay(ctx, relay, file+".pid")
	_ = c.ns.helper.Do(func() error { return errors.Join(os.Remove(file), os.Remove(file+".pid")) })
	if err == nil {
		return relay, nil
	}
	relay.kill()
	<-relay.ended
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	printed := make([]byte, maxPrinted)
	_ = master.SetReadDeadline(time.Now().Add(time.Second)) // its output has arrived by now, and then the terminal hangs up
	n, _ := master.Read(printed)
	return nil, failure(c.kind.name+" exec", "terminal",
		fmt.Errorf("%w: %s", err, bytes.ToValidUTF8(bytes.TrimSpace(printed[:n]), []byte("?"))))
}

// waitForRelay waits for the file that the runtime writes when the relay is ready.
func (c *container) waitForRelay(ctx context.Context, relay *terminalRelay, file string) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		var text []byte
		_ = c.ns.helper.Do(func() (err error) {
			text, err = os.ReadFile(file)
			return err
		})
		if len(text) > 0 {
			return nil
		}
		select {
		case <-relay.ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// KillRelays ends the relays. It is called before the end of the container, about which they would print errors on the
// terminal.
func (c *container) KillRelays() {
	c.opening.Lock()
	defer c.opening.Unlock()
	for _, relay := range c.relays {
		relay.kill()
	}
}

// CloseRelays waits for the end of the relays, and then ends the init, which does not end by itself after relays.
func (c *container) CloseRelays() error {
	c.KillRelays()
	c.opening.Lock()
	list := c.relays
	c.opening.Unlock()
	late := time.After(cleanupTimeout)
	for _, relay := range list {
		select {
		case <-relay.ended:
		case <-late:
			return failure("end terminal relay", "cleanup", box.ErrStuck)
		}
	}
	if len(list) > 0 && c.Init != nil {
		c.Init.Kill()
	}
	return nil
}

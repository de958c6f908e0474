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
)

// console is a terminal in a container whose kernel can take one from the runtime only: the runtime's exec puts our init's
// executable on it a second time, and that runs the program. The runtime hands on what the terminal says: that somebody typed Ctrl-C, that it has
// another size.
type console struct {
	name  string        // of the socket where the container's init is found
	ended chan struct{} // closes with the runtime's exec
	kill  func()        // ends it
}

// pollPause is how often a file is looked for that the runtime is about to write.
const pollPause = 2 * time.Millisecond

// startOnConsole runs a program on a terminal of its own.
func (p *phase) startOnConsole(ctx context.Context, m *initproto.Exec) (*spawn.Program, error) {
	master, slave, err := openTerminal(m.Rows, m.Cols)
	if err != nil {
		return nil, failure("open terminal", "terminal", err)
	}
	c, err := p.openConsole(ctx, m.ID, master, slave)
	_ = slave.Close()
	if err != nil {
		_ = master.Close()
		if p.ends(ctx) {
			err = errors.Join(spawn.ErrGone, err)
		}
		return nil, err
	}
	m.Console = c.name
	program, err := p.init.RunConsole(ctx, m, master)
	if err != nil {
		c.kill()
	}
	return program, err
}

// ends reports whether it was the container's end that kept a console from being opened: the init goes with the last of its programs, and
// does not know yet that another one is to come. The runtime may hear of that end before we do.
func (p *phase) ends(ctx context.Context) bool {
	select {
	case <-p.init.Done():
		return true
	case <-ctx.Done():
	case <-time.After(initPatience):
	}
	return false
}

// openTerminal makes a terminal on the host. Our own end is non-blocking, to be read through the poller.
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
		_ = slave.Close() // nil is fine
		_ = master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// openConsole has the runtime put a console on a terminal, and returns when the runtime hands on what that says.
func (p *phase) openConsole(ctx context.Context, id uint64, master, slave *os.File) (*console, error) {
	file := filepath.Join(p.c.dir, "console"+strconv.FormatUint(id, 10))
	name := "console-" + rand.Text()
	none := []string{}
	text, err := json.Marshal(process{
		Terminal: true, User: user{UID: p.i.spec.User.UID, GID: p.i.spec.User.GID, Umask: 0o022}, Args: []string{spawn.Name},
		Env: append(spawn.ConsoleEnviron(), "PATH="+initDir, spawn.ConsoleVariable+"="+name), Cwd: "/",
		Capabilities: capabilities{none, none, none, none, none}, NoNewPrivileges: true,
	})
	if err != nil {
		return nil, failure("make console", "terminal", err)
	}
	if err := p.c.work.bench.Do(func() error { return os.WriteFile(file, text, 0o600) }); err != nil {
		return nil, failure("make console", "terminal", err)
	}
	args := append([]string{"--root", p.c.work.stateDir()}, p.c.kind.global...)
	cmd := exec.Command(p.c.runtime, append(args, "exec", "--process", file, "--pid-file", file+".pid", p.c.id)...)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ(), "/", slave, slave, slave
	// It is who hears what is typed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.c.enter(cmd.SysProcAttr, p.group, cmd.Start); err != nil {
		return nil, failure("start "+p.c.runtime, "terminal", err)
	}
	c := &console{name: name, ended: make(chan struct{}), kill: func() { _ = cmd.Process.Kill() }}
	p.opening.Lock()
	p.consoles = append(p.consoles, c)
	p.opening.Unlock()
	go func() {
		defer close(c.ended)
		_ = cmd.Wait() // how the program ended, the init knows better
	}()
	err = p.awaitConsole(ctx, c, file+".pid")
	_ = p.c.work.bench.Do(func() error { return errors.Join(os.Remove(file), os.Remove(file+".pid")) })
	if err == nil {
		return c, nil
	}
	c.kill()
	<-c.ended
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	said := make([]byte, maxSaid)
	_ = master.SetReadDeadline(time.Now().Add(time.Second)) // what it printed is there by now, and then the terminal hangs up
	n, _ := master.Read(said)
	return nil, failure(p.c.kind.name+" exec", "terminal", fmt.Errorf("%w: %s", err, bytes.ToValidUTF8(bytes.TrimSpace(said[:n]), []byte("?"))))
}

// awaitConsole waits for the file that the runtime writes when all is in place.
func (p *phase) awaitConsole(ctx context.Context, c *console, file string) error {
	tick := time.NewTicker(pollPause)
	defer tick.Stop()
	for {
		var text []byte
		_ = p.c.work.bench.Do(func() (err error) {
			text, err = os.ReadFile(file)
			return err
		})
		if len(text) > 0 {
			return nil
		}
		select {
		case <-c.ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// killConsoles ends those who put programs on terminals. It comes before the end of the container, of which they would complain, on the terminal.
func (p *phase) killConsoles() (list []*console) {
	p.opening.Lock()
	defer p.opening.Unlock()
	for _, c := range p.consoles {
		c.kill()
	}
	return p.consoles
}

// closeConsoles waits until they are gone, and then ends the init, which with them has not ended by itself.
func (p *phase) closeConsoles() error {
	list := p.killConsoles()
	late := time.After(cleanupPatience)
	for _, c := range list {
		select {
		case <-c.ended:
		case <-late:
			return failure("end console", "cleanup", errStuck)
		}
	}
	if len(list) > 0 && p.init != nil {
		p.init.Kill()
	}
	return nil
}

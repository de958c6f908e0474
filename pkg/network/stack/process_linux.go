package stack

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/procstate"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// init makes every executable that links this package able to be the process of a network. It runs before main, and before the
// initialisers of packages that sort after this one.
func init() {
	if network.Contained = true; len(os.Args) == 1 && os.Args[0] == network.ProcessName {
		os.Exit(run())
	}
}

// run is the process of a network. Its standard input is the socket of the supervisor. It returns the exit code.
func run() int {
	procstate.SetName(network.ProcessName) // otherwise ps shows a descriptor's number
	debug.SetGCPercent(50)                 // its memory is the sandbox's
	c, err := net.FileConn(os.Stdin)
	socket, isUnix := c.(*net.UnixConn)
	if err != nil || !isUnix {
		fmt.Fprintln(os.Stderr, "sandbox-net is started by sandbox-run, for the network of a sandbox")
		return 2
	}
	out := &outbox{socket: socket}
	if err := serve(socket, out); err != nil {
		out.send(network.Message{Error: err.Error()})
		return 1
	}
	return 0
}

// outbox writes messages. A supervisor that is gone is noticed where it is read from.
type outbox struct {
	mu     sync.Mutex
	socket *net.UnixConn
}

func (o *outbox) send(m network.Message) {
	line, err := json.Marshal(m)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.socket.Write(append(line, '\n'))
}

func serve(socket *net.UnixConn, out *outbox) error {
	makeThreads()
	out.send(network.Message{Started: true})
	config, files, err := receive(socket)
	if errors.Is(err, io.EOF) {
		return nil // the phase had no program
	}
	if err != nil {
		return err
	}
	filter, err := config.Policy.Compile(config.Bounds)
	if err != nil {
		return err
	}
	if len(filter.Published()) == 0 && !awaitPacket(files[0], socket, out) {
		out.send(network.Message{Report: &network.Report{}})
		return nil
	}
	o := Options{Device: files[0], Filter: filter, Limits: config.Limits}
	for i, p := range filter.Published() {
		f := os.NewFile(uintptr(files[1+i]), "listener")
		l, err := net.FileListener(f)
		if _ = f.Close(); err != nil {
			return fmt.Errorf("publish port %d: %w", p.Sandbox, err)
		}
		o.Published = append(o.Published, Published{l, p.Sandbox})
	}
	// The first of each kind of refusal is told at once. A supervisor that does not read must not stop the network.
	news := make(chan network.Refused, maxRemembered)
	o.OnRefusal = func(r network.Refused) { news <- r }
	s, err := New(o)
	if err != nil {
		return err
	}
	go func() {
		for r := range news {
			out.send(network.Message{Refused: &r})
		}
	}()
	for isAsked(socket) { // until the supervisor closes its side, or is gone
		report := s.Report()
		out.send(network.Message{SoFar: &report})
	}
	s.Unpublish()
	s.Settle()
	report := s.Report()
	out.send(network.Message{Report: &report})
	return nil // the end of the process closes everything
}

// isAsked waits until the supervisor asks for a report; false: it has closed its side.
func isAsked(socket *net.UnixConn) bool {
	n, err := socket.Read(make([]byte, 1))
	return n > 0 && err == nil
}

// awaitPacket waits for the first packet of a program: most programs that end soon send none, and a stack takes longer to build than they
// run. It returns false if the supervisor closes its side instead.
func awaitPacket(device int, socket *net.UnixConn, out *outbox) bool {
	for {
		wanted := []unix.PollFd{{Fd: int32(device), Events: unix.POLLIN}, {Fd: 0, Events: unix.POLLIN}} //nolint:gosec // a descriptor
		_, err := unix.Poll(wanted, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || wanted[0].Revents != 0:
			return true
		case !isAsked(socket):
			return false
		default:
			out.send(network.Message{SoFar: &network.Report{}})
		}
	}
}

// receive reads the configuration, which comes with the device and the listeners of the published ports.
func receive(socket *net.UnixConn) (c network.Config, files []int, err error) {
	data, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, size, _, _, err := socket.ReadMsgUnix(data, rights)
	if err != nil || n == 0 {
		return c, nil, fmt.Errorf("read configuration: %w", cmp.Or(err, io.EOF))
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err == nil && len(messages) == 1 {
		files, err = unix.ParseUnixRights(&messages[0])
	}
	line := data[:n]
	if !bytes.HasSuffix(line, []byte("\n")) {
		rest, err := bufio.NewReaderSize(socket, network.MaxMessage).ReadSlice('\n')
		if err != nil {
			return c, nil, fmt.Errorf("read configuration: %w", err)
		}
		line = append(line, rest...)
	}
	if err := json.Unmarshal(line, &c); err != nil {
		return c, nil, fmt.Errorf("read configuration: %w", err)
	}
	if err != nil || len(files) != 1+len(c.Policy.Publish) {
		return c, nil, errors.Join(fmt.Errorf("the configuration came with %d descriptors", len(files)), err)
	}
	return c, files, nil
}

// maxFiles is how many descriptors come with a configuration.
const maxFiles = 32

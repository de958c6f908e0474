package stack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Main is the process of a network. Its standard input is the socket of the supervisor. It returns the exit code.
func Main() int {
	debug.SetGCPercent(50) // its memory is the sandbox's
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
	config, device, err := receive(socket)
	if err != nil {
		return err
	}
	filter, err := config.Policy.Compile(config.Bounds)
	if err != nil {
		return err
	}
	// The first of each kind of refusal is told at once. A supervisor that does not read must not stop the network.
	news := make(chan network.Refused, maxRemembered)
	s, err := New(Options{Device: device, Filter: filter, Limits: config.Limits, OnRefusal: func(r network.Refused) { news <- r }})
	if err != nil {
		return err
	}
	go func() {
		for r := range news {
			out.send(network.Message{Refused: &r})
		}
	}()
	out.send(network.Message{Ready: true})
	_, _ = socket.Read(make([]byte, 1)) // until the supervisor closes its side, or is gone
	s.Close()
	report := s.Report()
	out.send(network.Message{Report: &report})
	return nil
}

// receive reads the configuration, which comes with the device.
func receive(socket *net.UnixConn) (c network.Config, device int, err error) {
	data, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	n, size, _, _, err := socket.ReadMsgUnix(data, rights)
	if err != nil {
		return c, -1, fmt.Errorf("read configuration: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err != nil || len(messages) != 1 {
		return c, -1, errors.Join(errors.New("the configuration came without a device"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return c, -1, errors.Join(errors.New("the configuration came without a device"), err)
	}
	line := data[:n]
	if !bytes.HasSuffix(line, []byte("\n")) {
		rest, err := bufio.NewReaderSize(socket, network.MaxMessage).ReadSlice('\n')
		if err != nil {
			return c, -1, fmt.Errorf("read configuration: %w", err)
		}
		line = append(line, rest...)
	}
	if err := json.Unmarshal(line, &c); err != nil {
		return c, -1, fmt.Errorf("read configuration: %w", err)
	}
	return c, fds[0], nil
}

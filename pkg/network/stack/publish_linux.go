package stack

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Published is a listener on the host's loopback whose connections lead to a port of the sandbox. The stack owns the listener.
type Published struct {
	Listener net.Listener
	Port     uint16
}

// publish accepts connections until the end of the stack.
func (s *Stack) publish(p Published) {
	s.published = append(s.published, p.Listener)
	s.flows.Go(func() {
		for {
			host, err := p.Listener.Accept()
			if err != nil {
				return
			}
			if s.limits.Bytes > 0 && s.moved.Load() >= s.limits.Bytes || !s.enter() {
				_ = host.Close()
				continue
			}
			s.flows.Go(func() {
				defer s.leave()
				s.connectInside(host, p.Port)
			})
		}
	})
}

// Unpublish closes the published ports: they are free when it returns.
func (s *Stack) Unpublish() {
	for _, l := range s.published {
		_ = l.Close()
	}
}

// connectInside connects a client of the host to a server in the sandbox, which sees the gateway as its client.
func (s *Stack) connectInside(host net.Conn, port uint16) {
	defer func() { _ = host.Close() }()
	sandbox, _ := s.names.Sandbox()
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	defer cancel()
	to := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(sandbox.AsSlice()), Port: port}
	inside, err := gonet.DialContextTCP(ctx, s.stack, to, ipv4.ProtocolNumber)
	if err != nil {
		return
	}
	f := &flow{s: s, protocol: network.TCP, dest: s.ledger.connected(destinationKey{network.PublishedHost, port, network.TCP})}
	stop := context.AfterFunc(s.ctx, func() { _, _ = inside.Close(), host.Close() })
	defer stop()
	var received sync.WaitGroup
	received.Go(func() { f.copyStream(inside, host, func(n int) bool { return f.count(0, n) }) })
	f.copyStream(host, inside, func(n int) bool { return f.count(n, 0) })
	received.Wait()
	_ = inside.Close()
}

// copyStream copies until the end of from, or until one of both fails.
func (f *flow) copyStream(to, from net.Conn, count func(int) bool) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			failed := errLimit
			if count(n) {
				_, failed = to.Write(buffer[:n])
				f.pace(n)
			}
			if failed != nil {
				_, _ = to.Close(), from.Close()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			return
		}
		if err != nil {
			_, _ = to.Close(), from.Close()
			return
		}
	}
}

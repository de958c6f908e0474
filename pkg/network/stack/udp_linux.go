package stack

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// idleUDP ends a UDP flow in which nothing is sent.
const idleUDP = 60 * time.Second

// maxUDP bounds the open flows of UDP: a program makes one by sending one datagram.
const maxUDP = 1024

// acceptUDP takes the first datagram of a flow. It must not block. The answer to a datagram that is not taken is an ICMP error.
func (s *Stack) acceptUDP(r *udp.ForwarderRequest) bool {
	id := r.ID()
	to := addrOf(id.LocalAddress)
	isDNS := s.isResolver(to, id.LocalPort)
	var f *flow
	if !isDNS {
		allowed := false
		if f, allowed = s.newFlow(to, id.LocalPort, network.UDP); !allowed {
			return false
		}
	}
	// Questions about names are no connections: their sockets stay a while, and would use up the limit.
	open := &s.open
	if isDNS {
		open = &s.asking
	}
	if open.Load() >= maxUDP {
		return false
	}
	wq := new(waiter.Queue)
	ep, err := r.CreateEndpoint(wq)
	if err != nil {
		return false
	}
	guest := gonet.NewUDPConn(wq, ep)
	open.Add(1)
	s.flows.Go(func() {
		defer open.Add(-1)
		defer func() { _ = guest.Close() }()
		stop := context.AfterFunc(s.ctx, func() { _ = guest.Close() })
		defer stop()
		if isDNS {
			s.answerDNS(guest)
		} else {
			f.relayUDP(guest)
		}
	})
	return true
}

// answerDNS answers the queries of one socket.
func (s *Stack) answerDNS(guest *gonet.UDPConn) {
	buffer := make([]byte, 4096)
	for {
		_ = guest.SetReadDeadline(time.Now().Add(lookupTimeout))
		n, err := guest.Read(buffer)
		if err != nil {
			return
		}
		// Glibc sends the queries for both kinds of address at once, from one socket.
		query := append([]byte(nil), buffer[:n]...)
		s.flows.Go(func() {
			if answer := s.resolver.answer(s.ctx, query); answer != nil {
				_, _ = guest.Write(answer)
			}
		})
	}
}

// relayUDP copies datagrams in both directions until nothing is sent for a while.
func (f *flow) relayUDP(guest *gonet.UDPConn) {
	host, err := f.dial(f.s.ctx)
	if err != nil {
		return
	}
	var received sync.WaitGroup
	received.Go(func() {
		f.copyDatagrams(guest, host, func(n int) bool { return f.count(0, n) })
		_ = guest.Close()
	})
	f.copyDatagrams(host, guest, func(n int) bool { return f.count(n, 0) })
	_ = host.Close()
	received.Wait()
}

func (f *flow) copyDatagrams(to, from net.Conn, count func(int) bool) {
	buffer := buffers.Get().(*[chunk]byte) //nolint:forcetypeassert // the pool's own
	defer buffers.Put(buffer)
	for {
		_ = from.SetReadDeadline(time.Now().Add(idleUDP))
		n, err := from.Read(buffer[:])
		if errors.Is(err, net.ErrClosed) || (err != nil && f.s.ctx.Err() != nil) {
			return
		}
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil || !count(n) {
			return
		}
	}
}

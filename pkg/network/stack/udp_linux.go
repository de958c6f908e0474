package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// idleUDP ends a UDP flow in which nothing is sent.
const idleUDP = 60 * time.Second

// maxUDP bounds the open flows of UDP: a program makes one by sending one datagram.
const maxUDP = 1024

// maxDatagram is the size of the largest datagram.
const maxDatagram = 64 << 10

// acceptUDP takes the first datagram of a flow. It must not block. The answer to a datagram that is not taken is an ICMP error.
func (s *Stack) acceptUDP(id stack.TransportEndpointID, packet *stack.PacketBuffer) bool {
	f, allowed := s.newFlow(addrOf(id.LocalAddress), id.LocalPort, network.UDP)
	if !allowed {
		return false
	}
	if s.open.Load() > maxUDP {
		s.leave()
		return false
	}
	wq := new(waiter.Queue)
	ep, err := udp.NewForwarderRequest(s.stack, id, packet.Clone()).CreateEndpoint(wq)
	if err != nil {
		s.leave()
		return false
	}
	first := packet.Clone()
	guest := gonet.NewUDPConn(wq, ep)
	s.flows.Go(func() {
		defer s.leave()
		defer func() { _ = guest.Close() }()
		stop := context.AfterFunc(s.ctx, func() { _ = guest.Close() })
		defer stop()
		f.relayUDP(guest, first)
	})
	return true
}

// rejectUDP answers a datagram that was taken with the ICMP error of one that is not.
func (s *Stack) rejectUDP(packet *stack.PacketBuffer) {
	switch protocol := s.stack.NetworkProtocolInstance(packet.NetworkProtocolNumber).(type) {
	case stack.RejectIPv4WithHandler:
		_ = protocol.SendRejectionError(packet, stack.RejectIPv4WithICMPPortUnreachable, true)
	case stack.RejectIPv6WithHandler:
		_ = protocol.SendRejectionError(packet, stack.RejectIPv6WithICMPPortUnreachable, true)
	}
}

// maxQueries bounds the DNS queries that are being answered. A query beyond it is lost; its program repeats it.
const maxQueries = 256

// answerQueries answers DNS queries over UDP until the end of the stack, through one socket: programs use a new one for each query.
func (s *Stack) answerQueries() error {
	at := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(network.Resolver.AsSlice()), Port: dnsPort}
	socket, err := gonet.DialUDP(s.stack, &at, nil, ipv4.ProtocolNumber)
	if err != nil {
		return fmt.Errorf("open the resolver's socket: %w", err)
	}
	context.AfterFunc(s.ctx, func() { _ = socket.Close() })
	room := make(chan struct{}, maxQueries)
	s.flows.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			select {
			case room <- struct{}{}:
			default:
				continue
			}
			query := append([]byte(nil), buffer[:n]...)
			s.flows.Go(func() {
				if answer := s.resolver.answer(s.ctx, query); answer != nil {
					_, _ = socket.WriteTo(answer, from)
				}
				<-room
			})
		}
	})
	return nil
}

// relayUDP copies datagrams in both directions until nothing is sent for a while. It releases the first datagram.
func (f *flow) relayUDP(guest *gonet.UDPConn, first *stack.PacketBuffer) {
	host, err := f.dial(f.s.ctx)
	if err != nil {
		f.s.rejectUDP(first)
	}
	first.DecRef()
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
	buffer := make([]byte, maxDatagram)
	for {
		_ = from.SetReadDeadline(time.Now().Add(idleUDP))
		n, err := from.Read(buffer)
		if errors.Is(err, net.ErrClosed) || (err != nil && f.s.ctx.Err() != nil) {
			return
		}
		if err != nil {
			return
		}
		if !count(n) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
		f.pace(n)
	}
}

package stack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// dialTimeout bounds a connection attempt on the host.
const dialTimeout = 30 * time.Second

const dnsPort = 53

// buffers are shared by all flows. A flow has one only while there is data to copy: most connections wait most of the time. The large ones
// are for flows that fill a small one.
var buffers = [2]sync.Pool{
	{New: func() any { b := make([]byte, 32<<10); return &b }},
	{New: func() any { b := make([]byte, 256<<10); return &b }},
}

// meter chooses the buffers of one direction of a flow.
type meter struct{ large int }

func (m *meter) take() *[]byte { return buffers[m.large].Get().(*[]byte) } //nolint:forcetypeassert // the pool's own

// put returns a buffer of which n bytes were used; 0 if there was nothing to read.
func (m *meter) put(b *[]byte, n int) {
	buffers[m.large].Put(b)
	switch {
	case n == len(*b):
		m.large = 1
	case n > 0 && n < len(*b)/16:
		m.large = 0
	}
}

func addrOf(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr.Unmap()
}

// acceptTCP answers a SYN. It runs in a goroutine of its own.
func (s *Stack) acceptTCP(r *tcp.ForwarderRequest) {
	s.flows.Add(1)
	defer s.flows.Done()
	id := r.ID()
	to := addrOf(id.LocalAddress)
	if to == network.Resolver && id.LocalPort == dnsPort {
		if guest := acceptGuest(r); guest != nil {
			s.serveDNS(guest)
		}
		return
	}
	f, allowed := s.newFlow(to, id.LocalPort, network.TCP)
	if !allowed {
		r.Complete(true)
		return
	}
	// The program is connected when the host is: a host that refuses is one that refuses the program.
	host, err := f.dial(s.ctx)
	if err != nil {
		s.leave()
		r.Complete(true)
		return
	}
	guest := acceptGuest(r)
	if guest == nil {
		s.leave()
		_ = host.Close()
		return
	}
	f.relay(guest, host.(*net.TCPConn)) //nolint:forcetypeassert // it dials tcp
	s.tidy.Reset(tidyAfter)
}

// guestConn is the program's end of a TCP connection.
type guestConn struct {
	ep tcpip.Endpoint
	wq *waiter.Queue
}

// acceptGuest completes the handshake; nil if the program has given up.
func acceptGuest(r *tcp.ForwarderRequest) *guestConn {
	wq := new(waiter.Queue)
	ep, err := r.CreateEndpoint(wq)
	if err != nil {
		r.Complete(true)
		return nil
	}
	r.Complete(false)
	return &guestConn{ep, wq}
}

// serveDNS answers queries over TCP, each behind its length.
func (s *Stack) serveDNS(guest *guestConn) {
	c := gonet.NewTCPConn(guest.wq, guest.ep)
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(s.ctx, func() { guest.ep.Abort() })
	defer stop()
	for {
		_ = c.SetDeadline(time.Now().Add(lookupTimeout))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		answer := s.resolver.answer(s.ctx, query)
		if answer == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil { //nolint:gosec // small
			return
		}
	}
}

// relay copies in both directions until both have ended, or one fails. It returns at once: the caller's stack is large after a dial, and a
// connection that waits shall not keep it.
func (f *flow) relay(guest *guestConn, host *net.TCPConn) {
	abort := sync.OnceFunc(func() {
		guest.ep.Abort()
		_ = host.SetLinger(0)
		_ = host.Close()
	})
	stop := context.AfterFunc(f.s.ctx, abort)
	var ended atomic.Int32
	finish := func(err error) {
		if err != nil {
			abort()
		}
		if ended.Add(1) == 2 {
			stop()
			_ = host.Close()
			guest.ep.Close()
			f.s.leave()
		}
	}
	f.s.flows.Go(func() { finish(f.receive(guest, host)) })
	f.s.flows.Go(func() { finish(f.send(guest, host, abort)) })
}

// send copies what the program sends.
func (f *flow) send(guest *guestConn, host *net.TCPConn, abort func()) error {
	inspect := f.newInspector(abort)
	defer inspect.stop()
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	guest.wq.EventRegister(&entry)
	defer guest.wq.EventUnregister(&entry)
	var m meter
	for {
		buffer := m.take()
		w := tcpip.SliceWriter(*buffer)
		result, err := guest.ep.Read(&w, tcpip.ReadOptions{})
		var failed error
		if err == nil {
			if failed = errLimit; f.count(result.Count, 0) {
				failed = inspect.pass((*buffer)[:result.Count], host)
				f.pace(result.Count)
			}
		}
		m.put(buffer, result.Count)
		switch err.(type) {
		case nil:
			if failed != nil {
				return failed
			}
		case *tcpip.ErrWouldBlock:
			<-ready
		case *tcpip.ErrClosedForReceive:
			return host.CloseWrite()
		default:
			return errors.New(err.String())
		}
	}
}

var errLimit = errors.New("limit of bytes reached")

// receive copies what the host sends.
func (f *flow) receive(guest *guestConn, host *net.TCPConn) error {
	raw, err := host.SyscallConn()
	if err != nil {
		return err
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	guest.wq.EventRegister(&entry)
	defer guest.wq.EventUnregister(&entry)
	var m meter
	for {
		var buffer *[]byte
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			buffer = m.take()
			for {
				n, failed = unix.Read(int(fd), *buffer)
				if !errors.Is(failed, syscall.EINTR) {
					break
				}
			}
			if errors.Is(failed, syscall.EAGAIN) {
				m.put(buffer, 0)
				buffer = nil
				return false
			}
			return true
		})
		if err = errors.Join(err, failed); err != nil || n <= 0 {
			if buffer != nil {
				m.put(buffer, 0)
			}
			if err != nil {
				return err
			}
			if e := guest.ep.Shutdown(tcpip.ShutdownWrite); e != nil {
				return errors.New(e.String())
			}
			return nil
		}
		if err = errLimit; f.count(0, n) {
			err = guest.write((*buffer)[:n], ready)
			f.pace(n)
		}
		m.put(buffer, n)
		if err != nil {
			return err
		}
	}
}

// write writes all of data.
func (g *guestConn) write(data []byte, ready <-chan struct{}) error {
	r := bytes.NewReader(data)
	for r.Len() > 0 {
		_, err := g.ep.Write(r, tcpip.WriteOptions{})
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-ready
		default:
			return errors.New(err.String())
		}
	}
	return nil
}

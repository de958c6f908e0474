package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Options describe a network.
type Options struct {
	Device int // descriptor of the frames: see package netdev
	Filter *network.Filter
	Limits network.Limits
	// OnRefusal is called for the first of each kind of refusal. It must not block.
	OnRefusal func(network.Refused)
	Published []Published
	// IsLocal reports whether an address is this machine's own; default: the kernel decides.
	IsLocal func(netip.Addr) bool
	// Lookup resolves names; default: the host's resolver.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
}

// Stack is the network of one phase of a sandbox.
type Stack struct {
	stack    *stack.Stack
	link     *heldLink
	names    *names
	resolver *resolver
	ledger   *ledger
	filter   *network.Filter
	limits   network.Limits
	lookup   func(ctx context.Context, name string) ([]netip.Addr, error)
	isLocal  func(netip.Addr) bool
	bucket   *bucket

	ctx    context.Context //nolint:containedctx // of all flows
	cancel context.CancelFunc
	flows  sync.WaitGroup
	open   atomic.Int64 // connections, and flows of UDP
	moved  atomic.Int64
	tidy   *time.Timer // after the latest connections

	published []net.Listener
}

// giveBack returns unused memory to the kernel. Each collection halves the stacks that are mostly unused.
func giveBack() {
	runtime.GC()
	runtime.GC()
	debug.FreeOSMemory()
}

// tidyAfter is how long no connection may have been made before the memory that making them took is given back. It is the sandbox's.
const tidyAfter = 300 * time.Millisecond

const nic = 1

// gsoMaxSize is the largest packet that the kernel takes in one piece.
const gsoMaxSize = 64 << 10

// Buffers of a connection inside the stack. The kernel's own sockets on both sides have theirs.
var (
	receiveBuffer = tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 4 << 20}
	sendBuffer    = tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 4 << 20}
)

// New builds the stack. The caller keeps the device and closes it after Close.
func New(o Options) (*Stack, error) {
	ranges, err := o.Filter.Ranges()
	if err != nil {
		return nil, err
	}
	names := &names{Ranges: ranges, number: map[string]uint32{}}
	s := &Stack{
		names: names, ledger: newLedger(o.OnRefusal), filter: o.Filter, limits: o.Limits,
		isLocal: o.IsLocal, bucket: newBucket(o.Limits.Rate),
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
		}),
	}
	l := &lookups{filter: o.Filter, ask: o.Lookup}
	if l.ask == nil {
		l.ask = lookupHost
	}
	s.lookup = l.find
	if s.isLocal == nil {
		s.isLocal = localAddresses()
	}
	s.resolver = &resolver{filter: o.Filter, names: names, lookup: s.lookup, refuse: s.ledger.refuse}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tidy = time.AfterFunc(time.Hour, giveBack)
	s.tidy.Stop()
	link, err := fdbased.New(&fdbased.Options{
		FDs: []int{o.Device}, MTU: netdev.MTU, EthernetHeader: true, Address: netdev.GatewayMAC,
		PacketDispatchMode: fdbased.RecvMMsg, RXChecksumOffload: true, GSOMaxSize: gsoMaxSize,
	})
	if err != nil {
		return nil, fmt.Errorf("open device: %w", err)
	}
	s.link = &heldLink{LinkEndpoint: link, GSOEndpoint: link.(stack.GSOEndpoint)}
	if err := s.configure(); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.answerQueries(); err != nil {
		s.Close()
		return nil, err
	}
	for _, p := range o.Published {
		s.publish(p)
	}
	s.link.release()
	return s, nil
}

// heldLink is a device that the stack reads after release only. An interface reads its device from its creation, and drops packets to
// addresses that it does not have yet; a datagram that a program sent before is not sent again.
type heldLink struct {
	stack.LinkEndpoint
	stack.GSOEndpoint
	dispatcher stack.NetworkDispatcher
}

// Attach keeps the dispatcher for release. Without one it ends the goroutine that reads the device.
func (l *heldLink) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.LinkEndpoint.Attach(nil)
		return
	}
	l.dispatcher = d
}

// release starts the goroutine that reads the device.
func (l *heldLink) release() { l.LinkEndpoint.Attach(l.dispatcher) }

func (s *Stack) configure() error {
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &receiveBuffer, &sendBuffer} {
		if err := s.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("set TCP options: %s", err)
		}
	}
	s.stack.SetICMPLimit(1e9) // a program waits for an error that is not sent
	s.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s.stack, 0, maxHandshakes, s.acceptTCP).HandlePacket)
	s.stack.SetTransportProtocolHandler(udp.ProtocolNumber, s.acceptUDP)
	if err := s.stack.CreateNIC(nic, s.link); err != nil {
		return fmt.Errorf("make interface: %s", err)
	}
	gateway4, gateway6 := s.names.Gateway()
	sandbox4, sandbox6 := s.names.Sandbox()
	for _, pair := range [][2]netip.Addr{{gateway4, sandbox4}, {gateway6, sandbox6}, {network.Resolver, sandbox4}} {
		a, sandbox := pair[0], pair[1]
		protocol := ipv4.ProtocolNumber
		if a.Is6() {
			protocol = ipv6.ProtocolNumber
		}
		if err := s.stack.AddStaticNeighbor(nic, protocol, tcpip.AddrFromSlice(sandbox.AsSlice()), netdev.MAC); err != nil {
			return fmt.Errorf("add neighbour %s: %s", sandbox, err)
		}
		address := tcpip.ProtocolAddress{Protocol: protocol, AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix()}
		if err := s.stack.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("set address %s: %s", a, err)
		}
	}
	// Packets to every address are for this stack, and it answers in the name of every address.
	if err := s.stack.SetPromiscuousMode(nic, true); err != nil {
		return fmt.Errorf("set promiscuous mode: %s", err)
	}
	if err := s.stack.SetSpoofing(nic, true); err != nil {
		return fmt.Errorf("set spoofing: %s", err)
	}
	s.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	return nil
}

// maxHandshakes bounds connections that are being made.
const maxHandshakes = 1024

// Settle waits while data moves, for at most settleTimeout: what programs have sent before they ended is still on its way.
func (s *Stack) Settle() {
	for end, quiet := time.Now().Add(settleTimeout), 0; quiet < 2 && s.open.Load() > 0 && time.Now().Before(end); quiet++ {
		before := s.moved.Load()
		time.Sleep(settleInterval)
		if s.moved.Load() != before {
			quiet = -1
		}
	}
}

const (
	settleTimeout  = 200 * time.Millisecond
	settleInterval = 2 * time.Millisecond
)

// Report returns what the network did so far.
func (s *Stack) Report() network.Report { return s.ledger.report() }

// Close ends all flows and waits for them.
func (s *Stack) Close() {
	s.cancel()
	s.Unpublish()
	s.tidy.Stop()
	s.link.Attach(nil) // ends the goroutine that reads the device
	s.link.Wait()
	s.stack.Close()
	s.flows.Wait()
}

// flow is a connection of a program.
type flow struct {
	s        *Stack
	target   netip.AddrPort // as the program addressed it
	name     string         // for which the address stands; may be empty
	protocol network.Protocol
	dest     *monitor.Destination
}

// newFlow decides on a connection before anything is sent, and counts it. The refusal is recorded.
func (s *Stack) newFlow(a netip.Addr, port uint16, p network.Protocol) (*flow, bool) {
	f := &flow{s: s, target: netip.AddrPortFrom(a, port), protocol: p}
	name, own := s.names.find(a)
	if own && name == "" {
		f.refuse(network.Refusal{Reason: "no such host in the sandbox's network"})
		return nil, false
	}
	f.name = name
	if s.limits.Bytes > 0 && s.moved.Load() >= s.limits.Bytes {
		f.refuse(network.Refusal{Reason: fmt.Sprintf("more than %d bytes in all", s.limits.Bytes)})
		return nil, false
	}
	var refused *network.Refusal
	if name != "" {
		refused = s.filter.ByName(name, p, port)
	} else {
		refused = s.filter.ByAddress(a, p, port, false, s.isLocal(a))
	}
	if refused == nil && !s.enter() {
		refused = &network.Refusal{Reason: fmt.Sprintf("more than %d connections at a time", s.limits.Connections)}
	}
	if refused != nil {
		f.refuse(*refused)
		return nil, false
	}
	return f, true
}

// enter counts a connection, unless the limit allows no more. The caller calls leave at its end.
func (s *Stack) enter() bool {
	if n := s.open.Add(1); s.limits.Connections > 0 && n > int64(s.limits.Connections) {
		s.leave()
		return false
	}
	return true
}

func (s *Stack) leave() { s.open.Add(-1) }

func (f *flow) host() string {
	if f.name != "" {
		return f.name
	}
	return f.target.Addr().String()
}

func (f *flow) refuse(r network.Refusal) {
	f.s.ledger.refuse(refusal{Refusal: r, Host: f.host(), Port: f.target.Port(), Protocol: f.protocol})
}

// dial connects to the host's side. The addresses of a name are looked up and decided on for every connection.
func (f *flow) dial(ctx context.Context) (net.Conn, error) {
	candidates, port := []netip.Addr{f.target.Addr()}, f.target.Port()
	if at, found := f.s.filter.Service(f.name); found {
		candidates[0], port = at.Addr(), at.Port() // the supervisor's own
	} else if f.name != "" {
		list, err := f.s.lookup(ctx, f.name)
		if err != nil {
			return nil, err
		}
		candidates = candidates[:0]
		for _, a := range list {
			if refused := f.s.filter.ByAddress(a, f.protocol, f.target.Port(), true, f.s.isLocal(a)); refused != nil {
				refused.Reason = fmt.Sprintf("%s %s", refused.Reason, a)
				f.refuse(*refused)
				continue
			}
			candidates = append(candidates, a)
		}
	}
	err := errors.New("no address is allowed")
	for _, a := range candidates {
		var c net.Conn
		d := net.Dialer{Timeout: dialTimeout / time.Duration(len(candidates)), KeepAlive: -1}
		if c, err = d.DialContext(ctx, string(f.protocol), netip.AddrPortFrom(a, port).String()); err == nil {
			f.dest = f.s.ledger.connected(destinationKey{f.host(), f.target.Port(), f.protocol})
			if f.name != "" && network.IsSpecial(a, f.s.isLocal(a)) {
				f.s.ledger.needed(destinationKey{a.String(), f.target.Port(), f.protocol})
			}
			return c, nil
		}
	}
	return nil, err
}

// count reports whether the limit of bytes allows a transfer, and adds it to the figures of the flow.
func (f *flow) count(sent, received int) bool {
	if moved := f.s.moved.Add(int64(sent + received)); f.s.limits.Bytes > 0 && moved > f.s.limits.Bytes {
		f.refuse(network.Refusal{Reason: fmt.Sprintf("more than %d bytes in all", f.s.limits.Bytes)})
		return false
	}
	f.s.ledger.add(f.dest, sent, received)
	return true
}

// pace waits after a transfer of n bytes until the limit of the rate allows the next one.
func (f *flow) pace(n int) { f.s.bucket.wait(f.s.ctx, n) }

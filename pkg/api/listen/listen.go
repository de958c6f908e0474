package listen

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/peer"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options configures the listeners.
type Options struct {
	Addresses []Address
	Inherited []Inherited // opened by systemd
	// TLS applies to every TCP connection; nil means plain HTTP.
	TLS *tls.Config
	// Exposed is called before an address is bound that other machines can reach; an error refuses it.
	Exposed func(where string) error
	// MaxConnections bounds the open TCP connections, so that unix sockets always get through; 0 means 4096.
	MaxConnections int
	// WriteTimeout is how long a TCP client may leave written data unread; 0 means a minute. Clients on the unix socket have no limit: a
	// person may read their output.
	WriteTimeout time.Duration
}

const (
	defaultConnections  = 4096
	defaultWriteTimeout = time.Minute
)

// Via is how a connection arrived.
type Via struct {
	Kind Kind
	TLS  bool
	Peer Peer   // of a unix socket
	At   string // the listener's address, as Address.String returns it
}

// Kind is the kind of a listener.
type Kind string

// The kinds.
const (
	Unix     Kind = "unix"
	Loopback Kind = "loopback"
	Exposed  Kind = "exposed"
)

// Peer is the process at the other end of a unix socket, as the kernel reports it.
type Peer = peer.Peer

type viaKey struct{}

// ConnContext is the ConnContext of http.Server. It adds Via to the context of requests.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if ours, ok := c.(*conn); ok {
		return context.WithValue(ctx, viaKey{}, ours.via)
	}
	return ctx
}

// ViaOf returns how the request of that context arrived; false for a request that came through no Listener.
func ViaOf(ctx context.Context) (Via, bool) {
	v, ok := ctx.Value(viaKey{}).(Via)
	return v, ok
}

// WithVia returns a context as ConnContext makes it.
func WithVia(ctx context.Context, v Via) context.Context { return context.WithValue(ctx, viaKey{}, v) }

// Set is a set of open listeners. The caller closes it.
type Set struct {
	listeners []*Listener
	once      sync.Once
}

// Open binds all addresses, or none.
func Open(ctx context.Context, o Options) (*Set, error) {
	o.MaxConnections, o.WriteTimeout = cmp.Or(o.MaxConnections, defaultConnections), cmp.Or(o.WriteTimeout, defaultWriteTimeout)
	s := &Set{}
	slots := make(chan struct{}, o.MaxConnections)
	add := func(l net.Listener, close func() error, via Via) {
		s.listeners = append(s.listeners, &Listener{
			Listener: l, via: via, o: o, slots: slots, closeAll: close, done: make(chan struct{}),
		})
	}
	for _, a := range o.Addresses {
		l, closer, err := o.bind(ctx, a)
		if err != nil {
			_ = s.Close() // the error of the address matters more
			return nil, err
		}
		add(l, closer, viaOf(l.Addr(), o.TLS != nil))
	}
	for _, in := range o.Inherited {
		via := viaOf(in.Listener.Addr(), o.TLS != nil)
		if via.Kind == Exposed {
			if err := o.exposed(via.At); err != nil {
				_ = s.Close()
				return nil, err
			}
		}
		add(in.Listener, in.Listener.Close, via)
	}
	return s, nil
}

func (o Options) exposed(where string) error {
	if o.Exposed == nil {
		return &sandbox.Error{Op: "listen " + where, Kind: sandbox.ErrRefused, Err: errors.New("other machines can reach it")}
	}
	return o.Exposed(where)
}

func (o Options) bind(ctx context.Context, a Address) (net.Listener, func() error, error) {
	if a.Path != "" {
		return openSocket(ctx, a.Path)
	}
	if a.Exposed() {
		if err := o.exposed(a.String()); err != nil {
			return nil, nil, err
		}
	}
	var lc net.ListenConfig
	network := "tcp"
	if a.TCP.Addr().Is4() { // 0.0.0.0 must not bind IPv6, too
		network = "tcp4"
	}
	l, err := lc.Listen(ctx, network, a.TCP.String())
	if err != nil {
		return nil, nil, &sandbox.Error{Op: "listen " + a.String(), Err: cause(err), Hint: "use another address"}
	}
	return l, l.Close, nil
}

// cause strips the address from a net.OpError; the caller's message has it already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// ViaOfListener returns how connections of a listener arrive, by the address it is bound to.
func ViaOfListener(l net.Listener, secured bool) Via { return viaOf(l.Addr(), secured) }

func viaOf(addr net.Addr, secured bool) Via {
	switch a := addr.(type) {
	case *net.UnixAddr:
		return Via{Kind: Unix, At: unixScheme + "//" + a.Name}
	case *net.TCPAddr:
		ip, _ := netip.AddrFromSlice(a.IP)
		via := Via{Kind: Exposed, TLS: secured, At: a.String()}
		if ip.Unmap().IsLoopback() {
			via.Kind = Loopback
		}
		return via
	}
	return Via{Kind: Exposed, TLS: secured, At: fmt.Sprint(addr)} // treat an unknown kind as exposed
}

// Listeners returns the open listeners.
func (s *Set) Listeners() []*Listener { return s.listeners }

// Close closes all listeners. It may be called twice.
func (s *Set) Close() (err error) {
	s.once.Do(func() {
		for _, l := range s.listeners {
			err = errors.Join(err, l.Close())
		}
	})
	return err
}

// Listener is one open listener.
type Listener struct {
	net.Listener
	via      Via
	o        Options
	slots    chan struct{} // one per TCP connection
	closeAll func() error
	once     sync.Once
	done     chan struct{}
	// Refused is called for every refused user; set it before Accept. It may be nil.
	Refused func(Peer)
}

// Via returns how connections of the listener arrive.
func (l *Listener) Via() Via { return l.via }

// Close closes the listener and removes its socket. It may be called twice.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		close(l.done)
		err = l.closeAll()
	})
	return err
}

// Accept blocks until a client connects that may use the server.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		if l.via.Kind != Unix {
			return l.acceptTCP()
		}
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, l.acceptError(err)
		}
		credentials, err := peer.Of(c)
		if err != nil || !trustedPeer(credentials) {
			_ = c.Close() // the connection is refused anyway
			if l.Refused != nil {
				l.Refused(credentials)
			}
			continue
		}
		via := l.via
		via.Peer = credentials
		return &conn{Conn: c, via: via}, nil
	}
}

func (l *Listener) acceptTCP() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	leave := func() { <-l.slots }
	c, err := l.Listener.Accept()
	if err != nil {
		leave()
		return nil, l.acceptError(err)
	}
	ours := &conn{Conn: c, via: l.via, writeTimeout: l.o.WriteTimeout, leave: sync.OnceFunc(leave)}
	if l.o.TLS != nil {
		return tls.Server(ours, l.o.TLS), nil
	}
	return ours, nil
}

// acceptError returns net.ErrClosed if the listener was closed.
func (l *Listener) acceptError(err error) error {
	select {
	case <-l.done:
		return net.ErrClosed
	default:
		return err
	}
}

// conn is a connection with its Via. It fails when its client stops reading.
type conn struct {
	net.Conn
	via          Via
	writeTimeout time.Duration // 0 for none
	leave        func()        // frees the slot; nil for none
}

// piece is the number of bytes per write deadline: a large answer is not cut off while its client reads, however slowly.
const piece = 256 << 10

func (c *conn) Write(b []byte) (n int, err error) {
	if c.writeTimeout <= 0 {
		return c.Conn.Write(b)
	}
	for {
		if err := c.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(b[n:min(len(b), n+piece)])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (c *conn) Close() error {
	if c.leave != nil {
		c.leave()
	}
	return c.Conn.Close()
}

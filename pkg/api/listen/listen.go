package listen

import (
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

// Options say what is listened on, and how.
type Options struct {
	Addresses []Address
	Inherited []Inherited // that somebody has opened for us
	// TLS is for every TCP connection; nil is plain HTTP.
	TLS *tls.Config
	// Exposed is asked before anything is bound that other machines can reach; an error refuses it.
	Exposed func(where string) error
	// MaxConnections bounds what TCP can have open at a time, so that the unix sockets always get through; 0 is 4096.
	MaxConnections int
	// WriteTimeout is how long a TCP client may leave unread what is written to it; 0 is a minute. A program of this user's
	// own, on the unix socket, may take its time: it can be a person who reads.
	WriteTimeout time.Duration
}

const (
	defaultConnections  = 4096
	defaultWriteTimeout = time.Minute
)

// Via is how a connection came.
type Via struct {
	Kind Kind
	TLS  bool
	Peer Peer   // of a unix socket
	At   string // the address it came to, as String of Address
}

// Kind is the kind of socket.
type Kind string

// The kinds.
const (
	Unix     Kind = "unix"
	Loopback Kind = "loopback"
	Exposed  Kind = "exposed"
)

// Peer is who is at the other end of a unix socket, as the kernel has it.
type Peer = peer.Peer

type viaKey struct{}

// ConnContext is for http.Server: requests then know how they came.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if ours, ok := c.(*conn); ok {
		return context.WithValue(ctx, viaKey{}, ours.via)
	}
	return ctx
}

// ViaOf is how the request of that context came; false where it came some other way, in a test say.
func ViaOf(ctx context.Context) (Via, bool) {
	v, ok := ctx.Value(viaKey{}).(Via)
	return v, ok
}

// WithVia is a context as ConnContext makes it.
func WithVia(ctx context.Context, v Via) context.Context { return context.WithValue(ctx, viaKey{}, v) }

// Set are open listeners.
type Set struct {
	listeners []*Listener
	once      sync.Once
}

// Open binds everything, or nothing.
func Open(ctx context.Context, o Options) (*Set, error) {
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultConnections
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = defaultWriteTimeout
	}
	s := &Set{}
	slots := make(chan struct{}, o.MaxConnections)
	add := func(l net.Listener, close func() error, via Via) {
		s.listeners = append(s.listeners, &Listener{Listener: l, via: via, o: o, slots: slots, closeAll: close, done: make(chan struct{})})
	}
	for _, a := range o.Addresses {
		l, closer, err := o.bind(ctx, a)
		if err != nil {
			_ = s.Close() // what is wrong with the address comes first
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
		return &sandbox.Error{Op: "listen " + where, Kind: sandbox.ErrRefused, Err: errors.New("other machines could reach it")}
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
	if a.TCP.Addr().Is4() { // 0.0.0.0 means just that
		network = "tcp4"
	}
	l, err := lc.Listen(ctx, network, a.TCP.String())
	if err != nil {
		return nil, nil, &sandbox.Error{Op: "listen " + a.String(), Err: cause(err), Hint: "another address"}
	}
	return l, l.Close, nil
}

// cause strips what net says about the place, which is said already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// ViaOfListener is how connections of a listener come, by what it is bound to.
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
	return Via{Kind: Exposed, TLS: secured, At: fmt.Sprint(addr)} // whatever it is, it is not known to be harmless
}

// Listeners are what came of it.
func (s *Set) Listeners() []*Listener { return s.listeners }

// Close closes all of them. Twice is fine.
func (s *Set) Close() (err error) {
	s.once.Do(func() {
		for _, l := range s.listeners {
			err = errors.Join(err, l.Close())
		}
	})
	return err
}

// Listener is one of them.
type Listener struct {
	net.Listener
	via      Via
	o        Options
	slots    chan struct{} // one for each TCP connection there may be
	closeAll func() error
	once     sync.Once
	done     chan struct{}
	// Refused is told of users that were not let in; set it before Accept. Nil is fine.
	Refused func(Peer)
}

// Via is how connections come through it.
func (l *Listener) Via() Via { return l.via }

// Close removes the socket as well. Twice is fine.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		close(l.done)
		err = l.closeAll()
	})
	return err
}

// Accept waits for somebody who may come in.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		if l.via.Kind != Unix {
			return l.acceptTCP()
		}
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, l.ended(err)
		}
		who, err := peer.Of(c)
		if err != nil || !welcome(who) {
			_ = c.Close() // it is nobody's who matters
			if l.Refused != nil {
				l.Refused(who)
			}
			continue
		}
		via := l.via
		via.Peer = who
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
		return nil, l.ended(err)
	}
	ours := &conn{Conn: c, via: l.via, writeTimeout: l.o.WriteTimeout, leave: sync.OnceFunc(leave)}
	if l.o.TLS != nil {
		return tls.Server(ours, l.o.TLS), nil
	}
	return ours, nil
}

// ended says plainly that it was closed, where that is why nobody comes.
func (l *Listener) ended(err error) error {
	select {
	case <-l.done:
		return net.ErrClosed
	default:
		return err
	}
}

// conn is a connection that knows how it came, and is cut off when its client stops reading.
type conn struct {
	net.Conn
	via          Via
	writeTimeout time.Duration // 0 is none
	leave        func()        // nil is nothing
}

// piece is what is written with one deadline: a large answer is not cut off while its client reads, however slowly.
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

package stack

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// localAddresses returns a function that reports whether an address is one of this machine. The kernel decides, for every
// connection: addresses come and go.
//
// A socket can be bound to addresses of this machine only. Where the kernel lets it be bound to any (ip_nonlocal_bind), the source
// address of a packet tells: it is the destination's own, if that is here.
func localAddresses() func(netip.Addr) bool {
	if canBind(network.Resolver) { // no machine has this address
		return isOwnSource
	}
	return canBind
}

func canBind(a netip.Addr) bool { return withSocket(a, 0, unix.Bind) }

// isOwnSource sends nothing: to connect a datagram socket is to choose its addresses.
func isOwnSource(a netip.Addr) bool {
	return withSocket(a, dnsPort, func(fd int, to unix.Sockaddr) error {
		if err := unix.Connect(fd, to); err != nil {
			return err
		}
		var from netip.Addr
		at, err := unix.Getsockname(fd)
		switch at := at.(type) {
		case *unix.SockaddrInet4:
			from = netip.AddrFrom4(at.Addr)
		case *unix.SockaddrInet6:
			from = netip.AddrFrom16(at.Addr)
		}
		if err == nil && from != a.Unmap() {
			err = unix.EADDRNOTAVAIL
		}
		return err
	})
}

// withSocket reports whether try succeeds with a new datagram socket. Without a socket, as when no descriptor is left, the address is taken
// for one of this machine: a program could otherwise use up the descriptors to reach it.
func withSocket(a netip.Addr, port int, try func(fd int, at unix.Sockaddr) error) bool {
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: a.As16(), Port: port})
	if a = a.Unmap(); a.Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return !errors.Is(err, unix.EAFNOSUPPORT)
	}
	defer func() { _ = unix.Close(fd) }()
	return try(fd, at) == nil
}

package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Address is a place to listen: the path of a unix socket, or an IP address with a port.
type Address struct {
	Path string         // of a unix socket; empty for TCP
	TCP  netip.AddrPort // port 0 means any free port
	Host string         // the host name as given, if there was one
}

const (
	unixScheme = "unix:"
	mostPath   = 104 // macOS; Linux allows four more
)

const howToWrite = "write it like unix:///run/me/server.sock, 127.0.0.1:8080 or [::1]:8080"

// Parse reads an address. It resolves a host name, so that the address that is checked is the one that is bound.
func Parse(ctx context.Context, text string) (Address, error) {
	if rest, ok := strings.CutPrefix(text, unixScheme); ok {
		return parsePath(text, rest)
	}
	if strings.HasPrefix(text, "/") {
		return parsePath(text, text)
	}
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		hint := rest
		if scheme == "https" {
			hint += " with --tls-cert and --tls-key"
		}
		return Address{}, &sandbox.Error{
			Op: fmt.Sprintf("listen %q", text), Kind: sandbox.ErrInvalid, Err: fmt.Errorf("scheme %q is not supported", scheme), Hint: hint,
		}
	}
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		return Address{}, sandbox.Invalid(fmt.Sprintf("listen %q", text), "not an address with a port; %s", howToWrite)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || portText[0] == '+' {
		return Address{}, sandbox.Invalid(fmt.Sprintf("listen %q", text), "%q is no port; %s", portText, howToWrite)
	}
	a := Address{}
	switch ip, err := netip.ParseAddr(host); {
	case err == nil:
		a.TCP = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	case host == "" || host == "*":
		a.TCP = netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))
	default:
		ip, err := lookUp(ctx, host)
		if err != nil {
			return Address{}, &sandbox.Error{
				Op: fmt.Sprintf("listen %q", text), Kind: sandbox.ErrInvalid, Err: err, Hint: "use an IP address instead of the name",
			}
		}
		a.TCP, a.Host = netip.AddrPortFrom(ip, uint16(port)), host
	}
	return a, nil
}

func parsePath(text, path string) (Address, error) {
	wrong := func(format string, args ...any) (Address, error) {
		return Address{}, sandbox.Invalid(fmt.Sprintf("listen %q", text), format, args...)
	}
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		path = rest
		if !strings.HasPrefix(path, "/") { // unix://run/x would name a host "run"
			return wrong("the path is not absolute; %s", howToWrite)
		}
	}
	switch {
	case !filepath.IsAbs(path):
		return wrong("the path is not absolute; %s", howToWrite)
	case strings.ContainsRune(path, 0):
		return wrong("the path has a NUL byte")
	case filepath.Clean(path) != path:
		return wrong("the path is not in its shortest form; write %s", filepath.Clean(path))
	case len(path) >= mostPath:
		return wrong("the path has %d bytes; use one with fewer than %d", len(path), mostPath)
	}
	return Address{Path: path}, nil
}

func lookUp(ctx context.Context, host string) (netip.Addr, error) {
	if strings.EqualFold(host, "localhost") { // do not ask a resolver
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up %s: %w", host, err)
	}
	if len(all) == 0 {
		return netip.Addr{}, errors.New("the name has no address")
	}
	return all[0].Unmap(), nil
}

// Exposed reports whether other machines can connect.
func (a Address) Exposed() bool { return a.Path == "" && !a.TCP.Addr().IsLoopback() }

// Via returns how connections to the address will arrive.
func (a Address) Via(secured bool) Via {
	if a.Path != "" {
		return viaOf(&net.UnixAddr{Name: a.Path}, secured)
	}
	return viaOf(net.TCPAddrFromAddrPort(a.TCP), secured)
}

func (a Address) String() string {
	if a.Path != "" {
		return unixScheme + "//" + a.Path
	}
	return a.TCP.String()
}

package network

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
)

// Ranges are the addresses of a sandbox's own network: the gateway, the sandbox, and an address for each name.
type Ranges struct{ V4, V6 netip.Prefix }

// FirstName is the number of the first address that stands for a name.
const FirstName = 16

// Ranges for the network of a sandbox, in order of preference. None of them is on the internet.
var (
	ranges4 = []netip.Prefix{
		netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("100.127.0.0/16"),
		netip.MustParsePrefix("172.31.0.0/16"), netip.MustParsePrefix("10.255.0.0/16"), netip.MustParsePrefix("192.168.0.0/16"),
	}
	ranges6 = []netip.Prefix{
		netip.MustParsePrefix("fd73:6e64::/64"), netip.MustParsePrefix("fd73:6e65::/64"), netip.MustParsePrefix("fc73:6e64::/64"),
	}
)

// Ranges chooses ranges that no allowed prefix overlaps.
func (f *Filter) Ranges() (Ranges, error) {
	free := func(list []netip.Prefix) netip.Prefix {
		for _, p := range list {
			if !slices.ContainsFunc(f.allow, func(r rule) bool { return r.prefix.IsValid() && r.prefix.Overlaps(p) }) {
				return p
			}
		}
		return netip.Prefix{}
	}
	r := Ranges{free(ranges4), free(ranges6)}
	if !r.V4.IsValid() || !r.V6.IsValid() {
		return r, errors.New("the allowed prefixes leave no range for the sandbox's own addresses; allow smaller ones")
	}
	return r, nil
}

// Resolver is the name server of every sandbox, whatever its ranges: /etc/resolv.conf has it (RFC 5737, no host has this address).
var Resolver = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// Gateway returns the addresses of the gateway, which is also the resolver.
func (r Ranges) Gateway() (v4, v6 netip.Addr) { return Address(r.V4, 1), Address(r.V6, 1) }

// Sandbox returns the addresses of the sandbox.
func (r Ranges) Sandbox() (v4, v6 netip.Addr) { return Address(r.V4, 2), Address(r.V6, 2) }

// Device returns the addresses of the sandbox's device, and the gateways of its routes, as bytes.
func (r Ranges) Device() (addresses, gateways [][]byte) {
	sandbox4, sandbox6 := r.Sandbox()
	gateway4, gateway6 := r.Gateway()
	return [][]byte{sandbox4.AsSlice(), sandbox6.AsSlice()}, [][]byte{gateway4.AsSlice(), gateway6.AsSlice()}
}

// Address is the n-th address of a range.
func Address(p netip.Prefix, n uint32) netip.Addr {
	raw := p.Addr().AsSlice()
	last := raw[len(raw)-4:]
	binary.BigEndian.PutUint32(last, binary.BigEndian.Uint32(last)+n)
	a, _ := netip.AddrFromSlice(raw)
	return a
}

package stack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// names gives each resolved name an address of its own, IPv4 and IPv6 with the same number. A connection to that address is a
// connection to that name, whatever port and protocol it uses.
type names struct {
	network.Ranges

	mu     sync.Mutex
	number map[string]uint32
	entry  []nameEntry // by number
	clock  uint64
}

type nameEntry struct {
	name string
	used uint64
}

// maxNames bounds the table. A program that resolves more names loses the ones it has not used for longest.
const maxNames = 4096

// assign returns the addresses that stand for a name.
func (n *names) assign(name string) (v4, v6 netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clock++
	i, known := n.number[name]
	switch {
	case known:
	case len(n.entry) < maxNames:
		i = uint32(len(n.entry))
		n.entry = append(n.entry, nameEntry{})
	default:
		oldest := slices.MinFunc(n.entry, func(a, b nameEntry) int { return int(int64(a.used - b.used)) })
		i = n.number[oldest.name]
		delete(n.number, oldest.name)
	}
	n.number[name], n.entry[i] = i, nameEntry{name, n.clock}
	return network.Address(n.V4, network.FirstName+i), network.Address(n.V6, network.FirstName+i)
}

// find returns the name for which an address stands. own reports that the address is in the ranges, whether it has a name or not.
func (n *names) find(a netip.Addr) (name string, own bool) {
	base := n.V4
	if a.Is6() {
		base = n.V6
	}
	if !base.Contains(a) {
		return "", false
	}
	raw := a.AsSlice()
	first := base.Addr().AsSlice()
	if !slices.Equal(raw[:len(raw)-4], first[:len(raw)-4]) {
		return "", true
	}
	i := binary.BigEndian.Uint32(raw[len(raw)-4:]) - binary.BigEndian.Uint32(first[len(raw)-4:])
	n.mu.Lock()
	defer n.mu.Unlock()
	if i < network.FirstName || i-network.FirstName >= uint32(len(n.entry)) {
		return "", true
	}
	n.clock++
	n.entry[i-network.FirstName].used = n.clock
	return n.entry[i-network.FirstName].name, true
}

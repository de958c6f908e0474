package stack

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// lookupTimeout bounds the host's resolver.
const lookupTimeout = 10 * time.Second

// lookups asks the host's resolver, and keeps an answer for a moment: a program that connects to a name has just asked for it, and many
// connect several times. Its addresses are checked for every connection all the same.
type lookups struct {
	filter *network.Filter
	ask    func(ctx context.Context, name string) ([]netip.Addr, error)

	mu    sync.Mutex
	known map[string]lookup
}

type lookup struct {
	addresses []netip.Addr
	at        time.Time
}

const (
	lookupKept = time.Second
	maxLookups = 1024
)

func (l *lookups) find(ctx context.Context, name string) ([]netip.Addr, error) {
	if at, found := l.filter.Service(name); found {
		return []netip.Addr{at.Addr()}, nil
	}
	l.mu.Lock()
	kept, found := l.known[name]
	l.mu.Unlock()
	if found && time.Since(kept.at) < lookupKept {
		return kept.addresses, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	list, err := l.ask(ctx, name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil || len(l.known) >= maxLookups {
		l.known = map[string]lookup{}
	}
	l.known[name] = lookup{list, time.Now()}
	return list, nil
}

// lookupHost asks the host's resolver.
func lookupHost(ctx context.Context, name string) ([]netip.Addr, error) {
	// The dot at the end keeps the host's search domains out.
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
	for i := range list {
		list[i] = list[i].Unmap()
	}
	return list, err
}

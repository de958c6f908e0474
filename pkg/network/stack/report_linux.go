package stack

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// maxRemembered bounds refusals, and destinations, of a report.
const maxRemembered = 256

type refusal struct {
	network.Refusal
	Host     string
	Port     uint16
	Protocol network.Protocol
}

type destinationKey struct {
	host     string
	port     uint16
	protocol network.Protocol
}

// ledger collects a report.
type ledger struct {
	mu           sync.Mutex
	refused      map[refusal]int
	destinations map[destinationKey]*monitor.Destination
	special      map[destinationKey]bool // addresses of names that needed a rule of their own
	lost         int
	onRefusal    func(network.Refused) // called once for each kind of refusal, with mu held
}

func newLedger(onRefusal func(network.Refused)) *ledger {
	return &ledger{refused: map[refusal]int{}, destinations: map[destinationKey]*monitor.Destination{}, special: map[destinationKey]bool{}, onRefusal: onRefusal}
}

func (r refusal) count(n int) network.Refused {
	return network.Refused{Host: r.Host, Port: r.Port, Protocol: string(r.Protocol), Reason: r.Reason, Allow: r.Allow, Count: n}
}

func (l *ledger) refuse(r refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.refused[r]
	if !known && len(l.refused) >= maxRemembered {
		l.lost++
		return
	}
	if l.refused[r] = n + 1; !known && l.onRefusal != nil {
		l.onRefusal(r.count(1))
	}
}

// connected counts a connection. The bytes of the returned destination are changed through add only.
func (l *ledger) connected(k destinationKey) *monitor.Destination {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.destinations[k]
	if d == nil {
		if len(l.destinations) >= maxRemembered {
			l.lost++
			k = destinationKey{host: "others"}
		}
		if d = l.destinations[k]; d == nil {
			d = &monitor.Destination{Host: k.host, Port: k.port, Protocol: string(k.protocol)}
			l.destinations[k] = d
		}
	}
	d.Connections++
	return d
}

// needed remembers an address that a rule of its own has admitted.
func (l *ledger) needed(k destinationKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.special[k]:
	case len(l.special) >= maxRemembered:
		l.lost++
	default:
		l.special[k] = true
	}
}

func (l *ledger) add(d *monitor.Destination, sent, received int) {
	l.mu.Lock()
	d.Sent += int64(sent)
	d.Received += int64(received)
	l.mu.Unlock()
}

func (l *ledger) report() network.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := network.Report{Lost: l.lost}
	for k, n := range l.refused {
		r.Refused = append(r.Refused, k.count(n))
	}
	for _, d := range l.destinations {
		r.Destinations = append(r.Destinations, *d)
	}
	for k := range l.special {
		r.Special = append(r.Special, monitor.Destination{Host: k.host, Port: k.port, Protocol: string(k.protocol)})
	}
	slices.SortFunc(r.Refused, func(a, b network.Refused) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(r.Destinations, func(a, b monitor.Destination) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
	})
	return r
}

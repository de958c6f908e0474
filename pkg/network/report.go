package network

import (
	"fmt"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// Report is what a network did so far.
type Report struct {
	Refused      []Refused             `json:"refused,omitempty"`
	Destinations []monitor.Destination `json:"destinations,omitempty"`
	// Special are the addresses of names among the destinations that needed a rule of their own. They have no figures.
	Special []monitor.Destination `json:"special,omitempty"`
	Lost    int                   `json:"lost,omitempty"` // refusals and destinations that did not fit
}

// Since returns what was done after an earlier report of the same network; nil is its start.
func (r *Report) Since(earlier *Report) *Report {
	if earlier == nil {
		return r
	}
	later := &Report{Special: r.Special, Lost: max(0, r.Lost-earlier.Lost)}
	for _, now := range r.Refused {
		for _, was := range earlier.Refused {
			if was.Host == now.Host && was.Port == now.Port && was.Protocol == now.Protocol && was.Reason == now.Reason {
				now.Count -= was.Count
				break
			}
		}
		if now.Count > 0 {
			later.Refused = append(later.Refused, now)
		}
	}
	for _, now := range r.Destinations {
		for _, was := range earlier.Destinations {
			if was.Host == now.Host && was.Port == now.Port && was.Protocol == now.Protocol {
				now.Subtract(was)
				break
			}
		}
		if now.Connections > 0 || now.Sent > 0 || now.Received > 0 {
			later.Destinations = append(later.Destinations, now)
		}
	}
	return later
}

// Refused is a name or a connection that was not allowed.
type Refused struct {
	Host     string `json:"host"`
	Port     uint16 `json:"port,omitempty"`
	Protocol string `json:"protocol"` // tcp, udp, dns
	Reason   string `json:"reason"`
	Allow    string `json:"allow,omitempty"` // the rule that would allow it
	Count    int    `json:"count"`
}

// Limits bound a network. Zero means no limit.
type Limits struct {
	Rate        int64 `json:"rate,omitempty"`        // bytes per second, both directions together
	Bytes       int64 `json:"bytes,omitempty"`       // in all, both directions together
	Connections int   `json:"connections,omitempty"` // open at a time
}

// Sentence describes a refusal for people.
func (r *Refused) Sentence() string {
	if r.Protocol == "dns" {
		return fmt.Sprintf("the name %s was not resolved: %s", r.Host, r.Reason)
	}
	return fmt.Sprintf("%s port %d (%s) was refused: %s", r.Host, r.Port, r.Protocol, r.Reason)
}

// PublishedHost stands for the clients of published ports among the destinations.
const PublishedHost = "published"

// Needed is the least policy that allows the destinations.
func (r *Report) Needed() Policy {
	type hostKey struct{ host, protocol string }
	ports := map[hostKey][]uint16{}
	for _, d := range slices.Concat(r.Destinations, r.Special) {
		if d.Host != PublishedHost && d.Port != 0 { // without a port: those that were not remembered one by one
			k := hostKey{d.Host, d.Protocol}
			ports[k] = append(ports[k], d.Port)
		}
	}
	p := Policy{Mode: Allow}
	for k, list := range ports {
		slices.Sort(list)
		for some := range slices.Chunk(slices.Compact(list), 32) { // a rule has a greatest length
			p.Allow = append(p.Allow, exact(k.host, Protocol(k.protocol), some...))
		}
	}
	slices.Sort(p.Allow)
	return p
}

package testnet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsStream answers queries over TCP.
func (n *internet) dnsStream(c net.Conn) {
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		a := n.answer(query, c.LocalAddr(), c.RemoteAddr(), 64<<10)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil { //nolint:gosec // small
			return
		}
	}
}

// slowAnswer is how long the answer for slow.example takes.
const slowAnswer = 300 * time.Millisecond

// answer is the response to a query. A response that is longer than most is cut off, as in a datagram.
func (n *internet) answer(query []byte, local, remote net.Addr, most int) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		n.see(Event{Service: "dns", Local: local.String(), Remote: remote.String(), Data: bytes.Clone(query)})
		return nil
	}
	q := m.Questions[0]
	n.see(Event{Service: "dns", Local: local.String(), Remote: remote.String(), Host: q.Name.String(), Data: bytes.Clone(query)})
	name := strings.TrimSuffix(strings.ToLower(q.Name.String()), ".")
	if name == slow {
		time.Sleep(slowAnswer)
	}
	r := dnsmessage.Message{Questions: m.Questions, Header: dnsmessage.Header{
		ID: m.ID, Response: true, RecursionDesired: true, RecursionAvailable: true,
	}}
	owner := q.Name
	alias := func(to string) {
		target := dnsmessage.MustNewName(to + ".")
		r.Answers = append(r.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: owner, Class: q.Class}, Body: &dnsmessage.CNAMEResource{CNAME: target},
		})
		owner = target
	}
	addresses, known := zone[name]
	switch {
	case known:
	case strings.HasSuffix(name, wild):
		addresses, known = []string{Public, Public6}, true
	case name == Rebinding:
		addresses, known = []string{n.rebind(q.Type)}, true
	case name == Chain:
		alias("one.chain.example")
		alias("two.chain.example")
		addresses, known = []string{Public}, true
	case name == InwardChain:
		alias("private.example")
		addresses, known = []string{Private}, true
	case name == Huge:
		addresses, known = []string{Public}, true
		for i := range 500 {
			addresses = append(addresses, fmt.Sprintf("93.184.217.%d", 1+i%250))
		}
	}
	if !known {
		r.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addresses {
		a := netip.MustParseAddr(text)
		h := dnsmessage.ResourceHeader{Name: owner, Class: q.Class, TTL: 300}
		if name == noCache || name == Rebinding {
			h.TTL = 0
		}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case !a.Is4() && q.Type == dnsmessage.TypeAAAA:
			r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	packed, err := r.Pack()
	if err == nil && len(packed) > most {
		r.Answers, r.Truncated = nil, true
		packed, err = r.Pack()
	}
	if err != nil {
		return nil
	}
	return packed
}

// rebind is the address of a name that is first public and then private.
func (n *internet) rebind(t dnsmessage.Type) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rebound {
		return Private
	}
	n.rebound = t == dnsmessage.TypeA
	return Public
}

package stack

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// FuzzAnswer: every message has a well-formed answer or none, and only allowed names are asked for.
func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"good.example.", "bad.example.", "a.wild.example.", "GOOD.example.", "1.2.0.192.in-addr.arpa.", "."} {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, 65, 255} {
			m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
				{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET},
			}}
			packed, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(packed)
			f.Add(append(packed[:4:4], append([]byte{0, 2}, packed[6:]...)...)) // says that there are two questions
		}
	}
	f.Add([]byte{})
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01")) // a name that points to itself
	filter, err := network.Policy{Allow: []string{"good.example", "*.wild.example"}}.Compile(network.Bounds{})
	if err != nil {
		f.Fatal(err)
	}
	ranges, err := filter.Ranges()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, query []byte) {
		looked := ""
		r := &resolver{
			filter: filter, names: &names{Ranges: ranges, number: map[string]uint32{}}, refuse: func(refusal) {},
			lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
				if looked = name; strings.HasPrefix(name, "no.") {
					return nil, &net.DNSError{IsNotFound: true}
				}
				return []netip.Addr{netip.MustParseAddr(public), netip.MustParseAddr(public6)}, nil
			},
		}
		answer := r.answer(t.Context(), query)
		if looked != "" && looked != "good.example" && (!strings.HasSuffix(looked, ".wild.example") || looked != strings.ToLower(looked)) {
			t.Errorf("asked for %q", looked)
		}
		if answer == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil {
			t.Fatalf("the answer % x: %v", answer, err)
		}
		if !m.Response || len(query) < 2 || m.ID != uint16(query[0])<<8|uint16(query[1]) || len(m.Questions) > 1 || len(answer) > 512 {
			t.Errorf("%d bytes: %+v", len(answer), m)
		}
		for _, a := range m.Answers {
			var addr netip.Addr
			switch b := a.Body.(type) {
			case *dnsmessage.AResource:
				addr = netip.AddrFrom4(b.A)
			case *dnsmessage.AAAAResource:
				addr = netip.AddrFrom16(b.AAAA)
			}
			if !ranges.V4.Contains(addr) && !ranges.V6.Contains(addr) || looked == "" {
				t.Errorf("the answer has %v after a lookup of %q", a, looked)
			}
		}
	})
}

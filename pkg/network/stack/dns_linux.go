package stack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// nameTTL is how long a program may keep an answer, in seconds. A name keeps its address far longer.
const nameTTL = 60

// resolver answers the programs' DNS queries.
type resolver struct {
	filter *network.Filter
	names  *names
	lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	refuse func(refusal)
}

// answer returns the response to a query, or nil for a message that is none.
//
// An allowed name has the address that stands for it, if the host's resolver knows the name at all. A name that only
// Policy.DNS resolves has its real addresses, so that rules by address decide. Other names do not exist, other types are empty:
// above all HTTPS records, which would let a client encrypt its server name.
func (r *resolver) answer(ctx context.Context, query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil || head.Response {
		return nil
	}
	reply := dnsmessage.Header{
		ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired, RecursionAvailable: true,
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 || head.OpCode != 0 {
		reply.RCode = dnsmessage.RCodeFormatError
		return build(reply, nil, nil)
	}
	q := questions[0]
	addresses, code := r.resolve(ctx, q)
	reply.RCode = code
	return build(reply, &q, addresses)
}

func (r *resolver) resolve(ctx context.Context, q dnsmessage.Question) ([]netip.Addr, dnsmessage.RCode) {
	if q.Class != dnsmessage.ClassINET {
		return nil, dnsmessage.RCodeRefused
	}
	name, err := network.CanonicalName(q.Name.String())
	if err != nil || strings.HasSuffix(name, ".in-addr.arpa") || strings.HasSuffix(name, ".ip6.arpa") {
		return nil, dnsmessage.RCodeNameError
	}
	allowed, refused := r.filter.Name(name)
	if refused != nil {
		r.refuse(refusal{Refusal: *refused, Host: name, Protocol: "dns"})
		return nil, dnsmessage.RCodeNameError
	}
	if q.Type != dnsmessage.TypeA && q.Type != dnsmessage.TypeAAAA {
		return nil, dnsmessage.RCodeSuccess
	}
	real, err := r.lookup(ctx, name)
	if err != nil {
		if notFound, ok := errors.AsType[*net.DNSError](err); ok && notFound.IsNotFound {
			return nil, dnsmessage.RCodeNameError
		}
		return nil, dnsmessage.RCodeServerFailure
	}
	if allowed {
		v4, v6 := r.names.assign(name)
		real = []netip.Addr{v4, v6}
	}
	var answers []netip.Addr
	for _, a := range real {
		if a.Is4() == (q.Type == dnsmessage.TypeA) {
			answers = append(answers, a)
		}
	}
	return answers, dnsmessage.RCodeSuccess
}

// maxAnswers bounds the addresses of a response, so that it fits a datagram of 512 bytes.
const maxAnswers = 8

func build(head dnsmessage.Header, q *dnsmessage.Question, addresses []netip.Addr) []byte {
	m := dnsmessage.Message{Header: head}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
	}
	for _, a := range addresses[:min(len(addresses), maxAnswers)] {
		r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: nameTTL}}
		if a.Is4() {
			r.Body = &dnsmessage.AResource{A: a.As4()}
		} else {
			r.Body = &dnsmessage.AAAAResource{AAAA: a.As16()}
		}
		m.Answers = append(m.Answers, r)
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

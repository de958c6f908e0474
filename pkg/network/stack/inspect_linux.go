package stack

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// firstBytes is how long a client may take to name its host on an inspected port.
const firstBytes = 5 * time.Second

// maxNamed is how much of a host that a client names is reported: a longer one could make a report too large to send.
const maxNamed = 300

// inspector holds back what a program sends until its protocol has named the host of the connection.
type inspector struct {
	f     *flow
	held  []byte
	timer *time.Timer
	// next returns how many bytes of data may go, and whether all that follows may go as well.
	next func(data []byte) (n int, done bool, err error)
}

// newInspector returns the inspector of the flow's port. abort ends the flow when the client is silent.
func (f *flow) newInspector(abort func()) *inspector {
	i := &inspector{f: f}
	if f.name == "" || !f.s.filter.Inspects() {
		return i
	}
	switch port := f.target.Port(); {
	case slices.Contains(network.TLSPorts, port):
		i.next = i.hello
	case slices.Contains(network.HTTPPorts, port):
		i.next = (&httpInspector{inspector: i}).next
	default:
		return i
	}
	i.timer = time.AfterFunc(firstBytes, func() {
		f.refuse(network.Refusal{Reason: fmt.Sprintf("named no host within %s", firstBytes)})
		abort()
	})
	return i
}

func (i *inspector) stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}

// pass writes what may go to the host.
func (i *inspector) pass(data []byte, host io.Writer) error {
	if i.next == nil && len(i.held) == 0 {
		_, err := host.Write(data)
		return err
	}
	i.held = append(i.held, data...)
	for len(i.held) > 0 {
		n, done := len(i.held), true
		var err error
		if i.next != nil {
			n, done, err = i.next(i.held)
		}
		if err != nil {
			i.f.refuse(network.Refusal{Reason: err.Error()})
			return err
		}
		if done {
			i.next, n = nil, len(i.held)
		}
		if n == 0 {
			return nil
		}
		if _, err := host.Write(i.held[:n]); err != nil {
			return err
		}
		i.held = append(i.held[:0], i.held[n:]...)
	}
	if i.next == nil {
		i.held = nil
	}
	return nil
}

// named compares the host that the client has named with the name of the connection.
func (i *inspector) named(kind, host string) error {
	if i.timer.Stop(); host == i.f.name {
		return nil
	}
	if name, err := network.CanonicalName(host); err != nil || name != i.f.name {
		return fmt.Errorf("%s %.*q is not the host of the connection", kind, maxNamed, host)
	}
	return nil
}

// hello is for TLS: the ClientHello, then all.
func (i *inspector) hello(data []byte) (n int, done bool, err error) {
	name, more, err := serverName(data)
	if err != nil || more {
		return 0, false, err
	}
	return 0, true, i.named("server name", name)
}

// httpInspector is for HTTP/1: every request.
type httpInspector struct {
	*inspector
	requests requests
}

func (h *httpInspector) next(data []byte) (n int, done bool, err error) {
	n, host, err := h.requests.next(data)
	if err == nil && host != "" {
		err = h.named("Host", host)
	}
	return n, false, err
}

package network

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

func TestReportSince(t *testing.T) {
	earlier := &Report{
		Refused:      []Refused{{Host: "a", Port: 80, Protocol: "tcp", Reason: "not allowed", Count: 2}, {Host: "b", Protocol: "dns", Reason: "not allowed", Count: 1}},
		Destinations: []monitor.Destination{{Host: "c", Port: 443, Protocol: "tcp", Connections: 1, Sent: 10, Received: 20}, {Host: "d", Protocol: "udp", Connections: 1}},
		Lost:         1,
	}
	now := &Report{
		Refused: []Refused{{Host: "a", Port: 80, Protocol: "tcp", Reason: "not allowed", Count: 5}, {Host: "b", Protocol: "dns", Reason: "not allowed", Count: 1},
			{Host: "a", Port: 81, Protocol: "tcp", Reason: "not allowed", Count: 1}},
		Destinations: []monitor.Destination{{Host: "c", Port: 443, Protocol: "tcp", Connections: 1, Sent: 15, Received: 20}, {Host: "d", Protocol: "udp", Connections: 1}},
		Lost:         3,
	}
	want := &Report{
		Refused: []Refused{{Host: "a", Port: 80, Protocol: "tcp", Reason: "not allowed", Count: 3},
			{Host: "a", Port: 81, Protocol: "tcp", Reason: "not allowed", Count: 1}},
		Destinations: []monitor.Destination{{Host: "c", Port: 443, Protocol: "tcp", Sent: 5}},
		Lost:         2,
	}
	if diff := cmp.Diff(want, now.Since(earlier)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(now, now.Since(nil)); diff != "" {
		t.Error(diff)
	}
}

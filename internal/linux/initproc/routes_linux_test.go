package initproc

import "testing"

func TestRouteCounters(t *testing.T) {
	const snmp = "Ip: Forwarding DefaultTTL OutDiscards OutNoRoutes ReasmTimeout\nIp: 2 64 0 17 0\nIcmp: InMsgs OutNoRoutes\nIcmp: 1 2\n"
	for text, want := range map[string]uint64{
		snmp: 17, snmp[:70]: 0, "": 0, "Ip: OutNoRoutes": 0, "Ip: OutNoRoutes\nIp:": 0, "Ip: OutNoRoutes\nIp: x\n": 0, "Ip: A\nIp: 3\n": 0,
	} {
		if got := numberBelow([]byte(text), "OutNoRoutes"); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	for text, want := range map[string]uint64{
		"Ip6OutDiscards                  \t3\nIp6OutNoRoutes                  \t4\nIp6ReasmTimeout \t5\n": 4, "": 0, "Ip6OutNoRoutes": 0,
	} {
		if got := numberAfter([]byte(text), "Ip6OutNoRoutes"); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if n := numberAfter([]byte("VmPeak:\t   9 kB\nVmHWM:\t    1234 kB\nVmRSS:\t   7 kB\n"), "VmHWM:"); n != 1234 {
		t.Error(n)
	}
	if n := new(routeCounters).noRoutes(); n != 0 {
		t.Errorf("%d of a namespace that is another's", n)
	}
}

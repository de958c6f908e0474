package network

import "net/netip"

// specialRanges are the addresses that no rule for a name and no mode admits: private, link-local, loopback, multicast and
// special-purpose ranges (the registries of IANA for IPv4 and IPv6), and the addresses at which clouds serve metadata outside of
// these ranges. Each has the reason that a refusal gives.
var specialRanges = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("169.254.169.254/32"), "cloud metadata"},
	{netip.MustParsePrefix("168.63.129.16/32"), "cloud metadata"},   // Azure
	{netip.MustParsePrefix("100.100.100.200/32"), "cloud metadata"}, // Alibaba
	{netip.MustParsePrefix("192.0.0.192/32"), "cloud metadata"},     // Oracle
	{netip.MustParsePrefix("fd00:ec2::254/128"), "cloud metadata"},  // AWS
	{netip.MustParsePrefix("0.0.0.0/8"), "special-purpose"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "private"}, // carrier-grade NAT
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "special-purpose"},
	{netip.MustParsePrefix("192.0.2.0/24"), "special-purpose"},
	{netip.MustParsePrefix("192.31.196.0/24"), "special-purpose"},
	{netip.MustParsePrefix("192.52.193.0/24"), "special-purpose"},
	{netip.MustParsePrefix("192.88.99.0/24"), "special-purpose"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("192.175.48.0/24"), "special-purpose"},
	{netip.MustParsePrefix("198.18.0.0/15"), "special-purpose"},
	{netip.MustParsePrefix("198.51.100.0/24"), "special-purpose"},
	{netip.MustParsePrefix("203.0.113.0/24"), "special-purpose"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "special-purpose"},
	{netip.MustParsePrefix("2001::/23"), "special-purpose"}, // Teredo and others
	{netip.MustParsePrefix("2001:db8::/32"), "special-purpose"},
	{netip.MustParsePrefix("2002::/16"), "special-purpose"}, // 6to4 contains IPv4 addresses
	{netip.MustParsePrefix("2620:4f:8000::/48"), "special-purpose"},
	{netip.MustParsePrefix("3fff::/20"), "special-purpose"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("fc00::/7"), "private"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// globalUnicast is the only IPv6 range that is assigned for general use. NAT64, mapped and other transition forms lie outside.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// special returns why an address is no ordinary address of the internet, or "".
func special(a netip.Addr) string {
	for _, r := range specialRanges {
		if r.prefix.Contains(a) {
			return r.why
		}
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return "special-purpose"
	}
	return ""
}

// specialBits returns how long a prefix has to be to name a special address: as long as that of the widest special range around it.
// A prefix such as 64.0.0.0/2 is for the internet, and also contains loopback and metadata addresses. 0: an ordinary address.
func specialBits(a netip.Addr) int {
	least := 0
	for _, r := range specialRanges {
		if r.prefix.Contains(a) && (least == 0 || r.prefix.Bits() < least) {
			least = r.prefix.Bits()
		}
	}
	return least
}

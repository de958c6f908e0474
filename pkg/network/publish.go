package network

import (
	"fmt"
	"strconv"
	"strings"
)

// Port is a TCP port of programs that is reachable on the host's loopback.
type Port struct {
	Host    uint16 `json:"host,omitempty"` // 0: the kernel chooses
	Sandbox uint16 `json:"sandbox"`
}

// maxPublished is how many ports a policy may publish.
const maxPublished = 16

func parsePublish(texts []string) ([]Port, error) {
	if len(texts) > maxPublished {
		return nil, fmt.Errorf("publish: %d ports; the most is %d", len(texts), maxPublished)
	}
	var ports []Port
	taken := map[uint16]bool{}
	for _, text := range texts {
		host, inside, both := strings.Cut(text, ":")
		if !both {
			host, inside = "", text
		}
		var p Port
		var err error
		if p.Sandbox, err = parsePort(inside); err == nil && both {
			p.Host, err = parsePort(host)
		}
		if err != nil {
			return nil, fmt.Errorf("publish: %q: %w; write PORT or HOSTPORT:PORT", text, err)
		}
		if p.Host != 0 && taken[p.Host] {
			return nil, fmt.Errorf("publish: %q: port %d of the host is used twice", text, p.Host)
		}
		taken[p.Host] = true
		ports = append(ports, p)
	}
	return ports, nil
}

// parsePort reads a port as rules and addresses have it: decimal, without a sign or a leading zero.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' || text[0] == '+' {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

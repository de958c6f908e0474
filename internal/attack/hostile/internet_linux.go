package hostile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reachTimeout is far beyond what a refusal takes: silence is not one.
const reachTimeout = 8 * time.Second

// reachOut tries to reach servers: triples of a network, an address, and what to say there. All attempts run at once. Their answers come
// in the order of the arguments; the detail is what the server has said.
//
//	echo                        sends the mark, expects it back
//	http HOST                   a request with that Host
//	split HOST                  the same, byte by byte
//	pipeline HOST HOST          two requests in one write
//	connect HOST:PORT           asks a proxy for a tunnel
//	absolute URL HOST           asks a proxy for a URL
//	prior                       HTTP/2 without a handshake
//	tls NAME                    a handshake with that server name; empty: none
//	tls-split NAME              the same, byte by byte
//	follow                      a request that follows redirections
func reachOut(args []string) {
	answers := make([]func(), len(args)/3)
	var all sync.WaitGroup
	for i := range answers {
		network, address, what := args[3*i], args[3*i+1], args[3*i+2]
		all.Go(func() {
			said, err := reachAndSay(network, address, what)
			got := outcome(err)
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				got = "timeout"
			}
			if unknown := (*net.DNSError)(nil); errors.As(err, &unknown) && unknown.IsNotFound {
				got = "unknown name"
			}
			if got == "error" {
				said = err.Error()
			}
			answers[i] = func() { tell(network+" "+address+" "+what, got, said) }
		})
	}
	all.Wait()
	for _, answer := range answers {
		answer()
	}
}

func reachAndSay(network, address, what string) (said string, err error) {
	verb, rest, _ := strings.Cut(what, " ")
	first, second, _ := strings.Cut(rest, " ")
	if verb == "follow" {
		client := http.Client{Timeout: reachTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
		a, err := client.Get("http://" + address + first) //nolint:noctx // it has a timeout
		if err != nil {
			return "", err
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		return string(text), err
	}
	c, err := net.DialTimeout(network, address, reachTimeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if from := c.LocalAddr(); from != nil && from.String() == address {
		return reachAndSay(network, address, what) // the socket would hear itself
	}
	_ = c.SetDeadline(time.Now().Add(reachTimeout))
	answers := 1
	switch verb {
	case "echo":
		mark := os.Getenv(Variable)
		if _, err = io.WriteString(c, mark); err == nil {
			answer := make([]byte, len(mark))
			_, err = io.ReadFull(c, answer)
			said = strings.TrimRight(string(answer), "\x00")
		}
		return said, err
	case "tls", "tls-split":
		if verb == "tls-split" {
			c = byteByByte{c}
		}
		config := &tls.Config{ServerName: first, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}} //nolint:gosec // an attacker
		s := tls.Client(c, config)
		if err = s.Handshake(); err != nil {
			return "", err
		}
		state := s.ConnectionState()
		return state.PeerCertificates[0].Subject.CommonName + " " + state.NegotiatedProtocol, nil
	case "http":
		err = request(c, http.MethodGet, "/", first)
	case "split":
		err = request(byteByByte{c}, http.MethodGet, "/", first)
	case "pipeline":
		answers = 2
		var both bytes.Buffer
		_ = request(&both, http.MethodGet, "/", first)
		_ = request(&both, http.MethodGet, "/", second)
		_, err = c.Write(both.Bytes())
	case "connect":
		err = request(c, http.MethodConnect, first, first)
	case "absolute":
		err = request(c, http.MethodGet, first, second)
	case "prior":
		_, err = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		if err == nil {
			answer := make([]byte, 9)
			_, err = io.ReadFull(c, answer)
			said = strings.TrimRight(string(answer), "\x00")
		}
		return said, err
	default:
		return "", errors.New("no such attempt: " + what)
	}
	for r := bufio.NewReader(c); answers > 0 && err == nil; answers-- {
		var a *http.Response
		if a, err = http.ReadResponse(r, nil); err == nil {
			var text []byte
			text, err = io.ReadAll(a.Body)
			said += strconv.Itoa(a.StatusCode) + " " + string(text) + "\n"
		}
	}
	return said, err
}

func request(w io.Writer, method, target, host string) error {
	_, err := io.WriteString(w, method+" "+target+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	return err
}

// byteByByte writes every byte in a packet of its own.
type byteByByte struct{ net.Conn }

func (b byteByByte) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := b.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// queries sends DNS messages: triples of a network, the address of a name server, and NAME TYPE [OPTION]. Labels are separated by dots; a
// backslash and three digits are a byte. OPTION is edns (the mark in an option of the message), more (the mark in a second question),
// chaos (another class) or update (another operation). The detail of an answer has the addresses.
func queries(args []string) {
	answers := make([]func(), len(args)/3)
	var all sync.WaitGroup
	for i := range answers {
		network, server, what := args[3*i], args[3*i+1], args[3*i+2]
		all.Go(func() {
			name, rest, _ := strings.Cut(what, " ")
			kind, option, _ := strings.Cut(rest, " ")
			n, _ := strconv.Atoi(kind)
			got, detail := query(network, server, dnsMessage(name, uint16(n), option)) //nolint:gosec // a type
			answers[i] = func() { tell(network+" "+server+" "+what, got, detail) }
		})
	}
	all.Wait()
	for _, answer := range answers {
		answer()
	}
}

const (
	classInternet, classChaos = 1, 3
	operationUpdate           = 5
)

// dnsMessage is a query, made by hand: libraries refuse to make the odd ones.
func dnsMessage(name string, kind uint16, option string) []byte {
	mark := os.Getenv(Variable)
	id := uint16(time.Now().UnixNano()) //nolint:gosec // any
	head := [6]uint16{id, 1 << 8, 1}
	class := uint16(classInternet)
	switch option {
	case "chaos":
		class = classChaos
	case "update":
		head[1] |= operationUpdate << 11
	case "more":
		head[2]++
	case "edns":
		head[5]++
	}
	var m []byte
	for _, v := range head {
		m = binary.BigEndian.AppendUint16(m, v)
	}
	question := func(name string) {
		m = appendName(m, name)
		m = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(m, kind), class)
	}
	question(name)
	if option == "more" {
		question(mark + ".good.example")
	}
	if option == "edns" { // OPT, with an option for local use
		m = append(m, 0, 0, 41, 4, 0, 0, 0, 0, 0)
		m = binary.BigEndian.AppendUint16(m, uint16(4+len(mark))) //nolint:gosec // short
		m = append(m, 0xfd, 0xe9)
		m = binary.BigEndian.AppendUint16(m, uint16(len(mark))) //nolint:gosec // short
		m = append(m, mark...)
	}
	return m
}

func appendName(m []byte, name string) []byte {
	for label := range strings.SplitSeq(name, ".") {
		var raw []byte
		for i := 0; i < len(label); i++ {
			if label[i] == '\\' && i+3 < len(label) {
				n, _ := strconv.Atoi(label[i+1 : i+4])
				raw, i = append(raw, byte(n)), i+3 //nolint:gosec // three digits of ours
				continue
			}
			raw = append(raw, label[i])
		}
		m = append(append(m, byte(len(raw))), raw...) //nolint:gosec // a label of ours
	}
	return append(m, 0)
}

// query sends a message and reads the answer: "ok" with addresses or data, "empty", the number of an error, or what went wrong.
func query(network, server string, message []byte) (got, detail string) {
	c, err := net.DialTimeout(network, server, reachTimeout)
	if err != nil {
		return outcome(err), ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(reachTimeout))
	answer := make([]byte, 64<<10)
	n := 0
	if strings.HasPrefix(network, "tcp") {
		var size [2]byte
		if _, err = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)); err == nil { //nolint:gosec // short
			_, err = io.ReadFull(c, size[:])
		}
		if err == nil {
			n, err = io.ReadFull(c, answer[:binary.BigEndian.Uint16(size[:])])
		}
	} else if _, err = c.Write(message); err == nil {
		n, err = c.Read(answer)
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return "timeout", ""
	}
	if err != nil {
		return outcome(err), ""
	}
	if n < 12 {
		return "error", "a short answer"
	}
	if code := answer[3] & 15; code != 0 {
		return "error " + strconv.Itoa(int(code)), ""
	}
	if records := binary.BigEndian.Uint16(answer[6:]); records == 0 {
		return "empty", ""
	}
	return "ok", fmt.Sprintf("%x", answer[n-min(n-12, 16):n])
}

// sockets tries to make sockets, and packets, that a program of an ordinary sandbox has no use for. good is an allowed address with an
// echo at its port, other one that is not allowed.
func sockets(args []string) {
	for _, s := range []struct {
		name                   string
		family, kind, protocol int
	}{
		{"raw ICMP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {"raw TCP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP},
		{"raw IP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, {"raw ICMPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		{"raw UDP over IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_UDP},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0x300}, {"packet datagram", unix.AF_PACKET, unix.SOCK_DGRAM, 0x300},
		{"SCTP", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, {"netlink route", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
	} {
		fd, err := unix.Socket(s.family, s.kind|unix.SOCK_CLOEXEC, s.protocol)
		if err == nil && s.family == unix.AF_NETLINK {
			err = deleteRoute(fd)
		}
		if err == nil {
			_ = unix.Close(fd)
		}
		tellErr(s.name, err)
	}
	good, other := word(args, 0), word(args, 1)
	tellErr("ping "+good, ping(good))
	tellErr("ping "+other, ping(other))
	for _, option := range []struct {
		name         string
		level, value int
	}{{"IP_TRANSPARENT", unix.SOL_IP, unix.IP_TRANSPARENT}, {"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK}} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.SetsockoptInt(fd, option.level, option.value, 1)
			_ = unix.Close(fd)
		}
		tellErr(option.name, err)
	}
}

// deleteRoute asks the kernel to delete a route that does not exist: without the right to, it fails for another reason.
func deleteRoute(fd int) error {
	m := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofRtMsg)
	binary.NativeEndian.PutUint16(m[4:], unix.RTM_DELROUTE)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m[unix.NLMSG_HDRLEN], m[unix.NLMSG_HDRLEN+1] = unix.AF_INET, 32
	m = binary.NativeEndian.AppendUint16(m, unix.SizeofRtAttr+4)
	m = append(binary.NativeEndian.AppendUint16(m, unix.RTA_DST), 192, 0, 2, 77)
	binary.NativeEndian.PutUint32(m, uint32(len(m))) //nolint:gosec // short
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4<<10)
	if _, _, err := unix.Recvfrom(fd, answer, 0); err != nil {
		return err
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:]))) //nolint:gosec // an errno
	if errno == 0 || errno == unix.ESRCH {
		return nil
	}
	return errno
}

// ping sends an echo request over a datagram socket, which some kernels give to every user.
func ping(address string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{}
	copy(to.Addr[:], net.ParseIP(address).To4())
	if err := unix.Sendto(fd, append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, os.Getenv(Variable)...), 0, to); err != nil {
		return err
	}
	wait := unix.NsecToTimeval(int64(time.Second))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
	_, _, err = unix.Recvfrom(fd, make([]byte, 512), 0)
	return err
}

// spoof sends from an address that is not the sandbox's, to an echo that is allowed and to one that is not: pairs of names and addresses
// with ports.
func spoof(args []string) {
	from := net.ParseIP(word(args, 0))
	for _, to := range args[1:] {
		d := net.Dialer{Timeout: reachTimeout, LocalAddr: &net.TCPAddr{IP: from}, Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
			return errors.Join(err, failed)
		}}
		c, err := d.DialContext(context.Background(), "tcp4", to)
		if err == nil {
			_ = c.Close()
		}
		got := outcome(err)
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			got = "timeout"
		}
		tell("from "+from.String()+" to "+to, got, "")
	}
}

// fragments sends datagrams in several packets each, and reports whether they come back.
func fragments(args []string) {
	for _, to := range args {
		d := net.Dialer{Timeout: reachTimeout, Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU, 1280) })
			return errors.Join(err, failed)
		}}
		err := func() error {
			c, err := d.DialContext(context.Background(), "udp6", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			text := bytes.Repeat([]byte(os.Getenv(Variable)), 300)
			if _, err = c.Write(text); err != nil {
				return err
			}
			answer := make([]byte, 64<<10)
			n, err := c.Read(answer)
			if err == nil && !bytes.Equal(answer[:n], text) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}()
		got := outcome(err)
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			got = "timeout"
		}
		tell(to, got, "")
	}
}

// knock makes many connections at a time, rounds of them: to an address, and does not read what they say.
func knock(args []string) {
	address, many, rounds := word(args, 0), number(args, 1), number(args, 2)
	var mu sync.Mutex
	outcomes := map[string]int{}
	for range rounds {
		var all sync.WaitGroup
		for range many {
			all.Go(func() {
				c, err := net.DialTimeout("tcp", address, reachTimeout)
				mu.Lock()
				outcomes[outcome(err)]++
				mu.Unlock()
				if err == nil {
					_ = c.Close()
				}
			})
		}
		all.Wait()
	}
	for got, n := range outcomes {
		tell(got, strconv.Itoa(n), "")
	}
}

// ask floods a name server with queries for ever new names, from many sockets, and does not wait for the answers.
func ask(args []string) {
	server, many := word(args, 0), number(args, 1)
	sent := 0
	for i := range many {
		c, err := net.Dial("udp", server)
		if err != nil {
			continue
		}
		for j := range 20 {
			if _, err := c.Write(dnsMessage(fmt.Sprintf("n%d-%d.flood.example", i, j), 1, "")); err == nil {
				sent++
			}
		}
		_ = c.Close()
	}
	tellNumber("sent", sent)
}

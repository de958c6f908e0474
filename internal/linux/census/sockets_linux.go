package census

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel reports the sockets of a network namespace, with their buffers, to a socket that was made in it.
//
//	request   nlmsghdr, unix_diag_req │ inet_diag_req_v2
//	answers   nlmsghdr, unix_diag_msg │ inet_diag_msg, attributes; the last one is NLMSG_DONE or NLMSG_ERROR
const (
	diagByFamily    = 20 // SOCK_DIAG_BY_FAMILY
	unixShowMemory  = 1 << 5
	unixMemory      = 5 // UNIX_DIAG_MEMINFO
	unixMessageSize = 16
	inetMemory      = 7 // INET_DIAG_SKMEMINFO
	inetMessageSize = 72
	receiveMemory   = 0 // places in an array of numbers: SK_MEMINFO_RMEM_ALLOC
	sendMemory      = 2 // SK_MEMINFO_WMEM_ALLOC
)

// families are those that a sandbox's filter allows, as far as they buffer anything.
var families = []struct{ family, protocol byte }{
	{unix.AF_UNIX, 0}, {unix.AF_INET, unix.IPPROTO_TCP}, {unix.AF_INET6, unix.IPPROTO_TCP}, {unix.AF_INET, unix.IPPROTO_UDP},
	{unix.AF_INET6, unix.IPPROTO_UDP},
}

// NewDiag makes a socket that queries this network namespace.
func NewDiag() (int, error) {
	return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
}

// SeesSockets reports whether this kernel reports Unix sockets, the most important kind, which has a module of its own.
var SeesSockets = sync.OnceValue(func() bool {
	fd, err := NewDiag()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = buffered(fd, unix.AF_UNIX, 0)
	return err == nil
})

// sockets adds up the buffers of all sockets of the namespace. Sockets that the kernel does not report are not counted.
func (c *Census) sockets() (sum uint64) {
	if c.diag == nil {
		return 0
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	conn, err := c.diag.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Control(func(fd uintptr) {
		for _, f := range families {
			n, _ := buffered(int(fd), f.family, f.protocol)
			sum += n
		}
	})
	return sum
}

func buffered(fd int, family, protocol byte) (sum uint64, err error) {
	request := make([]byte, unix.SizeofNlMsghdr+56)
	body := request[unix.SizeofNlMsghdr:]
	head, attribute := unixMessageSize, uint16(unixMemory)
	if family == unix.AF_UNIX {
		body = body[:24]
		binary.NativeEndian.PutUint32(body[4:], ^uint32(0)) // in any state
		binary.NativeEndian.PutUint32(body[12:], unixShowMemory)
	} else {
		head, attribute = inetMessageSize, inetMemory
		body[2] = 1 << (inetMemory - 1)
		binary.NativeEndian.PutUint32(body[4:], ^uint32(0))
	}
	body[0], body[1] = family, protocol
	request = request[:unix.SizeofNlMsghdr+len(body)]
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], diagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	buf := make([]byte, 32<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return sum, err
		}
		more, over, err := memoryIn(buf[:n], head, attribute)
		sum += more
		if over || err != nil {
			return sum, err
		}
	}
}

// memoryIn adds up the memory in a datagram of answers, and reports whether it was the last one.
func memoryIn(b []byte, head int, attribute uint16) (sum uint64, over bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size, kind := binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint16(b[4:])
		if size < unix.SizeofNlMsghdr || uint64(size) > uint64(len(b)) {
			return sum, true, os.ErrInvalid
		}
		message := b[unix.SizeofNlMsghdr:size]
		b = b[min(len(b), int(size+3)&^3):]
		switch kind {
		case unix.NLMSG_DONE:
			return sum, true, nil
		case unix.NLMSG_ERROR:
			if len(message) < 4 {
				return sum, true, os.ErrInvalid
			}
			return sum, true, unix.Errno(-int32(binary.NativeEndian.Uint32(message)))
		case diagByFamily:
			if len(message) >= head {
				sum += memoryOf(message[head:], attribute)
			}
		}
	}
	return sum, false, nil
}

// memoryOf finds the memory figures among a socket's attributes.
func memoryOf(attributes []byte, attribute uint16) uint64 {
	for len(attributes) >= 4 {
		size, kind := int(binary.NativeEndian.Uint16(attributes)), binary.NativeEndian.Uint16(attributes[2:])
		if size < 4 || size > len(attributes) {
			return 0
		}
		if value := attributes[4:size]; kind == attribute && len(value) >= (sendMemory+1)*4 {
			return uint64(binary.NativeEndian.Uint32(value[receiveMemory*4:])) + uint64(binary.NativeEndian.Uint32(value[sendMemory*4:]))
		}
		attributes = attributes[min(len(attributes), (size+3)&^3):]
	}
	return 0
}

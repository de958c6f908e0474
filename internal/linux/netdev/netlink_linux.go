package netdev

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// message is the body of a netlink message.
type message struct{ data []byte }

// ifinfo appends a struct ifinfomsg that sets flags.
func (m *message) ifinfo(index, flags uint32) {
	m.data = append(m.data, unix.AF_UNSPEC, 0, 0, 0)
	m.raw32(index)
	m.raw32(flags)
	m.raw32(flags) // which flags change
}

func (m *message) raw32(v uint32) { m.data = binary.NativeEndian.AppendUint32(m.data, v) }

// bytes appends an attribute.
func (m *message) bytes(kind int, value []byte) {
	m.data = binary.NativeEndian.AppendUint16(m.data, uint16(unix.SizeofRtAttr+len(value))) //nolint:gosec // small
	m.data = binary.NativeEndian.AppendUint16(m.data, uint16(kind))                         //nolint:gosec // small
	m.data = append(m.data, value...)
	m.pad()
}

func (m *message) pad() {
	for len(m.data)%unix.RTA_ALIGNTO != 0 {
		m.data = append(m.data, 0)
	}
}

func (m *message) text(kind int, s string) { m.bytes(kind, append([]byte(s), 0)) }

func (m *message) uint32(kind int, v uint32) { m.bytes(kind, binary.NativeEndian.AppendUint32(nil, v)) }

// nested appends an attribute that consists of the attributes that add appends.
func (m *message) nested(kind int, add func()) {
	at := len(m.data)
	m.bytes(kind, nil)
	add()
	binary.NativeEndian.PutUint16(m.data[at:], uint16(len(m.data)-at)) //nolint:gosec // small
}

// netlink is a socket that configures the network namespace of the thread that made it.
type netlink struct{ fd int }

func dialNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &netlink{fd}, nil
}

func (n *netlink) close() { _ = unix.Close(n.fd) }

// ask sends a message and returns the kernel's answer to it.
func (n *netlink) ask(kind, flags uint16, body []byte) error {
	m := message{}
	m.raw32(uint32(unix.NLMSG_HDRLEN + len(body))) //nolint:gosec // small
	m.data = binary.NativeEndian.AppendUint16(m.data, kind)
	m.data = binary.NativeEndian.AppendUint16(m.data, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m.raw32(1) // sequence
	m.raw32(0)
	if err := unix.Sendto(n.fd, append(m.data, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 8<<10)
	size, _, err := unix.Recvfrom(n.fd, answer, 0)
	if err != nil {
		return err
	}
	if size < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return unix.EBADMSG
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); errno != 0 { //nolint:gosec // an errno
		return unix.Errno(errno)
	}
	return nil
}

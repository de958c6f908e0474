// Package netdev makes the network device of a sandbox: an Ethernet interface whose frames go to and come from a descriptor.
//
// Place in the flow. The init of a phase that has a network calls Open in its own network namespace (internal/linux/initproc) and
// hands the descriptor to the supervisor, which gives it to the process of the user-mode stack. It imports x/sys only: the init starts
// without package os.
//
// Lifecycle. The device exists as long as its network namespace, which the descriptor keeps alive.
//
// Concurrency. Open works on the network namespace of the calling thread.
//
// Limits. The device is a veth pair with both ends in the namespace: programs use one end, and a packet socket reads and writes the
// frames of the other. That needs no file, in contrast to a TAP device, whose /dev/net/tun is root's on some machines. Programs have
// no capability to open such a socket, or to configure either end.
package netdev

import (
	"golang.org/x/sys/unix"
)

// Config is the configuration of the device.
type Config struct {
	Addresses [][]byte // of the sandbox, with 4 or 16 bytes
	Gateways  [][]byte // of the same families; the default routes lead there
}

// Name is the name of the device that programs use, PeerName that of its other end.
const (
	Name     = "eth0"
	PeerName = "peer0"
)

// MTU is nearly the largest that Ethernet devices take, because every packet costs a system call.
const MTU = 65520

// MAC is the link address of the sandbox's end, GatewayMAC that of the other end. The first byte says that they are locally administered.
const (
	MAC        = "\x02\x73\x61\x6e\x64\x02"
	GatewayMAC = "\x02\x73\x61\x6e\x64\x01"
)

// Error is a step that failed.
type Error struct {
	Step  string
	Errno error
}

func (e *Error) Error() string { return e.Step + ": " + e.Errno.Error() }

func (e *Error) Unwrap() error { return e.Errno }

// failed returns an error that names the step, or nil.
func failed(step string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{step, err}
}

// Open makes the device, brings it up with its addresses and routes, and returns the descriptor of its frames.
func Open(c Config) (frames int, err error) {
	nl, err := dialNetlink()
	if err != nil {
		return -1, failed("open netlink", err)
	}
	defer nl.close()
	if frames, err = openVeth(nl); err != nil {
		return -1, err
	}
	if err := configure(nl, c); err != nil {
		_ = unix.Close(frames)
		return -1, err
	}
	return frames, nil
}

// openVeth makes a veth pair and a packet socket on its second end.
func openVeth(nl *netlink) (int, error) {
	peer := message{}
	peer.ifinfo(0, 0)
	peer.text(unix.IFLA_IFNAME, PeerName)
	peer.bytes(unix.IFLA_ADDRESS, []byte(GatewayMAC))
	peer.uint32(unix.IFLA_MTU, MTU)
	m := message{}
	m.ifinfo(0, 0)
	m.text(unix.IFLA_IFNAME, Name)
	m.nested(unix.IFLA_LINKINFO, func() {
		m.text(unix.IFLA_INFO_KIND, "veth")
		m.nested(unix.IFLA_INFO_DATA, func() { m.bytes(vethInfoPeer, peer.data) })
	})
	if err := nl.ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, m.data); err != nil {
		return -1, failed("make veth pair", err)
	}
	index, err := indexOf(PeerName)
	if err != nil {
		return -1, err
	}
	m = message{}
	m.ifinfo(index, unix.IFF_UP)
	m.withoutOwnAddress()
	if err := nl.ask(unix.RTM_NEWLINK, 0, m.data); err != nil {
		return -1, failed("bring up "+PeerName, err)
	}
	return openFrames(index)
}

// Reopen returns another descriptor of the frames of the device that Open has made. The caller closes the one before: each of them gets all
// frames.
func Reopen() (frames int, err error) {
	index, err := indexOf(PeerName)
	if err != nil {
		return -1, err
	}
	return openFrames(index)
}

// openFrames opens a packet socket on a device.
func openFrames(index uint32) (int, error) {
	const all = uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00) // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, failed("open packet socket", err)
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
	}
	// The kernel gives the peer its queue some time after the other end is up, and drops what is sent before.
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	}
	// Frames have a struct virtio_net_hdr in front: neither side computes checksums for the other.
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(index)})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, failed("bind packet socket", err)
	}
	return fd, nil
}

const (
	vethInfoPeer     = 1 // VETH_INFO_PEER
	inet6AddrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenNone      = 1 // IN6_ADDR_GEN_MODE_NONE
	permanent        = unix.NUD_PERMANENT
)

func configure(nl *netlink, c Config) error {
	index, err := indexOf(Name)
	if err != nil {
		return err
	}
	m := message{}
	m.ifinfo(index, 0)
	m.bytes(unix.IFLA_ADDRESS, []byte(MAC))
	m.uint32(unix.IFLA_MTU, MTU)
	m.withoutOwnAddress()
	if err := nl.ask(unix.RTM_NEWLINK, 0, m.data); err != nil {
		return failed("configure "+Name, err)
	}
	m = message{}
	m.ifinfo(index, unix.IFF_UP)
	if err := nl.ask(unix.RTM_NEWLINK, 0, m.data); err != nil {
		return failed("bring up "+Name, err)
	}
	v6 := hasIPv6()
	for _, a := range c.Addresses {
		if family(a) == unix.AF_INET6 && !v6 {
			continue
		}
		if err := addAddress(nl, index, a); err != nil {
			return err
		}
	}
	for _, gateway := range c.Gateways {
		if family(gateway) == unix.AF_INET6 && !v6 {
			continue
		}
		if err := nl.ask(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, neighbourMessage(index, gateway)); err != nil {
			return failed("add neighbour", err)
		}
		if err := nl.ask(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, routeMessage(index, gateway)); err != nil {
			return failed("add route", err)
		}
	}
	return nil
}

// hasIPv6 reports whether the kernel has IPv6, and has not switched it off in this network namespace.
func hasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	off, err := unix.Open("/proc/sys/net/ipv6/conf/"+Name+"/disable_ipv6", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer func() { _ = unix.Close(off) }()
	var text [1]byte
	_, err = unix.Read(off, text[:])
	return err != nil || text[0] != '1'
}

// withoutOwnAddress keeps the kernel from giving the interface an IPv6 address, and from sending packets of its own.
func (m *message) withoutOwnAddress() {
	if hasIPv6() {
		m.nested(unix.IFLA_AF_SPEC, func() {
			m.nested(unix.AF_INET6, func() { m.bytes(inet6AddrGenMode, []byte{addrGenNone}) })
		})
	}
}

func family(a []byte) byte {
	if len(a) == 4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// addAddress gives a device an address that works when addAddress returns. The kernel adds the local route of an IPv6 address later, in a
// worker, and drops packets to the address until then, such as the answer to a program's first datagram. So addAddress adds that route.
func addAddress(nl *netlink, index uint32, a []byte) error {
	if err := nl.ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, addressMessage(index, a)); err != nil {
		return failed("add address", err)
	}
	if family(a) == unix.AF_INET {
		return nil
	}
	return failed("add local route", nl.ask(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, localRouteMessage(index, a)))
}

func addressMessage(index uint32, a []byte) []byte {
	m := message{data: []byte{family(a), byte(8 * len(a)), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}}
	m.raw32(index)
	m.bytes(unix.IFA_LOCAL, a)
	m.bytes(unix.IFA_ADDRESS, a)
	return m.data
}

func neighbourMessage(index uint32, a []byte) []byte {
	m := message{data: []byte{family(a), 0, 0, 0}}
	m.raw32(index)
	m.data = append(m.data, permanent&0xff, permanent>>8, 0, 0)
	m.bytes(unix.NDA_DST, a)
	m.bytes(unix.NDA_LLADDR, []byte(GatewayMAC))
	return m.data
}

// routeMessage is the default route of a family. The gateway needs no route of its own: it is on the link.
func routeMessage(index uint32, gateway []byte) []byte {
	m := message{data: []byte{family(gateway), 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST}}
	m.raw32(unix.RTNH_F_ONLINK)
	m.bytes(unix.RTA_GATEWAY, gateway)
	m.uint32(unix.RTA_OIF, index)
	return m.data
}

// localRouteMessage makes packets to an address packets to this network namespace.
func localRouteMessage(index uint32, a []byte) []byte {
	m := message{data: []byte{family(a), byte(8 * len(a)), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL}}
	m.raw32(0)
	m.bytes(unix.RTA_DST, a)
	m.uint32(unix.RTA_OIF, index)
	return m.data
}

func indexOf(name string) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return 0, failed("find "+name, err)
	}
	return request.Uint32(), nil
}

// AddLoopback adds addresses to the loopback.
func AddLoopback(addresses ...[]byte) error {
	nl, err := dialNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	index, err := indexOf("lo")
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if err := addAddress(nl, index, a); err != nil {
			return err
		}
	}
	return nil
}

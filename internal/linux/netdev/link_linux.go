package netdev

import "golang.org/x/sys/unix"

// Connect makes a device in the network namespace of the calling thread, and the other end of it in the namespace ns. Tests connect
// namespaces so.
func Connect(ns int, name, peerName string) error {
	nl, err := dialNetlink()
	if err != nil {
		return failed("open netlink", err)
	}
	defer nl.close()
	peer := message{}
	peer.ifinfo(0, 0)
	peer.text(unix.IFLA_IFNAME, peerName)
	peer.uint32(unix.IFLA_NET_NS_FD, uint32(ns)) //nolint:gosec // a descriptor
	m := message{}
	m.ifinfo(0, 0)
	m.text(unix.IFLA_IFNAME, name)
	m.nested(unix.IFLA_LINKINFO, func() {
		m.text(unix.IFLA_INFO_KIND, "veth")
		m.nested(unix.IFLA_INFO_DATA, func() { m.bytes(vethInfoPeer, peer.data) })
	})
	return failed("make veth pair", nl.ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, m.data))
}

// Up brings up a device.
func Up(name string) error {
	nl, err := dialNetlink()
	if err != nil {
		return failed("open netlink", err)
	}
	defer nl.close()
	index, err := indexOf(name)
	if err != nil {
		return err
	}
	m := message{}
	m.ifinfo(index, unix.IFF_UP)
	return failed("bring up "+name, nl.ask(unix.RTM_NEWLINK, 0, m.data))
}

// Attach brings up a device with addresses, and default routes to gateways at its other end.
func Attach(name string, c Config) error {
	if err := Up(name); err != nil {
		return err
	}
	nl, err := dialNetlink()
	if err != nil {
		return failed("open netlink", err)
	}
	defer nl.close()
	index, err := indexOf(name)
	if err != nil {
		return err
	}
	for _, a := range c.Addresses {
		if err := addAddress(nl, index, a); err != nil {
			return err
		}
	}
	for _, gateway := range c.Gateways {
		if err := nl.ask(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, routeMessage(index, gateway)); err != nil {
			return failed("add route", err)
		}
	}
	return nil
}

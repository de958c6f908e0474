package stack

import (
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// MTU is that of the sandbox's device: the largest that a TAP device takes, because every packet costs a system call.
const MTU = 65520

// deviceMAC is the link address of the sandbox's end.
const deviceMAC = tcpip.LinkAddress("\x02\x73\x61\x6e\x64\x02")

// Device configures the device of a network.
func Device(r network.Ranges) netdev.Config {
	gateway4, gateway6 := r.Gateway()
	sandbox4, sandbox6 := r.Sandbox()
	return netdev.Config{
		MTU: MTU, Addresses: [][]byte{sandbox4.AsSlice(), sandbox6.AsSlice()}, Gateways: [][]byte{gateway4.AsSlice(), gateway6.AsSlice()},
		MAC: [6]byte([]byte(deviceMAC)), GatewayMAC: [6]byte([]byte(gatewayMAC)),
	}
}

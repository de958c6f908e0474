package netdev

import "golang.org/x/sys/unix"

// Abandon closes the frames of a device. The last close of a packet socket waits for all processors, about ten milliseconds, also at
// the exit of a process that has it. So the descriptor is sent through a socket that nothing but itself refers to: since Linux 6.10 the
// kernel's collector of such sockets closes both in the background; before, this call waits.
func Abandon(frames int) {
	defer func() { _ = unix.Close(frames) }()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(frames, pair[1]), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	_ = unix.Close(pair[0])
	_ = unix.Close(pair[1])
}

package initproc

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
)

// makeDevice makes the network device of this phase, unless it exists, and sends its frames to the supervisor. This process keeps no
// descriptor of them.
func (s *server) makeDevice(id uint64, d initproto.Device) error {
	if s.device || len(d.Addresses) == 0 {
		return nil
	}
	if !s.routes.own {
		return failed(initproto.StageNetwork, "make device", unix.EPERM) // it would be in a network namespace of another process
	}
	frames, err := netdev.Open(netdev.Config{Addresses: d.Addresses, Gateways: d.Gateways})
	return s.sendDevice(id, frames, err)
}

// remakeDevice sends the supervisor another descriptor of the device's frames: a network that replaces one can not use the same.
func (s *server) remakeDevice(id uint64, d initproto.Device) error {
	if !s.device || len(d.Addresses) == 0 {
		return s.makeDevice(id, d)
	}
	frames, err := netdev.Reopen()
	return s.sendDevice(id, frames, err)
}

// sendDevice sends the frames, and closes them here.
func (s *server) sendDevice(id uint64, frames int, err error) error {
	if step := new(netdev.Error); errors.As(err, &step) {
		return failed(initproto.StageNetwork, step.Step, step.Errno)
	}
	if err != nil {
		return failed(initproto.StageNetwork, "make device", err)
	}
	defer unix.Close(frames)
	s.device = true
	return failed(initproto.StageProtocol, "send device", s.socket.send(initproto.Encode(&initproto.Made{ID: id}), frames))
}

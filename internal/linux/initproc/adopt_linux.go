package initproc

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// expect makes the parts of a program that a zygote will fork into this sandbox.
func (s *server) expect(m *initproto.Expect) error {
	var ruleset []int
	var err error
	if m.Loopback {
		err = raiseLoopback()
	}
	if err == nil {
		err = s.makeDevice(m.ID, m.Device)
	}
	if err == nil && len(m.Landlock.Rules) > 0 {
		var fd int
		if fd, err = landlockRuleset(m.Landlock); err == nil {
			ruleset = []int{fd}
		}
	}
	if err != nil {
		s.report(m.ID, err)
		s.exit(1) // the sandbox has no other program
	}
	defer closeAll(ruleset)
	return failed(initproto.StageProtocol, "send expected", s.socket.send(initproto.Encode(&initproto.Expected{ID: m.ID}), ruleset...))
}

// adopt takes on a program that a zygote has forked, and whose parent has ended. The reaper has slept until now, because
// no program ran before, so that the program can still be reaped even if it has ended meanwhile.
func (s *server) adopt(m *initproto.Adopt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[int(m.PID)] = m.ID
	_, err := unix.Write(s.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return failed(initproto.StageProtocol, "wake reaper", err)
}

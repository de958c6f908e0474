package initproc

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// expect makes what a program needs that is going to be forked into this sandbox by a zygote.
func (s *server) expect(m *initproto.Expect) error {
	var ruleset []int
	var err error
	if m.Loopback {
		err = raiseLoopback()
	}
	if err == nil && len(m.Landlock.Rules) > 0 {
		var fd int
		if fd, err = landlockRuleset(m.Landlock); err == nil {
			ruleset = []int{fd}
		}
	}
	if err != nil {
		s.report(m.ID, err)
		s.exit(1) // nothing keeps this sandbox
	}
	defer closeAll(ruleset)
	return failed(initproto.StageProtocol, "send expected", s.socket.send((&initproto.Expected{ID: m.ID}).Encode(), ruleset...))
}

// adopt takes on a program that a zygote has forked, and whose parent has ended. The reaper has slept until now, because
// nothing was run before, so that the program is still there to be waited for even if it has ended meanwhile.
func (s *server) adopt(m *initproto.Adopt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[int(m.PID)] = m.ID
	_, err := unix.Write(s.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return failed(initproto.StageProtocol, "wake reaper", err)
}

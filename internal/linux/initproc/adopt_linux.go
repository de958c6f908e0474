package initproc

import (
	"strconv"

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
		err = s.remakeDevice(m.ID, m.Device)
	}
	if err == nil && len(m.Landlock.Rules) > 0 {
		var fd int
		if fd, err = landlockRuleset(m.Landlock); err == nil {
			ruleset = []int{fd}
		}
	}
	if err != nil {
		s.report(m.ID, err)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.running) == 0 {
			s.exit(1) // the sandbox has no other program
		}
		return nil
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

// take takes on a process that a program has made. The number is the program's word: a process that is not this one's child, or is a program
// already, is refused.
func (s *server) take(m *initproto.Take) error {
	s.mu.Lock() // the reaper reports no end meanwhile
	defer s.mu.Unlock()
	pid := int(m.PID)
	_, known := s.running[pid]
	// Without WEXITED and its like, the call would fail; with WNOWAIT and WNOHANG it only tells whether there is such a child.
	err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	if err == nil && known {
		err = unix.EEXIST
	}
	fd := -1
	if err == nil {
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		s.report(m.ID, failed(initproto.StageFork, "take on process "+strconv.Itoa(pid), err))
		return nil
	}
	defer unix.Close(fd)
	s.running[pid] = m.ID
	return failed(initproto.StageProtocol, "send started", s.socket.send(initproto.Encode(&initproto.Started{ID: m.ID, PID: m.PID, At: Monotonic()}), fd))
}

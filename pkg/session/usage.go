package session

import (
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// IdleMemory measures the memory that the sessions without a running cell use, with those that wait in the stock.
func (m *Manager) IdleMemory() (sum sandbox.Size) {
	m.mu.Lock()
	all := make([]*Session, 0, len(m.sessions))
	for _, s := range m.sessions {
		all = append(all, s)
	}
	m.mu.Unlock()
	for _, s := range slices.Concat(all, m.stock.waiting()) {
		s.mu.Lock()
		b, idle := s.box, s.stateLocked() == StateIdle
		s.mu.Unlock()
		if idle && b.driver != nil {
			if used, err := b.driver.live.Sample(); err == nil {
				sum += sandbox.Size(used.Memory)
			}
		}
	}
	return sum
}

// waiting lists the sessions that wait for an owner.
func (st *stock) waiting() (list []*Session) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, d := range st.seen {
		if d.ready != nil {
			list = append(list, d.ready)
		}
	}
	return list
}

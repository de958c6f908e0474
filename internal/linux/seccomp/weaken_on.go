//go:build weaken

package seccomp

import (
	"slices"

	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
)

// allowedBy are the calls that a mutation allows.
var allowedBy = map[string][]string{
	"call-filters":     {"seccomp", "prctl", "setsockopt"},
	"call-group":       {"modify_ldt", "mbind", "move_pages", "iopl", "quotactl_fd"},
	"call-leases":      {"fcntl"},
	"call-aio":         {"io_setup", "io_destroy", "io_getevents", "io_submit", "io_cancel", "io_pgetevents"},
	"call-personality": {"personality"},
}

func weakenRule(name string, r rule) rule {
	for mutation, names := range allowedBy {
		if weaken.On(mutation) && slices.Contains(names, name) {
			return ruleAllow
		}
	}
	return r
}

func weakenSocket(steps []step) []step {
	steps = slices.Clone(steps)
	for i, s := range steps {
		var more []uint32
		switch {
		case s.op != opNotIn:
		case weaken.On("socket-families") && s.arg == 0:
			more = []uint32{43, 30, 29, 21, 41}
		case weaken.On("socket-protocols") && s.arg == 1:
			more = []uint32{6}
		case weaken.On("socket-protocols") && s.arg == 2:
			more = []uint32{33, 115, 136}
		}
		steps[i].set = slices.Concat(s.set, more)
	}
	return steps
}

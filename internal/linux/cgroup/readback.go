//go:build linux

package cgroup

import "bytes"

// ReadLimits reads the limits from the kernel; zero is no limit. swap says whether swapped-out memory counts as well: it is
// false where the kernel does not limit swap.
func (g *Group) ReadLimits() (l Limits, swap bool, err error) {
	if g.err != nil {
		return l, false, g.err
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	for i := range g.tree.hierarchies {
		h := &g.tree.hierarchies[i]
		r := reader{at: h.at, dir: g.rel, buf: buf}
		if h.roles&roleCPU != 0 {
			l.CPU = r.cores(h)
		}
		if h.roles&roleMemory != 0 {
			file, total := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
			if h.v2 {
				file, total = "memory.max", "memory.swap.max"
			}
			l.Memory = r.limit(file)
			switch {
			case h.v2:
				b, there := r.optional(total)
				swap = there && string(bytes.TrimSpace(b)) == "0"
			case h.memsw:
				n := r.limit(total)
				swap = n > 0 && n <= l.Memory
			}
		}
		if h.roles&rolePids != 0 {
			l.Pids = int(r.limit("pids.max"))
		}
		if r.err != nil {
			return l, swap, g.fail("read limits", i, r.file, r.err)
		}
	}
	return l, swap, nil
}

// unlimited is more than any limit that is ever set: v1 has a number for "none", which depends on the size of a page.
const unlimited = 1 << 62

// limit reads a file with one number; 0 is "max", or a number that stands for it.
func (r *reader) limit(name string) uint64 {
	if n := r.number(name); n < unlimited {
		return n
	}
	return 0
}

// cores is the CPU limit of the group; 0 is none.
func (r *reader) cores(h *hierarchy) float64 {
	var quota, period uint64
	if h.v2 {
		q, p, _ := bytes.Cut(r.must("cpu.max"), []byte(" "))
		quota, _ = parseUint(q)
		period, _ = parseUint(p)
	} else {
		quota, period = r.number("cpu.cfs_quota_us"), r.number("cpu.cfs_period_us") // -1 is no number, and no limit
	}
	if period == 0 {
		return 0
	}
	return float64(quota) / float64(period)
}

// ContainsProcess reports whether a process is in this group in every hierarchy, given the text of its /proc/PID/cgroup.
func (g *Group) ContainsProcess(text []byte) bool {
	if g.err != nil {
		return false
	}
	in := 0
	for line := range bytes.Lines(text) {
		if bytes.HasSuffix(bytes.TrimRight(line, "\n"), []byte("/"+g.rel)) {
			in++
		}
	}
	return in >= len(g.tree.hierarchies) && in > 0
}

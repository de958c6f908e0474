//go:build linux

package cgroup

import (
	"bytes"
	"errors"
	"io/fs"
	"math/bits"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Stat are the counters of a group. Every counter includes groups below this one, but for OOMKills and PidsLimitHits
// on v1, which count only in the task's own group.
type Stat struct {
	CPUTotal  time.Duration
	CPUUser   time.Duration // User and System add up to Total
	CPUSystem time.Duration

	Throttled        time.Duration // time in which the CPU limit kept runnable tasks from running
	ThrottledPeriods uint64

	MemoryCurrent    uint64
	MemoryPeak       uint64
	MemoryPeakPolled bool // the kernel keeps no peak (v2 before 5.19): MemoryPeak is the highest that Stat has seen
	// OOMKills with a MemoryPeak well below the group's limit come from a limit further up: the caller's, or the
	// machine's end of memory. (memory.failcnt would show it directly, but stays 0 in 6.18.)
	OOMKills uint64

	Pids          uint64
	PidsPeak      uint64 // 0 where the kernel keeps none (before 6.1)
	PidsLimitHits uint64 // forks refused

	HasIO           bool // false on v1: IORead and IOWrite are not measured
	IORead, IOWrite uint64
}

// Stat reads all counters in one pass, for samples of a running group. Counters that this kernel does not have stay zero; a
// group that is gone is fs.ErrNotExist.
func (g *Group) Stat() (Stat, error) { return g.stat(false) }

// Final reads the counters of a finished group: totals and peaks. MemoryCurrent and Pids stay zero, and
// PidsLimitHits and Throttled count only the effects of limits set through this Group. Opening a file of a new group costs
// 5 µs, so for a program of a few milliseconds Final leaves out files that it does not need.
func (g *Group) Final() (Stat, error) { return g.stat(true) }

func (g *Group) stat(final bool) (Stat, error) {
	var s Stat
	if g.err != nil {
		return s, g.err
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	for i := range g.tree.hierarchies {
		h := &g.tree.hierarchies[i]
		r := reader{at: h.at, dir: g.rel, buf: buf, final: final}
		if h.v2 {
			g.statV2(h, &r, &s)
		} else {
			g.statV1(h, &r, &s)
		}
		if r.err != nil {
			return s, g.fail("stat", i, r.file, r.err)
		}
	}
	return s, nil
}

// reader reads files of one directory and remembers the first failure.
type reader struct {
	at    int
	dir   string
	buf   *[]byte
	final bool // leave out counters that describe only the current moment
	file  string
	err   error
}

// must reads a file that every kernel has.
func (r *reader) must(name string) []byte {
	b, err := r.get(name)
	if err != nil && r.err == nil {
		r.err, r.file = err, r.dir+"/"+name
	}
	return b
}

// optional reads a file that some kernels lack.
func (r *reader) optional(name string) ([]byte, bool) {
	b, err := r.get(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && r.err == nil {
		r.err, r.file = err, r.dir+"/"+name
	}
	return b, err == nil
}

func (r *reader) get(name string) ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	b, err := readCounter(r.at, r.dir+"/"+name, r.buf)
	if err == unix.ENODEV { //nolint:errorlint // raw errno: the group was removed between open and read
		err = unix.ENOENT
	}
	return b, err
}

func (r *reader) number(name string) uint64 {
	n, _ := parseUint(r.must(name))
	return n
}

func (g *Group) statV1(h *hierarchy, r *reader, s *Stat) {
	if h.roles&roleCPUAcct != 0 {
		s.CPUTotal = time.Duration(r.number("cpuacct.usage"))
		user, system := uint64(0), r.number("cpuacct.usage_sys")
		if system != 0 { // else all of it is user time, and one read is saved
			user = r.number("cpuacct.usage_user")
		}
		s.CPUUser, s.CPUSystem = splitCPU(s.CPUTotal, user, system)
	}
	// newTree sorts cpuacct before cpu.
	if h.roles&roleCPU != 0 && !(r.final && g.tree.serving(roleCPUAcct) != nil && g.neverThrottled(s.CPUTotal)) {
		flatKeyed(r.must("cpu.stat"), func(name []byte, v uint64) {
			switch string(name) {
			case "nr_throttled":
				s.ThrottledPeriods = v
			case "throttled_time":
				s.Throttled = time.Duration(v) // ns
			}
		})
	}
	if h.roles&roleMemory != 0 {
		if !r.final {
			s.MemoryCurrent = r.number("memory.usage_in_bytes")
		}
		s.MemoryPeak = max(r.number("memory.max_usage_in_bytes"), s.MemoryCurrent)
		flatKeyed(r.must("memory.oom_control"), func(name []byte, v uint64) {
			if string(name) == "oom_kill" {
				s.OOMKills = v
			}
		})
	}
	if h.roles&rolePids != 0 {
		g.statPids(r, s)
	}
}

func (g *Group) statV2(h *hierarchy, r *reader, s *Stat) {
	if h.roles&(roleCPUAcct|roleCPU) != 0 {
		flatKeyed(r.must("cpu.stat"), func(name []byte, v uint64) {
			switch string(name) {
			case "usage_usec":
				s.CPUTotal = time.Duration(v) * time.Microsecond
			case "user_usec":
				s.CPUUser = time.Duration(v) * time.Microsecond
			case "system_usec":
				s.CPUSystem = time.Duration(v) * time.Microsecond
			case "nr_throttled": // shown only where v2 has the cpu controller; on hybrid machines it is in the v1 file
				s.ThrottledPeriods = v
			case "throttled_usec":
				s.Throttled = time.Duration(v) * time.Microsecond
			}
		})
	}
	if h.roles&roleMemory != 0 {
		b, ok := g.memoryPeak(r)
		peak, _ := parseUint(b)
		if !ok || !r.final {
			s.MemoryCurrent = r.number("memory.current")
		}
		if ok {
			s.MemoryPeak = max(peak, s.MemoryCurrent)
		} else {
			s.MemoryPeak, s.MemoryPeakPolled = g.raisePeak(s.MemoryCurrent), true
		}
		flatKeyed(r.must("memory.events"), func(name []byte, v uint64) {
			if string(name) == "oom_kill" {
				s.OOMKills = v
			}
		})
	}
	if h.roles&rolePids != 0 {
		g.statPids(r, s)
	}
	if h.roles&roleIO != 0 {
		if r.err == nil {
			// One line per device: more than the one read of a counter may give.
			b, err := readList(r.at, r.dir+"/io.stat", r.buf)
			if err == nil {
				s.HasIO = true
				s.IORead, s.IOWrite = parseIOStat(b)
			}
		}
	}
}

func (g *Group) statPids(r *reader, s *Stat) {
	if !r.final {
		s.Pids = r.number("pids.current")
	}
	if b, ok := r.optional("pids.peak"); ok {
		n, _ := parseUint(b)
		s.PidsPeak = max(n, s.Pids)
		if r.final && int64(n) < g.pidsMax.Load() {
			return // a fork is refused at the limit only, so a group that never got there had none refused
		}
	}
	if b, ok := r.optional("pids.events"); ok {
		flatKeyed(b, func(name []byte, v uint64) {
			if string(name) == "max" {
				s.PidsLimitHits = v
			}
		})
	}
}

// neverThrottled reports that a group has used too little CPU time for its limit to have throttled it even once. The kernel
// hands a period's quota out to CPUs in slices of 5 ms, so at most one slice per CPU is taken and not used.
func (g *Group) neverThrottled(used time.Duration) bool {
	const slice = 5 * time.Millisecond
	quota := time.Duration(g.quota.Load()) * time.Microsecond
	return quota == 0 || used+time.Duration(runtime.NumCPU())*slice < quota
}

// ResetPeak restarts the memory peak at the current use. On v2 the kernel supports that since 6.12, for readers of the open
// file: the Group keeps it open until Remove. Without support (ErrUnsupported) the peak stays.
func (g *Group) ResetPeak() error {
	if g.err != nil {
		return g.err
	}
	g.peak.Store(0)
	for i := range g.tree.hierarchies {
		h := &g.tree.hierarchies[i]
		if h.roles&roleMemory == 0 {
			continue
		}
		if h.v2 {
			return g.resetOwnPeak(i)
		}
		if err := writeFile(h.at, g.rel+"/memory.max_usage_in_bytes", "0"); err != nil {
			return g.fail("reset peak", i, "memory.max_usage_in_bytes", err)
		}
	}
	return nil
}

// resetOwnPeak is ResetPeak in a v2 hierarchy.
func (g *Group) resetOwnPeak(i int) error {
	path := g.rel + "/memory.peak"
	f := g.ownPeak.Load()
	if f == nil {
		fd, err := openRetry(g.tree.hierarchies[i].at, path, unix.O_RDWR)
		switch err {
		case nil:
		case unix.ENOENT: //nolint:errorlint // raw errno: Stat keeps the peak itself and has just restarted it
			return nil
		case unix.EACCES, unix.EPERM: // the file is read-only
			return ErrUnsupported
		default:
			return g.fail("reset peak", i, path, err)
		}
		f = os.NewFile(uintptr(fd), path)
	}
	_, err := f.WriteAt([]byte("reset"), 0)
	if err == nil {
		if old := g.ownPeak.Swap(f); old != nil && old != f {
			_ = old.Close() // of two concurrent calls, the later one counts
		}
		return nil
	}
	if g.ownPeak.Load() != f {
		_ = f.Close()
	}
	if errors.Is(err, unix.EINVAL) { // before 6.12, where root may open it for writing nevertheless
		return ErrUnsupported
	}
	return g.fail("reset peak", i, path, errno(err))
}

// memoryPeak reads the kernel's peak: since ResetPeak, or since Make.
func (g *Group) memoryPeak(r *reader) ([]byte, bool) {
	f := g.ownPeak.Load()
	if f == nil || r.err != nil {
		return r.optional("memory.peak")
	}
	n, err := f.ReadAt(*r.buf, 0)
	switch {
	case n > 0:
		return (*r.buf)[:n], true
	case errors.Is(err, os.ErrClosed): // Remove has just closed it
		return r.optional("memory.peak")
	case errors.Is(err, unix.ENODEV):
		err = unix.ENOENT // the error that get returns
	}
	r.err, r.file = errno(err), r.dir+"/memory.peak"
	return nil, false
}

// closePeak closes the file that ResetPeak has opened.
func (g *Group) closePeak() {
	if f := g.ownPeak.Swap(nil); f != nil {
		_ = f.Close() // nothing is buffered
	}
}

// raisePeak records v as the peak if it is higher, and returns the peak.
func (g *Group) raisePeak(v uint64) uint64 {
	for {
		old := g.peak.Load()
		if v <= old {
			return old
		}
		if g.peak.CompareAndSwap(old, v) {
			return v
		}
	}
}

// splitCPU divides an exact total by two counters that v1 only samples at clock ticks, so that they add up to it: a
// program shorter than a tick would otherwise have run for no time at all. The kernel does the same for times(2).
func splitCPU(total time.Duration, user, system uint64) (u, s time.Duration) {
	sum := user + system
	if system == 0 || sum < user || total <= 0 {
		return max(total, 0), 0
	}
	// total·system can pass 64 bits after a few CPU minutes.
	hi, lo := bits.Mul64(uint64(total), system)
	if hi >= sum {
		return total, 0
	}
	q, _ := bits.Div64(hi, lo, sum)
	s = min(time.Duration(q), total)
	return total - s, s
}

// parseIOStat adds up "8:0 rbytes=1 wbytes=2 rios=…" over all devices.
func parseIOStat(b []byte) (read, written uint64) {
	for field := range bytes.FieldsSeq(b) {
		if v, ok := bytes.CutPrefix(field, []byte("rbytes=")); ok {
			n, _ := parseUint(v)
			read += n
		} else if v, ok := bytes.CutPrefix(field, []byte("wbytes=")); ok {
			n, _ := parseUint(v)
			written += n
		}
	}
	return read, written
}

//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Limits of a group. Zero means no limit in Make, and "leave as it is" in Set.
type Limits struct {
	CPU    float64 // cores: 0.5 is half of one core's time; at least 0.01
	Memory uint64  // bytes, swap included where Tree.Has(Swap)
	Pids   int     // tasks, threads included
}

// Buffers of TCP sockets get this share of the memory limit in addition to it, and at least tcpLeast.
const (
	tcpShare = 8
	tcpLeast = 1 << 20
)

const (
	cpuPeriod   = 100_000 // µs, the kernel's default for every new group
	cpuMinQuota = 1_000   // µs, the kernel's least
)

func (g *Group) checkLimits(l Limits) error {
	bad := func(what string, err error) error {
		return &Error{Op: "limit", Group: g.path, Err: fmt.Errorf("%s: %w", what, err)}
	}
	switch {
	case math.IsNaN(l.CPU) || math.IsInf(l.CPU, 0) || l.CPU < 0 || l.CPU > 1e6:
		return bad(fmt.Sprintf("%v CPU cores", l.CPU), unix.EINVAL)
	case l.Pids < 0:
		return bad(fmt.Sprintf("%d processes", l.Pids), unix.EINVAL)
	case l.Memory > math.MaxInt64:
		return bad(fmt.Sprintf("%d bytes of memory", l.Memory), unix.EINVAL)
	case l.CPU > 0 && !g.tree.Has(CPU):
		return bad("cpu: "+g.tree.gapReason("cpu"), ErrUnsupported)
	case l.Memory > 0 && !g.tree.Has(Memory):
		return bad("memory: "+g.tree.gapReason("memory"), ErrUnsupported)
	case l.Pids > 0 && !g.tree.Has(Pids):
		return bad("pids: "+g.tree.gapReason("pids"), ErrUnsupported)
	}
	return nil
}

func (t *Tree) gapReason(control string) string {
	for _, gap := range t.missing {
		if gap.Control == control {
			return gap.Reason
		}
	}
	return "no hierarchy has the controller"
}

// Set changes the limits of a group that exists. On v1 the kernel refuses a memory limit below the use (EBUSY); on v2 it
// reclaims, and kills if it has to.
func (g *Group) Set(l Limits) error {
	if g.err != nil {
		return g.err
	}
	if err := g.checkLimits(l); err != nil {
		return err
	}
	return g.set(l)
}

// set is Set without the check of the limits.
func (g *Group) set(l Limits) error {
	for i := range g.tree.hierarchies {
		h, dir := &g.tree.hierarchies[i], g.rel
		if l.CPU > 0 && h.roles&roleCPU != 0 {
			quota, file, err := setCPU(h, dir, l.CPU)
			if err != nil {
				return g.fail("limit cpu", i, file, err)
			}
			g.lowerQuota(quota)
		}
		if l.Memory > 0 && h.roles&roleMemory != 0 {
			if file, err := g.setMemory(h, dir, l.Memory); err != nil {
				return g.fail("limit memory", i, file, err)
			}
		}
		if l.Pids > 0 && h.roles&rolePids != 0 {
			file := dir + "/pids.max"
			if err := writeFile(h.at, file, strconv.Itoa(l.Pids)); err != nil {
				return g.fail("limit processes", i, file, err)
			}
			g.pidsMax.Store(int64(l.Pids))
		}
	}
	return nil
}

// lowerQuota records the least quota of this Group.
func (g *Group) lowerQuota(v int64) {
	for {
		old := g.quota.Load()
		if old != 0 && old <= v || g.quota.CompareAndSwap(old, v) {
			return
		}
	}
}

// setCPU returns the quota that was set, in µs per period, or the file that refused.
func setCPU(h *hierarchy, dir string, cores float64) (quota int64, file string, err error) {
	quota = max(int64(math.Round(cores*cpuPeriod)), cpuMinQuota)
	if h.v2 {
		file = dir + "/cpu.max"
		return quota, file, writeFile(h.at, file, strconv.FormatInt(quota, 10)+" "+strconv.Itoa(cpuPeriod))
	}
	file = dir + "/cpu.cfs_quota_us"
	err = writeFile(h.at, file, strconv.FormatInt(quota, 10))
	if err != unix.EINVAL { //nolint:errorlint // raw errno
		return quota, file, err
	}
	// v1 refuses a child a higher quota than any ancestor has. The ancestor's tighter limit is in force anyway, so setting
	// it here is never weaker than the requested limit.
	tightest := cores
	for up := filepath.Dir(h.place + "/" + dir); len(up) >= len(h.mount); up = filepath.Dir(up) {
		if r, ok := cpuRatio(up); ok {
			tightest = min(tightest, r)
		}
	}
	if tightest >= cores {
		return quota, file, err
	}
	quota = max(int64(tightest*cpuPeriod), cpuMinQuota)
	return quota, file, writeFile(h.at, file, strconv.FormatInt(quota, 10))
}

// cpuRatio is a v1 group's quota in cores; ok is false when it has none.
func cpuRatio(dir string) (cores float64, ok bool) {
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	quota, ok1 := readNumber(dir+"/cpu.cfs_quota_us", buf) // "-1" is none, and no number to parseUint
	period, ok2 := readNumber(dir+"/cpu.cfs_period_us", buf)
	if !ok1 || !ok2 || period == 0 {
		return 0, false
	}
	return float64(quota) / float64(period), true
}

func readNumber(path string, buf *[]byte) (uint64, bool) {
	b, err := readCounter(unix.AT_FDCWD, path, buf)
	if err != nil {
		return 0, false
	}
	return parseUint(b)
}

func (g *Group) setMemory(h *hierarchy, dir string, bytes uint64) (string, error) {
	value := strconv.FormatUint(bytes, 10)
	if h.v2 {
		// Swap first: at no moment may there be a memory limit without a swap limit.
		file := dir + "/memory.swap.max"
		if err := writeFile(h.at, file, "0"); errors.Is(err, unix.ENOENT) && existsAt(h.at, dir+"/memory.max") {
			g.tree.noSwapLimit.Store(true)
		} else if err != nil {
			return file, err
		}
		file = dir + "/memory.max"
		return file, writeFile(h.at, file, value)
	}
	// v1 counts the buffers of TCP sockets apart, without a limit by default: gigabytes could be queued on a
	// loopback. Kernels without the counter have no network memory to limit.
	tcp := dir + "/memory.kmem.tcp.limit_in_bytes"
	if err := writeFile(h.at, tcp, strconv.FormatUint(max(bytes/tcpShare, tcpLeast), 10)); err != nil && !errors.Is(err, unix.ENOENT) {
		return tcp, err
	}
	// The kernel keeps limit ≤ memsw at every moment: a new group (memsw unlimited) and lowering need limit first,
	// raising needs memsw first.
	file, memsw := dir+"/memory.limit_in_bytes", dir+"/memory.memsw.limit_in_bytes"
	err := writeFile(h.at, file, value)
	if err == unix.EINVAL && h.memsw { //nolint:errorlint // raw errno
		if err := writeFile(h.at, memsw, value); err != nil {
			return memsw, err
		}
		return file, writeFile(h.at, file, value)
	}
	if err != nil || !h.memsw {
		return file, err
	}
	return memsw, writeFile(h.at, memsw, value)
}

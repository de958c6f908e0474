package box

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// Usage is processor time.
type Usage struct{ User, System time.Duration }

// sample turns a cgroup's counters into a sample. Counters that could not be read stay zero: the monitor keeps the last
// values.
func (p *Phase) sample(st cgroup.Stat, err error) (s monitor.Sample) {
	if err == nil {
		s = monitor.Sample{
			CPUUser: st.CPUUser, CPUSystem: st.CPUSystem, Throttled: st.Throttled,
			Memory: st.MemoryCurrent, MemoryPeak: st.MemoryPeak, IORead: st.IORead, IOWrite: st.IOWrite,
			Processes: int(st.Pids), ProcessesPeak: int(st.PidsPeak), OOMKills: st.OOMKills, ProcessLimitHits: st.PidsLimitHits,
		}
	}
	reserved := int(p.reserved.Load())
	s.Processes, s.ProcessesPeak = max(0, s.Processes-reserved), max(0, s.ProcessesPeak-reserved)
	if p.Instance.Scratch == nil {
		return s
	}
	if u, err := p.Instance.Scratch.Usage(); err == nil {
		s.DiskUsed, s.DiskFull = u.BytesUsed, u.Full
	}
	return s
}

// resetPeaks counts the peaks anew.
func (p *Phase) resetPeaks() error {
	if p.Poller != nil {
		p.Poller.resetPeaks()
	}
	if p.Group == nil {
		return nil
	}
	return p.Group.ResetPeak()
}

// maxIOProcesses bounds how many processes a live sample reads; the final one has all of them.
const maxIOProcesses = 32

// sampleLive is a sample of a running phase.
func (p *Phase) sampleLive() (monitor.Sample, error) {
	if p.Group == nil && p.Poller == nil {
		return monitor.Sample{}, errors.New("no cgroup to count in")
	}
	var st cgroup.Stat
	var pids []int
	if p.Group != nil {
		var err error
		if st, err = p.Group.Stat(); err != nil {
			return monitor.Sample{}, err
		}
		pids, _ = p.Group.Procs()
	}
	s := p.sample(st, nil)
	if p.Poller != nil {
		if err := p.Poller.addTo(&s); err != nil {
			return monitor.Sample{}, err
		}
	}
	s.IORead, s.IOWrite = 0, 0
	if !p.InitInGroup {
		s.IORead, s.IOWrite = processIO(p.InitPID)
	}
	for _, pid := range pids[:min(len(pids), maxIOProcesses)] {
		read, written := processIO(pid)
		s.IORead, s.IOWrite = s.IORead+read, s.IOWrite+written
	}
	return s, nil
}

// ProcessUsage is the processor time of a process and of its reaped children, in the kernel's ticks; 0 for a process
// that is gone.
func ProcessUsage(pid int) Usage {
	const tick = time.Second / 100 // USER_HZ, on every supported architecture
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Usage{}
	}
	// The name, in brackets, may be anything. utime, stime, cutime and cstime are the 14th to 17th field; the state is the 3rd.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return Usage{}
	}
	var n [4]int
	for i := range n {
		n[i], _ = strconv.Atoi(fields[11+i])
	}
	return Usage{time.Duration(n[0]+n[2]) * tick, time.Duration(n[1]+n[3]) * tick}
}

// processIO is the storage traffic of a process and its reaped children. cgroup v1 counts nothing without a throttle
// rule, v2 counts traffic through a loop device twice; this count is right.
func processIO(pid int) (read, written uint64) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return 0, 0
	}
	field := func(name string) uint64 {
		_, after, found := bytes.Cut(text, []byte("\n"+name+": "))
		if !found {
			return 0
		}
		line, _, _ := bytes.Cut(after, []byte("\n"))
		n, _ := strconv.ParseUint(string(line), 10, 64)
		return n
	}
	return field("read_bytes"), field("write_bytes")
}

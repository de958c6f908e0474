package helper

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// groupDir is the directory of a container's own cgroup.
const groupDir = "/sys/fs/cgroup"

// counter reads the kernel's counters of this container, of either version of cgroups.
type counter struct {
	version int
	dirs    []string

	mu       sync.Mutex
	own      uint64 // memory of the helper and its first init
	ownTasks int
	memory   uint64 // highest value read
	tasks    int
	full     bool
}

// marks are the counters at the start of a phase.
type marks struct {
	cpuUser, cpuSystem, throttled time.Duration
	oom, hits                     uint64
	peak                          uint64
	tasksPeak                     int
}

func newCounter(setup *containerproto.Setup) *counter {
	c := &counter{}
	for _, d := range setup.Dirs {
		c.dirs = append(c.dirs, d.At)
	}
	switch {
	case exists(groupDir + "/memory.current"):
		c.version = 2
	case exists(groupDir + "/memory/memory.usage_in_bytes"):
		c.version = 1
	}
	return c
}

func exists(file string) bool { return unix.Access(file, unix.F_OK) == nil }

// number reads a file with one number; -1 is "max", or a missing file.
func number(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// field reads the number in one line of a file of "name number" lines; 0 if there is none.
func field(file, name string) uint64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

// limits are the limits in force; -1 is none.
func (c *counter) limits() (memory, swap, pids, quota, period int64) {
	switch c.version {
	case 2:
		memory, swap, pids = number(groupDir+"/memory.max"), number(groupDir+"/memory.swap.max"), number(groupDir+"/pids.max")
		quota, period = -1, -1
		if text, err := os.ReadFile(groupDir + "/cpu.max"); err == nil {
			if f := strings.Fields(string(text)); len(f) == 2 && f[0] != "max" {
				quota, _ = strconv.ParseInt(f[0], 10, 64)
				period, _ = strconv.ParseInt(f[1], 10, 64)
			}
		}
		return memory, swap, pids, quota, period
	case 1:
		return number(groupDir + "/memory/memory.limit_in_bytes"), number(groupDir + "/memory/memory.memsw.limit_in_bytes"),
			number(groupDir + "/pids/pids.max"), number(groupDir + "/cpu/cpu.cfs_quota_us"), number(groupDir + "/cpu/cpu.cfs_period_us")
	}
	return -1, -1, -1, -1, -1
}

// reading is the counters at one moment.
type reading struct {
	marks
	memory uint64
	tasks  int
}

const clockTick = 10 * time.Millisecond // USER_HZ is 100 everywhere

func (c *counter) read() (r reading) {
	positive := func(n int64) uint64 { return uint64(max(n, 0)) }
	defer func() { // the helper's own use is not the program's
		var own unix.Rusage
		if unix.Getrusage(unix.RUSAGE_SELF, &own) == nil {
			r.cpuUser -= min(r.cpuUser, time.Duration(own.Utime.Nano()))
			r.cpuSystem -= min(r.cpuSystem, time.Duration(own.Stime.Nano()))
		}
	}()
	switch c.version {
	case 2:
		r.cpuUser = time.Duration(field(groupDir+"/cpu.stat", "user_usec")) * time.Microsecond
		r.cpuSystem = time.Duration(field(groupDir+"/cpu.stat", "system_usec")) * time.Microsecond
		r.throttled = time.Duration(field(groupDir+"/cpu.stat", "throttled_usec")) * time.Microsecond
		r.memory, r.peak = positive(number(groupDir+"/memory.current")), positive(number(groupDir+"/memory.peak"))
		r.oom = field(groupDir+"/memory.events", "oom_kill")
		r.tasks, r.tasksPeak = int(positive(number(groupDir+"/pids.current"))), int(positive(number(groupDir+"/pids.peak")))
		r.hits = field(groupDir+"/pids.events", "max")
	case 1:
		r.cpuUser, r.cpuSystem = split(
			time.Duration(positive(number(groupDir+"/cpuacct/cpuacct.usage"))),
			time.Duration(field(groupDir+"/cpuacct/cpuacct.stat", "user"))*clockTick,
			time.Duration(field(groupDir+"/cpuacct/cpuacct.stat", "system"))*clockTick)
		r.throttled = time.Duration(field(groupDir+"/cpu/cpu.stat", "throttled_time"))
		r.memory, r.peak = positive(number(groupDir+"/memory/memory.usage_in_bytes")),
			positive(number(groupDir+"/memory/memory.max_usage_in_bytes"))
		r.oom = field(groupDir+"/memory/memory.oom_control", "oom_kill")
		r.tasks, r.tasksPeak = int(positive(number(groupDir+"/pids/pids.current"))), int(positive(number(groupDir+"/pids/pids.peak")))
		r.hits = field(groupDir+"/pids/pids.events", "max")
	}
	return r
}

// split divides an exact total in the ratio of two coarse counts.
func split(total, user, system time.Duration) (time.Duration, time.Duration) {
	if user+system <= 0 {
		return total, 0
	}
	u := time.Duration(float64(total) * (float64(user) / float64(user+system)))
	return u, total - u
}

// measureOwn records the helper's own use, before a program has run.
func (c *counter) measureOwn() {
	r := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own, c.ownTasks = r.memory, r.tasks
}

// reserveTasks raises the number of the helper's own tasks to the reserved part of the process limit: the Go runtime chooses its number
// of threads, and the program gets exactly its limit. Threads that the runtime adds later lower it, never raise it.
func (c *counter) reserveTasks(reserved int, first *spawn.Init) {
	count := func() int {
		if tasks := c.read().tasks; tasks > 0 {
			return tasks
		}
		list, _ := os.ReadDir("/proc/self/task") // no cgroup is visible
		return len(list) + first.Threads()
	}
	// The threads are made now, all at once, and then left idle: the runtime uses idle threads before it makes another. If it can not
	// make one because a program has used up the limit, the runtime aborts the helper.
	var up sync.WaitGroup
	release := make(chan struct{})
	tasks := count()
	for range reserved { // some goroutines get an existing idle thread
		for n := tasks; n < reserved; n++ {
			up.Add(1)
			go func() {
				runtime.LockOSThread()
				up.Done()
				<-release
				runtime.UnlockOSThread()
			}()
		}
		up.Wait()
		if tasks = count(); tasks >= reserved {
			break
		}
	}
	close(release)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ownTasks = max(tasks, reserved)
}

func (c *counter) mark() marks {
	m := c.read().marks
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory, c.tasks = 0, 0
	return m
}

// since returns what was used after a mark. Peaks are the kernel's if it has recorded a new one since, else the highest value
// read.
func (c *counter) since(m marks, inits []*spawn.Init) (out containerproto.Counters) {
	r := c.read()
	own, _ := os.ReadDir("/proc/self/task")
	tasks := len(own)
	for _, i := range inits {
		tasks += i.Threads()
	}
	used, full := c.scratch()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ownTasks = max(c.ownTasks, tasks) // the runtime adds threads, and ends none
	c.memory, c.tasks = max(c.memory, r.memory), max(c.tasks, r.tasks)
	peak, tasksPeak := c.memory, c.tasks
	if r.peak > m.peak {
		peak = max(peak, r.peak)
	}
	if r.tasksPeak > m.tasksPeak {
		tasksPeak = max(tasksPeak, r.tasksPeak)
	}
	c.full = c.full || full
	less := func(a, b uint64) uint64 { return a - min(a, b) }
	return containerproto.Counters{
		CPUUser: max(0, r.cpuUser-m.cpuUser), CPUSystem: max(0, r.cpuSystem-m.cpuSystem), Throttled: max(0, r.throttled-m.throttled),
		Memory: less(r.memory, c.own), MemoryPeak: less(peak, c.own),
		Processes: max(0, r.tasks-c.ownTasks), ProcessesPeak: max(0, tasksPeak-c.ownTasks),
		OOMKills: less(r.oom, m.oom), ProcessLimitHits: less(r.hits, m.hits), DiskUsed: used, DiskFull: full,
	}
}

// scratch is how much of the scratch is used, and whether there is no room for another page or file.
func (c *counter) scratch() (used uint64, full bool) {
	for _, d := range c.dirs {
		var st unix.Statfs_t
		if unix.Statfs(d, &st) != nil {
			continue
		}
		used += (st.Blocks - st.Bfree) * uint64(st.Bsize)
		full = full || st.Blocks > 0 && st.Bfree == 0 || st.Files > 0 && st.Ffree == 0
	}
	return used, full
}

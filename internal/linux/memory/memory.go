package memory

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Reading is the state of the memory at one moment.
type Reading struct {
	Total     uint64  // bytes: of the machine, or of the smallest cgroup above this process
	Available uint64  // bytes that can be used before the kernel kills
	Where     string  // the narrowest limit: "the machine", or a cgroup's path
	Stalled   float64 // share of the last ten seconds in which every runnable task waited for memory, 0 to 1; 0 if not reported
}

// Read returns the current state. It fails where /proc/meminfo can not be read.
func Read() (Reading, error) { return read("/") }

// read is Read below a root directory, for tests.
func read(root string) (Reading, error) {
	info, err := fields(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return Reading{}, err
	}
	total, known := info["MemTotal:"]
	available, there := info["MemAvailable:"]
	if !known || !there {
		return Reading{}, errors.New("memory: /proc/meminfo has no MemAvailable")
	}
	r := Reading{Total: total << 10, Available: available << 10, Where: "the machine",
		Stalled: stalled(filepath.Join(root, "proc/pressure/memory"))}
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return r, nil //nolint:nilerr // a kernel without cgroups has no such limits
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "":
			for _, mount := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
				r.within(filepath.Join(root, mount), parts[2], "memory.max", "memory.current", "inactive_file")
			}
		case strings.Contains(","+parts[1]+",", ",memory,"):
			r.within(filepath.Join(root, "sys/fs/cgroup/memory"), parts[2], "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
		}
	}
	return r, nil
}

// Limit is the smallest memory limit of the cgroups above this process; ok is false if none is below the machine's memory.
func Limit() (bytes uint64, ok bool) { return limit("/") }

func limit(root string) (uint64, bool) {
	r, err := read(root)
	info, infoErr := fields(filepath.Join(root, "proc/meminfo"))
	if err != nil || infoErr != nil {
		return 0, false
	}
	return r.Total, r.Total < info["MemTotal:"]<<10
}

// within lowers the reading to what the cgroups from a path upwards leave.
func (r *Reading) within(mount, path, limit, usage, idle string) {
	for at := filepath.Clean("/" + path); ; at = filepath.Dir(at) {
		dir := filepath.Join(mount, at)
		most, bounded := number(filepath.Join(dir, limit))
		used, known := number(filepath.Join(dir, usage))
		if bounded && known && most < r.Total { // a limit above the machine's memory limits nothing
			if stat, err := fields(filepath.Join(dir, "memory.stat")); err == nil {
				used -= min(used, stat[idle])
			}
			r.Total = most
			if left := most - min(used, most); left < r.Available {
				r.Available, r.Where = left, "the cgroup "+at
			}
		}
		if at == "/" {
			return
		}
	}
}

func number(name string) (uint64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil // "max" is none
}

// fields reads lines of a name and a number.
func fields(name string) (map[string]uint64, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	all := map[string]uint64{}
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		words := strings.Fields(in.Text())
		if len(words) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			all[words[0]] = n
		}
	}
	return all, nil
}

// stalled reads "full avg10=1.23 avg60=… total=…".
func stalled(name string) float64 {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var percent float64
		if n, _ := fmt.Sscanf(line, "full avg10=%g", &percent); n == 1 {
			return percent / 100
		}
	}
	return 0
}

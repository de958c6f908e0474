package sandbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// Size is a number of bytes.
type Size uint64

// Units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

var sizeUnits = map[string]Size{
	"": 1, "b": 1,
	"k": KiB, "kb": KiB, "kib": KiB,
	"m": MiB, "mb": MiB, "mib": MiB,
	"g": GiB, "gb": GiB, "gib": GiB,
	"t": TiB, "tb": TiB, "tib": TiB,
}

// ParseSize reads "512m", "256mb", "1g", "1.5GiB", "1t" or plain bytes. Units are powers of 1024,
// as everywhere in this field.
func ParseSize(s string) (Size, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	split := strings.LastIndexAny(text, "0123456789.") + 1
	number, unit := text[:split], strings.TrimSpace(text[split:])
	factor, known := sizeUnits[unit]
	if !known || number == "" || strings.ContainsAny(number, "+-eExX_ ") {
		return 0, fmt.Errorf("%q is not a size; write it like 512m, 256mb, 1g or 1073741824", s)
	}
	if !strings.Contains(number, ".") {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > math.MaxInt64/uint64(factor) {
			return 0, fmt.Errorf("%q is not a size this machine can count", s)
		}
		return Size(n) * factor, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f*float64(factor) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size; write it like 512m, 256mb, 1g or 1073741824", s)
	}
	return Size(f * float64(factor)), nil
}

// String writes the largest unit that is exact to two decimals.
func (s Size) String() string {
	for _, u := range []struct {
		unit Size
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if s >= u.unit {
			text := strconv.FormatFloat(float64(s)/float64(u.unit), 'f', 2, 64)
			return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + " " + u.name
		}
	}
	return strconv.FormatUint(uint64(s), 10) + " B"
}

// Limits bound one phase of a sandbox; disk and inodes bound the sandbox as a whole. A zero field
// means "the default"; that a user wrote an explicit zero is for the door to refuse.
type Limits struct {
	Wall      time.Duration // from start to end
	Grace     time.Duration // between SIGTERM and SIGKILL
	CPUs      float64       // cores, as a quota
	CPUTime   time.Duration // CPU seconds of all processes together; 0 is no limit
	Memory    Size
	Disk      Size // /workspace, /tmp and $HOME together
	Inodes    int
	Processes int  // processes and threads
	OpenFiles int  // per process
	Output    Size // kept per stream, half head and half tail
}

// DefaultLimits are what a run gets when nobody says otherwise.
func DefaultLimits() Limits {
	return Limits{
		Wall: 30 * time.Second, Grace: 2 * time.Second, CPUs: 1,
		Memory: 512 * MiB, Disk: 1 * GiB, Inodes: 64 << 10,
		Processes: 100, OpenFiles: 1024, Output: 8 * MiB,
	}
}

// The least that still lets a program start; anything below could only fail in confusing ways.
const (
	minMemory    = 2 * MiB
	minDisk      = 1 * MiB
	minInodes    = 32
	minOpenFiles = 32 // what the init has open counts until the program is executed
	maxOpenFiles = 1 << 20
	maxProcesses = 4 << 20 // the kernel's PID_MAX_LIMIT
	minCPUs      = 0.01    // the kernel's shortest quota
	maxDuration  = 365 * 24 * time.Hour
)

// Machine is what there is to share out.
type Machine struct {
	CPUs      int
	Memory    Size
	OpenFiles int // that this process could have; 0 is not known
}

// ThisMachine is what this process could use at the most.
func ThisMachine() Machine { return thisMachine() }

// openFiles is the most that can be asked for.
func (m Machine) openFiles() int {
	if m.OpenFiles == 0 {
		return maxOpenFiles
	}
	return min(m.OpenFiles, maxOpenFiles)
}

// Or fills what l leaves open from base.
func (l Limits) Or(base Limits) Limits {
	l.Wall = cmp.Or(l.Wall, base.Wall)
	l.Grace = cmp.Or(l.Grace, base.Grace)
	l.CPUs = cmp.Or(l.CPUs, base.CPUs)
	l.CPUTime = cmp.Or(l.CPUTime, base.CPUTime)
	l.Memory = cmp.Or(l.Memory, base.Memory)
	l.Disk = cmp.Or(l.Disk, base.Disk)
	l.Inodes = cmp.Or(l.Inodes, base.Inodes)
	l.Processes = cmp.Or(l.Processes, base.Processes)
	l.OpenFiles = cmp.Or(l.OpenFiles, base.OpenFiles)
	l.Output = cmp.Or(l.Output, base.Output)
	return l
}

// Validate refuses limits no machine could honour. Only fields that are set are looked at.
func (l Limits) Validate(m Machine) error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"timeout", l.Wall}, {"grace", l.Grace}, {"cpu-time", l.CPUTime}} {
		if d.value < 0 || d.value > maxDuration {
			return Invalid(d.name, "%v is outside 0…%v", d.value, maxDuration)
		}
	}
	if math.IsNaN(l.CPUs) || l.CPUs != 0 && (l.CPUs < minCPUs || l.CPUs > float64(m.CPUs)) {
		return Invalid("cpus", "%v is outside %v…%d, the cores of this machine", l.CPUs, minCPUs, m.CPUs)
	}
	for _, s := range []struct {
		name     string
		value    Size
		min, max Size
		why      string
	}{
		{"memory", l.Memory, minMemory, m.Memory, "the memory of this machine"},
		{"disk", l.Disk, minDisk, 4 * TiB, "the largest scratch disk"},
		{"output-limit", l.Output, 1, GiB, "the most that is kept in memory"},
	} {
		if s.value != 0 && (s.value < s.min || s.value > s.max) {
			return Invalid(s.name, "%s is outside %s…%s, %s", s.value, s.min, s.max, s.why)
		}
	}
	for _, n := range []struct {
		name            string
		value, min, max int
	}{
		{"pids", l.Processes, 1, maxProcesses},
		{"open-files", l.OpenFiles, minOpenFiles, m.openFiles()},
		{"inodes", l.Inodes, minInodes, 1 << 28},
	} {
		if n.value != 0 && (n.value < n.min || n.value > n.max) {
			return Invalid(n.name, "%d is outside %d…%d", n.value, n.min, n.max)
		}
	}
	return nil
}

// Clamp lowers defaults that exceed the machine, and says so.
func (l Limits) Clamp(m Machine) (Limits, []string) {
	var said []string
	if l.CPUs > float64(m.CPUs) {
		said = append(said, fmt.Sprintf("cpus: default %v lowered to the %d cores of this machine", l.CPUs, m.CPUs))
		l.CPUs = float64(m.CPUs)
	}
	if l.Memory > m.Memory {
		said = append(said, fmt.Sprintf("memory: default %s lowered to the %s of this machine", l.Memory, m.Memory))
		l.Memory = m.Memory
	}
	if l.OpenFiles > m.openFiles() {
		said = append(said, fmt.Sprintf("open-files: default %d lowered to the %d that sandbox-run itself may open", l.OpenFiles, m.openFiles()))
		l.OpenFiles = m.openFiles()
	}
	return l, said
}

// limitsJSON are limits under the names of their flags: seconds and bytes.
type limitsJSON struct {
	Wall      monitor.Seconds `json:"timeout"`
	Grace     monitor.Seconds `json:"grace"`
	CPUs      float64         `json:"cpus"`
	CPUTime   monitor.Seconds `json:"cpu_time,omitempty"`
	Memory    Size            `json:"memory"`
	Disk      Size            `json:"disk"`
	Inodes    int             `json:"inodes"`
	Processes int             `json:"pids"`
	OpenFiles int             `json:"open_files"`
	Output    Size            `json:"output_limit"`
}

// MarshalJSON writes limits under the names of their flags: seconds and bytes.
func (l Limits) MarshalJSON() ([]byte, error) {
	return json.Marshal(limitsJSON{
		monitor.Seconds(l.Wall), monitor.Seconds(l.Grace), l.CPUs, monitor.Seconds(l.CPUTime), l.Memory, l.Disk,
		l.Inodes, l.Processes, l.OpenFiles, l.Output,
	})
}

// UnmarshalJSON reads what MarshalJSON writes. What is left out stays as it is; a name that is no limit is an error,
// because a limit that is misspelt would not be enforced.
func (l *Limits) UnmarshalJSON(b []byte) error {
	j := limitsJSON{
		monitor.Seconds(l.Wall), monitor.Seconds(l.Grace), l.CPUs, monitor.Seconds(l.CPUTime), l.Memory, l.Disk,
		l.Inodes, l.Processes, l.OpenFiles, l.Output,
	}
	in := json.NewDecoder(bytes.NewReader(b))
	in.DisallowUnknownFields()
	if err := in.Decode(&j); err != nil {
		return Invalid("limits", "%w", err)
	}
	*l = Limits{
		j.Wall.Duration(), j.Grace.Duration(), j.CPUs, j.CPUTime.Duration(), j.Memory, j.Disk,
		j.Inodes, j.Processes, j.OpenFiles, j.Output,
	}
	return nil
}

// ScratchMode says what /workspace, /tmp and $HOME are made of.
type ScratchMode string

// The scratch modes.
const (
	ScratchAuto   ScratchMode = "auto"   // disk where the machine can, else memory, and the report says so
	ScratchDisk   ScratchMode = "disk"   // a disk of its own: never counts as memory
	ScratchMemory ScratchMode = "memory" // tmpfs: fastest, and what is written counts as memory
)

// ParseScratch accepts the name of a scratch mode.
func ParseScratch(s string) (ScratchMode, error) {
	switch m := ScratchMode(s); m {
	case ScratchAuto, ScratchDisk, ScratchMemory:
		return m, nil
	}
	return "", Invalid("scratch", "unknown mode %q; one of auto, disk, memory", s)
}

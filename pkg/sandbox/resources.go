package sandbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Limits bound one phase of a sandbox; disk and inodes bound the sandbox as a whole. A zero field means "the default"; the entry points
// refuse an explicit zero of a user. Every field has a row in limitTable.
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

	// Of a network with rules; 0 is no limit.
	NetRate        Size // bytes per second, in both directions together
	NetBytes       Size // in all, in both directions together
	NetConnections int  // open at a time
}

// Limit is one row of the table of limits. The flags of runs and servers, their variables and settings, the JSON of requests and
// results, the OpenAPI document, validation, and the ceilings of servers and keys are derived from it.
type Limit struct {
	Name         string // in JSON; flags have dashes for underscores
	Usage        string // help of the flag
	CeilingUsage string // help of the server's flag for the most that requests may ask for; empty: Usage
	NoCeiling    bool   // neither servers nor keys can set the most
	Doc          string // in the OpenAPI document; empty: Usage as a sentence
	Example      string // there, as JSON
	CompileDoc   string // there, of the limit of compilers; empty: a request can not set that
	scope        limitScope
	amount
}

// Flag is the name of the limit's flag, and of the limit in errors.
func (l *Limit) Flag() string { return strings.ReplaceAll(l.Name, "_", "-") }

// Sentence makes the help of a flag a sentence of documentation.
func Sentence(usage string) string {
	usage, _, _ = strings.Cut(strings.ReplaceAll(usage, "`", ""), " (default")
	return strings.ToUpper(usage[:1]) + usage[1:] + "."
}

// limitScope says what shares a limit.
type limitScope int

const (
	eachProcess  limitScope = iota // every process has its own
	wholePhase                     // the processes of a phase share one
	wholeSandbox                   // the phases of a sandbox share one
)

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

// limitTable has one row per field of Limits, in the order of help and of JSON.
var limitTable = []*Limit{
	{
		Name: "timeout", Usage: "wall `time`", Doc: "Wall time of the run.", Example: `"10s"`, CompileDoc: "Wall time of compiling.",
		amount: &amountOf[time.Duration]{
			at: func(l *Limits) *time.Duration { return &l.Wall }, unit: &durations, most: maxDuration,
			standard: 30 * time.Second, ceiling: 5 * time.Minute, compile: time.Minute, compileCeiling: 10 * time.Minute,
		},
	},
	{Name: "grace", Usage: "`time` between SIGTERM and SIGKILL", NoCeiling: true, amount: &amountOf[time.Duration]{
		at: func(l *Limits) *time.Duration { return &l.Grace }, unit: &durations, most: maxDuration,
		standard: 2 * time.Second, ceiling: 10 * time.Second,
	}},
	{
		Name: "cpus", Usage: "`cores`, as a quota", CeilingUsage: "`cores`, as a quota (default those of this machine)", scope: wholePhase,
		amount: &amountOf[float64]{
			at: func(l *Limits) *float64 { return &l.CPUs }, unit: &cores, least: minCPUs, standard: 1, compile: math.MaxFloat64,
			machine: func(m Machine) float64 { return float64(m.CPUs) }, why: ", the cores of this machine", lowered: " cores of this machine",
		},
	},
	{
		Name: "cpu_time", Usage: "CPU `time` of all processes together (default no limit)", CeilingUsage: "CPU `time` (default no limit)",
		scope:  wholePhase,
		amount: &amountOf[time.Duration]{at: func(l *Limits) *time.Duration { return &l.CPUTime }, unit: &durations, most: maxDuration},
	},
	{
		Name: "memory", Usage: "memory `size`; swap is off", CeilingUsage: "memory `size`", Doc: "Memory; swap is off.", Example: `"256MiB"`,
		CompileDoc: "Memory of compiling.", scope: wholePhase,
		amount: &amountOf[Size]{
			at: func(l *Limits) *Size { return &l.Memory }, unit: &sizes, least: minMemory,
			machine: func(m Machine) Size { return m.Memory }, why: ", the memory of this machine", lowered: " of this machine",
			standard: 512 * MiB, ceiling: 2 * GiB, compile: 2 * GiB, compileCeiling: 4 * GiB,
		},
	},
	{
		Name: "disk", Usage: "`size` of /workspace, /tmp and $HOME together", CeilingUsage: "`size` of the scratch disk", scope: wholeSandbox,
		amount: &amountOf[Size]{
			at: func(l *Limits) *Size { return &l.Disk }, unit: &sizes, least: minDisk, most: 4 * TiB, why: ", the largest scratch disk",
			standard: 1 * GiB, ceiling: 4 * GiB,
		},
	},
	{Name: "inodes", Usage: "`number` of files there", CeilingUsage: "`number` of files on it", Doc: "Number of files on the scratch disk.",
		scope: wholeSandbox, amount: &amountOf[int]{
			at: func(l *Limits) *int { return &l.Inodes }, unit: &counts, least: minInodes, most: 1 << 28, standard: 64 << 10, ceiling: 1 << 20,
		}},
	{Name: "pids", Usage: "`number` of processes and threads", scope: wholePhase, amount: &amountOf[int]{
		at: func(l *Limits) *int { return &l.Processes }, unit: &counts, least: 1, most: maxProcesses, standard: 100, ceiling: 1000, compile: 500,
	}},
	{Name: "open_files", Usage: "`number` of open files per process", amount: &amountOf[int]{
		at: func(l *Limits) *int { return &l.OpenFiles }, unit: &counts, least: minOpenFiles, most: maxOpenFiles,
		machine: func(m Machine) int { return cmp.Or(m.OpenFiles, maxOpenFiles) }, lowered: " that sandbox-run itself may open",
		standard: 1024, ceiling: 16 << 10, compile: 4096,
	}},
	{
		Name: "output_limit", Usage: "output `size` kept per stream for the result, head and tail", CeilingUsage: "output `size` kept per stream",
		Doc: "Output kept per stream for the result, head and tail.",
		amount: &amountOf[Size]{
			at: func(l *Limits) *Size { return &l.Output }, unit: &sizes, least: 1, most: GiB, why: ", the most that is kept in memory",
			standard: 8 * MiB, ceiling: 64 * MiB,
		},
	},
	{
		Name: "net_rate", Usage: "network traffic per second as a `size`, both directions together (default no limit)",
		CeilingUsage: "network traffic per second as a `size` (default no limit)", scope: wholePhase,
		amount: &amountOf[Size]{at: func(l *Limits) *Size { return &l.NetRate }, unit: &sizes, least: KiB, most: TiB},
	},
	{
		Name: "net_bytes", Usage: "network traffic in all as a `size`, both directions together (default no limit)",
		CeilingUsage: "network traffic in all as a `size` (default no limit)", scope: wholePhase,
		amount: &amountOf[Size]{at: func(l *Limits) *Size { return &l.NetBytes }, unit: &sizes, least: 1, most: 1024 * TiB},
	},
	{
		Name: "net_connections", Usage: "`number` of network connections open at a time (default no limit)",
		CeilingUsage: "`number` of network connections open at a time (default no limit)", scope: wholePhase,
		amount: &amountOf[int]{at: func(l *Limits) *int { return &l.NetConnections }, unit: &counts, least: 1, most: 1 << 16},
	},
}

// Network are the limits of the network.
func (l Limits) Network() network.Limits {
	return network.Limits{Rate: int64(l.NetRate), Bytes: int64(l.NetBytes), Connections: l.NetConnections}
}

// AllLimits is the table of limits. Callers do not change it.
func AllLimits() []*Limit { return limitTable }

// FindLimit is the row of a name, with dashes or underscores; nil for none.
func FindLimit(name string) *Limit {
	name = strings.ReplaceAll(name, "-", "_")
	if i := slices.IndexFunc(limitTable, func(row *Limit) bool { return row.Name == name }); i >= 0 {
		return limitTable[i]
	}
	return nil
}

// amount is what can be done with the value of a limit, whatever its type.
type amount interface {
	// Field points to the value: a *time.Duration, *float64, *Size or *int.
	Field(l *Limits) any
	IsSet(l *Limits) bool
	Equal(a, b *Limits) bool
	// Exceeds reports whether l has more than most allows. Without a value in most everything is allowed.
	Exceeds(l, most *Limits) bool
	Copy(to, from *Limits)
	// Parse reads a value that is more than zero: what flags, settings and keys hold.
	Parse(into *Limits, text string) error
	Text(l *Limits) string  // for people
	Plain(l *Limits) string // exactly, as Parse reads it
	validate(name string, l *Limits, m Machine) error
	clamp(name string, l *Limits, m Machine) (note string)
	fill(l *Limits, p preset)
}

// preset is a column of the table.
type preset int

const (
	presetRun preset = iota
	presetCompile
	presetCeiling
	presetCompileCeiling
)

// unit is how values of a type are read and written.
type unit[T quantity] struct {
	parse       func(string) (T, error)
	text, plain func(T) string
}

var (
	durations = unit[time.Duration]{ParseDuration, time.Duration.String, time.Duration.String}
	cores     = unit[float64]{ParseCores, formatCores, formatCores}
	sizes     = unit[Size]{ParseSize, Size.String, Size.plain}
	counts    = unit[int]{ParseCount, strconv.Itoa, strconv.Itoa}
)

// amountOf is the typed part of a row.
type amountOf[T quantity] struct {
	at   func(*Limits) *T
	unit *unit[T]

	least, most T               // that make sense; most 0: machine alone decides
	machine     func(Machine) T // what the machine has
	why         string          // after the range, in errors
	lowered     string          // after what the machine has, in notes on lowered defaults

	standard, compile       T // defaults of a run and of compiling; 0: none
	ceiling, compileCeiling T // what a server allows unless its operator says otherwise; 0: no less than the machine has
}

func (a *amountOf[T]) Field(l *Limits) any          { return a.at(l) }
func (a *amountOf[T]) IsSet(l *Limits) bool         { return *a.at(l) != 0 }
func (a *amountOf[T]) Equal(l, other *Limits) bool  { return *a.at(l) == *a.at(other) }
func (a *amountOf[T]) Exceeds(l, most *Limits) bool { return a.IsSet(most) && *a.at(l) > *a.at(most) }
func (a *amountOf[T]) Copy(to, from *Limits)        { *a.at(to) = *a.at(from) }
func (a *amountOf[T]) Text(l *Limits) string        { return a.unit.text(*a.at(l)) }
func (a *amountOf[T]) Plain(l *Limits) string       { return a.unit.plain(*a.at(l)) }
func (a *amountOf[T]) fill(l *Limits, p preset) {
	*a.at(l) = [...]T{a.standard, a.compile, a.ceiling, a.compileCeiling}[p]
}

func (a *amountOf[T]) Parse(into *Limits, text string) error {
	v, err := Positive(a.unit.parse)(text)
	if err == nil {
		*a.at(into) = v
	}
	return err
}

// bound is the most that the machine can give.
func (a *amountOf[T]) bound(m Machine) T {
	switch {
	case a.machine == nil:
		return a.most
	case a.most == 0:
		return a.machine(m)
	}
	return min(a.most, a.machine(m))
}

func (a *amountOf[T]) validate(name string, l *Limits, m Machine) error {
	v, most := *a.at(l), a.bound(m)
	if v == 0 || v >= a.least && v <= most { // NaN is neither
		return nil
	}
	return Invalid(name, "%s is outside %s…%s%s", a.unit.text(v), a.unit.text(a.least), a.unit.text(most), a.why)
}

func (a *amountOf[T]) clamp(name string, l *Limits, m Machine) string {
	v, most := a.at(l), a.bound(m)
	if a.machine == nil || *v <= most {
		return ""
	}
	note := fmt.Sprintf("%s: default %s lowered to the %s%s", name, a.unit.text(*v), a.unit.text(most), a.lowered)
	*v = most
	return note
}

func presetLimits(p preset) (l Limits) {
	for _, row := range limitTable {
		row.fill(&l, p)
	}
	return l
}

// DefaultLimits are those of a run that sets none.
func DefaultLimits() Limits { return presetLimits(presetRun) }

// DefaultCompileLimits are those of compiling: all processors, and more memory. OrDefaults lowers them to what the machine has.
func DefaultCompileLimits() Limits { return presetLimits(presetCompile) }

// DefaultCeilings are the most that requests to a server may ask for, for the run and for compiling, unless its operator says otherwise.
func DefaultCeilings() (run, compile Limits) {
	return presetLimits(presetCeiling), presetLimits(presetCompileCeiling)
}

// Machine is what there is to share out.
type Machine struct {
	CPUs      int
	Memory    Size
	OpenFiles int // that this process could have; 0 is not known
}

// ThisMachine is what this process could use at the most.
func ThisMachine() Machine { return thisMachine() }

// Or fills what l leaves open from base.
func (l Limits) Or(base Limits) Limits {
	for _, row := range limitTable {
		if !row.IsSet(&l) {
			row.Copy(&l, &base)
		}
	}
	return l
}

// OrDefaults fills what l leaves open from defaults, lowered to what the machine has, and says which were lowered.
func (l Limits) OrDefaults(defaults Limits, m Machine) (filled Limits, notes []string) {
	for _, row := range limitTable {
		if row.IsSet(&l) {
			continue
		}
		row.Copy(&l, &defaults)
		if note := row.clamp(row.Flag(), &l, m); note != "" {
			notes = append(notes, note)
		}
	}
	return l, notes
}

// Clamp lowers defaults that exceed the machine, and says so.
func (l Limits) Clamp(m Machine) (Limits, []string) { return Limits{}.OrDefaults(l, m) }

// OfProcess is l without what belongs to the sandbox as a whole.
func (l Limits) OfProcess() Limits {
	for _, row := range limitTable {
		if row.scope == wholeSandbox {
			row.Copy(&l, &Limits{})
		}
	}
	return l
}

// Validate refuses limits no machine could honour. Only fields that are set are looked at.
func (l Limits) Validate(m Machine) error { return l.ValidateAs("", m) }

// ValidateAs is Validate for limits whose names have a prefix, such as "max-".
func (l Limits) ValidateAs(prefix string, m Machine) error {
	for _, row := range limitTable {
		if err := row.validate(prefix+row.Flag(), &l, m); err != nil {
			return err
		}
	}
	return nil
}

// document is the field of l in the form that results have: times are seconds.
func (l *Limit) document(all *Limits) any {
	if d, ok := l.Field(all).(*time.Duration); ok {
		return (*monitor.Seconds)(d)
	}
	return l.Field(all)
}

// MarshalJSON writes limits under the names of their flags: seconds and bytes. A limit that is not set is left out if it has no default.
func (l Limits) MarshalJSON() ([]byte, error) {
	defaults := DefaultLimits()
	b := []byte{'{'}
	for _, row := range limitTable {
		if !row.IsSet(&l) && !row.IsSet(&defaults) {
			continue
		}
		value, err := json.Marshal(row.document(&l))
		if err != nil {
			return nil, err
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), row.Name...), '"', ':')
		b = append(b, value...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads what MarshalJSON writes. What is left out stays as it is; a name that is no limit is an error,
// because a limit that is misspelt would not be enforced.
func (l *Limits) UnmarshalJSON(b []byte) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(b, &given); err != nil {
		return Invalid("limits", "%w", err)
	}
	for _, row := range limitTable {
		if value, ok := given[row.Name]; ok {
			if err := json.Unmarshal(value, row.document(l)); err != nil {
				return Invalid("limits", "%s: %w", row.Name, err)
			}
			delete(given, row.Name)
		}
	}
	for name := range given {
		return Invalid("limits", "unknown field %q", name)
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
	return "", Invalid("scratch", "unknown mode %q; use one of auto, disk, memory", s)
}

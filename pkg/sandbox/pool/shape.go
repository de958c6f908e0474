package pool

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// shapeSpec is what pooled sandboxes of a shape are made from: a spec and its processes, without the parts of one request.
type shapeSpec struct {
	key   string
	spec  sandbox.Spec
	ahead []sandbox.Process // processes that wait
	fork  []sandbox.Process // processes that are forked
	forks bool
	names string
	shown []string // files and directories of the host that are part of the shape
	stamp string   // identity of shown when the shape was requested
}

// shapeSpecOf returns the parts of a spec that requests have in common; false when nothing of it can be prepared.
func (p *Pool) shapeSpecOf(spec *sandbox.Spec) (*shapeSpec, bool) {
	publishes := func(process sandbox.Process) bool { return len(process.Network.Publish) > 0 } // ports are the host's from the start on
	if len(spec.Ahead) == 0 || len(spec.Volumes) > 0 || slices.ContainsFunc(spec.Ahead, publishes) {
		return nil, false
	}
	t := &shapeSpec{spec: *spec}
	t.spec.Ahead, t.spec.Env, t.spec.Labels = nil, nil, nil
	clearManagerLimits(&t.spec.Limits)
	var names []string
	for _, process := range spec.Ahead {
		if !warmable(&process) {
			continue
		}
		process.Env = maps.Clone(process.Env)
		process.Args = slices.Clone(waitingArgs(&process))
		process.KillOnOutput = false // the Manager enforces it
		clearManagerLimits(&process.Limits)
		names = append(names, process.Warm.Name)
		if process.Warm.Fork && p.forker != nil && p.forker.Forks(&t.spec, &process) == nil {
			process.MergeOutput = false // see forkedLike
			t.fork = append(t.fork, process)
		} else {
			t.ahead = append(t.ahead, process)
		}
	}
	t.forks = len(t.fork) > 0
	t.names = strings.Join(names, " ")
	if len(names) == 0 {
		t.names = "sandbox" // no process waits in it
	}
	t.key = t.digest(spec.Labels[p.opts.PerTenant], p.opts.PerTenant != "" && t.forks)
	return t, true
}

// clearManagerLimits clears the limits that only the Manager enforces: they are no part of a sandbox.
func clearManagerLimits(l *sandbox.Limits) {
	d := sandbox.DefaultLimits()
	l.Wall, l.CPUTime, l.Output = d.Wall, 0, d.Output
}

// warmable reports whether a process can wait: its directory exists before the program does, and it has pipes.
func warmable(p *sandbox.Process) bool {
	return p.Warm != nil && p.TTY == nil && slices.Contains(sandbox.ScratchDirs(), p.Workdir)
}

// digest identifies the shape. Files of the host are part of it by their identity, not only by their paths.
func (t *shapeSpec) digest(tenant string, perTenant bool) string {
	type process struct {
		sandbox.Process
		Warm  *sandbox.Warm
		Files []string
	}
	var list []process
	for _, p := range slices.Concat(t.ahead, t.fork) {
		w := process{Process: p, Warm: p.Warm}
		for _, f := range p.Warm.Files {
			sum := sha256.Sum256(f.Data)
			w.Files = append(w.Files, f.Path+" "+string(sum[:]))
		}
		list = append(list, w)
	}
	for _, m := range t.spec.Root.Add {
		t.shown = append(t.shown, m.Source)
	}
	if t.spec.Root.Dir != "" {
		t.shown = append(t.shown, t.spec.Root.Dir)
	} else {
		for _, p := range list {
			t.shown = append(t.shown, p.Args[0]) // an upgrade of the interpreter
		}
	}
	t.stamp = stampAll(t.shown)
	stamps := []string{t.stamp}
	if perTenant {
		stamps = append(stamps, "tenant "+tenant)
	}
	text, err := json.Marshal([]any{t.spec, list, stamps})
	if err != nil { // every field has a JSON form
		return ""
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// outdated reports whether a file of the host is another one by now: an interpreter was upgraded, or a layer of packages was removed. No
// request has this shape any more. A sandbox that was made before outdated returned false shows the files of the shape, and keeps them from
// being mistaken for later ones: as long as it has them mounted, their inode numbers are not used again.
func (t *shapeSpec) outdated() bool { return stampAll(t.shown) != t.stamp }

func stampAll(names []string) string {
	var all strings.Builder
	for _, name := range names {
		all.WriteString(strconv.Quote(stamp(name)))
	}
	return all.String()
}

// stamp distinguishes a file from another one of the same name.
func stamp(name string) string {
	st, err := os.Stat(name)
	if err != nil {
		return name
	}
	return identity(st) + " " + strconv.FormatInt(st.ModTime().UnixNano(), 10) + " " + strconv.FormatInt(st.Size(), 10)
}

// waitingArgs is the command of the waiting process.
func waitingArgs(p *sandbox.Process) []string {
	if len(p.Warm.Args) > 0 {
		return p.Warm.Args
	}
	return p.Args
}

// canBecome reports whether a waiting process can become p: everything that a message can not change is equal.
func canBecome(waits, p *sandbox.Process) bool {
	if p.Warm == nil || p.TTY != nil || p.Warm.Name != waits.Warm.Name || p.Warm.Handshake != waits.Warm.Handshake ||
		!maps.Equal(p.Warm.Env, waits.Warm.Env) {
		return false
	}
	limits := p.Limits
	clearManagerLimits(&limits)
	if p.MergeOutput != waits.MergeOutput || limits != waits.Limits || !p.Network.Equal(waits.Network) || p.Workdir != waits.Workdir {
		return false
	}
	if args := waitingArgs(p); len(args) < len(waits.Args) || !slices.Equal(args[:len(waits.Args)], waits.Args) {
		return false
	}
	// A message is JSON, which can not hold arbitrary bytes.
	if !utf8.ValidString(strings.Join(p.Args, "\x00")) {
		return false
	}
	for k, v := range p.Env {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return false
		}
	}
	return true
}

// shape is one kind of sandbox, the demand for it, and what is prepared. Guarded by Pool.mu.
type shape struct {
	key    string
	t      *shapeSpec
	names  string
	forks  bool
	pinned bool // keeps a pooled sandbox without requests

	seen       time.Time // of the latest request
	sightings  int
	fast, slow float64 // requests per second, as a short and as a long average

	ready        []*pooled // oldest first
	filling      int
	zygote       *zygote
	makingZygote bool // a zygote is being made

	takes  time.Duration // average time of a refill
	cpu    time.Duration // average CPU time of a refill
	memory sandbox.Size  // average memory of a pooled sandbox

	failures int
	failed   error
	retry    time.Time // no attempt before

	count shapeCounters
}

// idle reports whether a shape has nothing prepared, and no refill.
func (s *shape) idle() bool {
	return s.filling == 0 && len(s.ready) == 0 && s.zygote == nil && !s.makingZygote
}

// needsZygote reports whether a zygote is to be made: there is none, or it is to be replaced soon.
func (s *shape) needsZygote(now time.Time, o *Options) bool {
	return s.forks && !s.makingZygote && (s.zygote == nil || s.zygote.isSpent(now, o, successor))
}

// Time constants of the two averages of demand.
const (
	shortMemory = 3 * time.Second
	longMemory  = time.Minute
)

// Assumptions about a pooled sandbox before the first refill.
const (
	guessedMemory = 64 * sandbox.MiB
	guessedTime   = 250 * time.Millisecond
	guessedCPU    = 100 * time.Millisecond
)

func decayed(rate float64, since, memory time.Duration) float64 {
	return rate * math.Exp(-since.Seconds()/memory.Seconds())
}

// arrived counts a request.
func (s *shape) arrived(now time.Time) {
	since := max(0, now.Sub(s.seen))
	s.fast = decayed(s.fast, since, shortMemory) + 1/shortMemory.Seconds()
	s.slow = decayed(s.slow, since, longMemory) + 1/longMemory.Seconds()
	s.seen = now
	s.sightings++
}

// rate is the expected number of requests per second.
func (s *shape) rate(now time.Time) float64 {
	since := max(0, now.Sub(s.seen))
	return max(decayed(s.fast, since, shortMemory), decayed(s.slow, since, longMemory))
}

// wants is the number of pooled sandboxes for the demand: as many as are used up during one refill, and a margin.
func (s *shape) wants(now time.Time, o *Options) int {
	if !s.pinned && (s.sightings < 2 || now.Sub(s.seen) > o.Keep) {
		return 0
	}
	used := s.used(now)
	return min(max(1, int(math.Ceil(used+2*math.Sqrt(used)))), o.PerShape)
}

// used is how many pooled sandboxes are used up during one refill.
func (s *shape) used(now time.Time) float64 {
	return s.rate(now) * cmp.Or(s.takes, guessedTime).Seconds()
}

func (s *shape) memoryEach() sandbox.Size { return cmp.Or(s.memory, guessedMemory) }

func (s *shape) cpuEach() time.Duration { return cmp.Or(s.cpu, guessedCPU) }

// updateAverages adds the cost of a refill to the moving averages.
func (s *shape) updateAverages(took, cpu time.Duration, memory sandbox.Size) {
	s.takes = average(s.takes, took)
	s.cpu = average(s.cpu, cpu)
	s.memory = average(s.memory, memory)
}

func average[T time.Duration | sandbox.Size](old, now T) T {
	if old == 0 {
		return now
	}
	return (3*old + now) / 4
}

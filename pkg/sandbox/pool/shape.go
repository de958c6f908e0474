package pool

import (
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

// template is what members of a shape are made from: a spec and its processes, without anything that is one request's own.
type template struct {
	key   string
	spec  sandbox.Spec
	ahead []sandbox.Process // those that wait
	fork  []sandbox.Process // those that are forked
	forks bool
	names string
}

// templateOf says what a spec has in common with others like it; false when nothing of it can be made ready.
func (p *Pool) templateOf(spec *sandbox.Spec) (*template, bool) {
	if len(spec.Ahead) == 0 || len(spec.Volumes) > 0 {
		return nil, false
	}
	t := &template{spec: *spec}
	t.spec.Ahead, t.spec.Env, t.spec.Labels = nil, nil, nil
	impersonal(&t.spec.Limits)
	var names []string
	for _, process := range spec.Ahead {
		if !warmable(&process) {
			continue
		}
		process.Env = maps.Clone(process.Env)
		process.Args = slices.Clone(waitingArgs(&process))
		process.KillOnOutput = false // the Manager's affair
		impersonal(&process.Limits)
		names = append(names, process.Warm.Name)
		if process.Warm.Fork && p.forker != nil && p.forker.Forks(&t.spec, &process) == nil {
			t.fork = append(t.fork, process)
		} else {
			t.ahead = append(t.ahead, process)
		}
	}
	t.forks = len(t.fork) > 0
	t.names = strings.Join(names, " ")
	if len(names) == 0 {
		t.names = "sandbox" // and nothing waits in it
	}
	t.key = t.digest(spec.Labels[p.opts.PerTenant], p.opts.PerTenant != "" && t.forks)
	return t, true
}

// impersonal clears the limits that are kept by the Manager alone: they are no part of a sandbox.
func impersonal(l *sandbox.Limits) {
	d := sandbox.DefaultLimits()
	l.Wall, l.CPUTime, l.Output = d.Wall, 0, d.Output
}

// warmable: its directory is there before the program is, and there are pipes to talk through.
func warmable(p *sandbox.Process) bool {
	return p.Warm != nil && p.TTY == nil && slices.Contains(sandbox.ScratchDirs(), p.Workdir)
}

// digest is the shape's name. What is shown of the host is part of it by what it is, not only by where it is.
func (t *template) digest(tenant string, perTenant bool) string {
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
	var stamps []string
	for _, m := range t.spec.Root.Add {
		stamps = append(stamps, stamp(m.Source))
	}
	if t.spec.Root.Dir != "" {
		stamps = append(stamps, stamp(t.spec.Root.Dir))
	} else {
		for _, p := range list {
			stamps = append(stamps, stamp(p.Args[0])) // an upgrade of the interpreter
		}
	}
	if perTenant {
		stamps = append(stamps, "tenant "+tenant)
	}
	text, err := json.Marshal([]any{t.spec, list, stamps})
	if err != nil { // there is nothing in it that JSON does not have
		return ""
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// stamp tells a file from one that takes its place.
func stamp(name string) string {
	st, err := os.Stat(name)
	if err != nil {
		return name
	}
	return identity(st) + " " + strconv.FormatInt(st.ModTime().UnixNano(), 10) + " " + strconv.FormatInt(st.Size(), 10)
}

// waitingArgs is the command that waits.
func waitingArgs(p *sandbox.Process) []string {
	if len(p.Warm.Args) > 0 {
		return p.Warm.Args
	}
	return p.Args
}

// serves reports whether a process that waits can become p: all that a message can not change is the same.
func serves(waits, p *sandbox.Process) bool {
	if p.Warm == nil || p.TTY != nil || p.Warm.Name != waits.Warm.Name || p.Warm.Handshake != waits.Warm.Handshake || !maps.Equal(p.Warm.Env, waits.Warm.Env) {
		return false
	}
	limits := p.Limits
	impersonal(&limits)
	if limits != waits.Limits || p.Network != waits.Network || p.Workdir != waits.Workdir {
		return false
	}
	if args := waitingArgs(p); len(args) < len(waits.Args) || !slices.Equal(args[:len(waits.Args)], waits.Args) {
		return false
	}
	// A message is JSON, which has text only.
	for _, a := range p.Args {
		if !utf8.ValidString(a) {
			return false
		}
	}
	for k, v := range p.Env {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return false
		}
	}
	return true
}

// shape is one kind of sandbox, the demand for it, and what is ready. Guarded by Pool.mu.
type shape struct {
	key    string
	t      *template
	names  string
	forks  bool
	pinned bool // has a member whether somebody asks or not

	seen       time.Time // the latest request
	sightings  int
	fast, slow float64 // requests a second, by short and by long memory

	ready   []*member // oldest first
	filling int
	zygote  *zygote
	hatches bool // a zygote is being made

	takes  time.Duration // that one takes to make
	cpu    time.Duration // that making one costs
	memory sandbox.Size  // that one takes while it waits

	failures int
	failed   error
	retry    time.Time // no attempt before

	count shapeCounters
}

// idle reports whether there is nothing of a shape, nor will be.
func (s *shape) idle() bool {
	return s.filling == 0 && len(s.ready) == 0 && s.zygote == nil && !s.hatches
}

// lacksZygote reports whether one is to be made: there is none, or not for much longer.
func (s *shape) lacksZygote(now time.Time, o *Options) bool {
	return s.forks && !s.hatches && (s.zygote == nil || s.zygote.spent(now, o, successor))
}

// How long demand is remembered.
const (
	shortMemory = 3 * time.Second
	longMemory  = time.Minute
)

// What is assumed of a member before one was made.
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

// rate is how many requests a second are to be expected.
func (s *shape) rate(now time.Time) float64 {
	since := max(0, now.Sub(s.seen))
	return max(decayed(s.fast, since, shortMemory), decayed(s.slow, since, longMemory))
}

// wants is how many members the demand asks for: as many as are used up while one is made, and what chance adds to that.
func (s *shape) wants(now time.Time, o *Options) int {
	if !s.pinned && (s.sightings < 2 || now.Sub(s.seen) > o.Keep) {
		return 0
	}
	used := s.used(now)
	return min(max(1, int(math.Ceil(used+2*math.Sqrt(used)))), o.PerShape)
}

// used is how many are used up while one is made.
func (s *shape) used(now time.Time) float64 { return s.rate(now) * s.madeIn().Seconds() }

func (s *shape) madeIn() time.Duration {
	if s.takes == 0 {
		return guessedTime
	}
	return s.takes
}

func (s *shape) memoryEach() sandbox.Size {
	if s.memory == 0 {
		return guessedMemory
	}
	return s.memory
}

func (s *shape) cpuEach() time.Duration {
	if s.cpu == 0 {
		return guessedCPU
	}
	return s.cpu
}

// learn keeps a moving average of what members are.
func (s *shape) learn(took, cpu time.Duration, memory sandbox.Size) {
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

package pool

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m, victimBackend)) }

const ready = "ready\n"

// mood is what an interpreter does instead of waiting.
type mood string

const (
	well     mood = ""
	dies     mood = "dies"     // before it is ready
	babbles  mood = "babbles"  // prints something else than the handshake
	hangs    mood = "hangs"    // is never ready
	chats    mood = "chats"    // prints something while it waits
	mutters  mood = "mutters"  // does so on standard error
	collapse mood = "collapse" // dies while it waits
	deaf     mood = "deaf"     // does not read its message
	litters  mood = "litters"  // leaves its driver behind
)

// lab is a fake backend with an interpreter that has a driver: the program that it runs prints its arguments and environment.
type lab struct {
	*conformance.Fake
	mood       atomic.Value // of those that are started
	cold, warm atomic.Int64
	used       atomic.Int64 // milliseconds that a driver uses
	makes      time.Duration
	creates    atomic.Int64
}

func newLab() *lab {
	l := &lab{}
	l.mood.Store(well)
	l.Fake = conformance.NewFake(map[string]conformance.Script{"interpreter": l.interpret, "compiler": l.interpret})
	return l
}

func (l *lab) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	l.creates.Add(1)
	return l.Fake.Create(ctx, spec)
}

func (l *lab) interpret(p *conformance.FakeProcess) sandbox.Exit {
	m := message{Args: p.Args, Env: p.Env, Dir: p.Workdir}
	if p.Env["DRIVER"] == "" {
		l.cold.Add(1)
		return l.program(p, m, 0)
	}
	delete(p.Env, "DRIVER")
	if _, there := p.Files.Load("/tmp/driver"); !there {
		return sandbox.Exit{Code: 9}
	}
	if l.makes > 0 {
		select {
		case <-time.After(l.makes):
		case <-p.Killed:
			return sandbox.Exit{}
		}
	}
	how := l.mood.Load().(mood)
	if how != litters {
		p.Files.Delete("/tmp/driver")
	}
	used := time.Duration(l.used.Load()) * time.Millisecond
	p.Use(monitor.Sample{CPUUser: used, IORead: 100, Memory: 10 << 20})
	switch how {
	case dies:
		return sandbox.Exit{Code: 1}
	case babbles:
		fmt.Fprint(p.Stderr, "Traceback: no\n")
	case hangs:
		<-p.Killed
		return sandbox.Exit{}
	default:
		fmt.Fprint(p.Stderr, ready)
	}
	switch how {
	case chats:
		fmt.Fprint(p.Stdout, "hello?")
	case mutters:
		fmt.Fprint(p.Stderr, "warning\n")
	case collapse:
		time.Sleep(200 * time.Millisecond)
		return sandbox.Exit{Signal: 9}
	case deaf:
		<-p.Killed
		return sandbox.Exit{}
	}
	var size [4]byte
	if _, err := io.ReadFull(p.Stdin, size[:]); err != nil {
		return sandbox.Exit{Code: 1}
	}
	m = message{}
	text := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(p.Stdin, text); err != nil || json.Unmarshal(text, &m) != nil {
		return sandbox.Exit{Code: 1}
	}
	l.warm.Add(1)
	return l.program(p, m, used)
}

// program prints its arguments and environment and copies its input.
func (l *lab) program(p *conformance.FakeProcess, m message, used time.Duration) sandbox.Exit {
	said, _ := json.Marshal(m)
	fmt.Fprintf(p.Stdout, "%s\n", said)
	_, _ = io.Copy(p.Stdout, p.Stdin)
	fmt.Fprintf(p.Stderr, "done\n")
	p.Use(monitor.Sample{CPUUser: used + 7*time.Millisecond, IORead: 150, Memory: 11 << 20})
	return sandbox.Exit{Code: 3}
}

func interpreter(args ...string) sandbox.Process {
	return sandbox.Process{
		Phase: "run", Args: append([]string{"interpreter"}, args...), Env: map[string]string{"HOME": "/home/sandbox"},
		Warm: &sandbox.Warm{Name: "lab", Env: map[string]string{"DRIVER": "1"}, Handshake: ready,
			Files: []sandbox.File{{Path: "/tmp/driver", Data: []byte("x")}}},
	}
}

// warmSpec is a sandbox in which the interpreter will be started.
func warmSpec(memory sandbox.Size, ahead ...sandbox.Process) sandbox.Spec {
	if len(ahead) == 0 {
		ahead = []sandbox.Process{interpreter()}
	}
	return sandbox.Spec{Limits: sandbox.Limits{Memory: memory}, Ahead: ahead}
}

// run creates, runs and deletes, as the executor does.
func run(t testing.TB, m *sandbox.Manager, spec sandbox.Spec, p sandbox.Process, stdin string) *sandbox.Result {
	t.Helper()
	ctx := context.Background()
	id, err := m.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	}()
	res, err := m.Run(ctx, id, p, sandbox.IO{Stdin: strings.NewReader(stdin)})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// warmed returns a pool with a pooled sandbox of a spec.
func warmed(t testing.TB, p *Pool, m *sandbox.Manager, specs ...sandbox.Spec) error {
	t.Helper()
	var complete []*sandbox.Spec
	for _, s := range specs {
		s, err := m.Complete(s)
		if err != nil {
			t.Fatal(err)
		}
		complete = append(complete, &s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return p.Warm(ctx, complete...)
}

func closed(t testing.TB, p *Pool, l *lab) {
	t.Helper()
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := l.Alive(); n > 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// A warm start has the same output as a cold start, and its usage excludes the driver's.
func TestHit(t *testing.T) {
	l := newLab()
	l.used.Store(50)
	p := New(l, Options{})
	defer closed(t, p, l)
	m := sandbox.NewManager(p, sandbox.Options{})
	defer m.Close()
	spec := warmSpec(0)
	if err := warmed(t, p, m, spec); err != nil {
		t.Fatal(err)
	}
	spec.Env = map[string]string{"SECRET": "s", "NAME": "ä\"\\\n"}
	spec.Labels = map[string]string{"a": "b"}
	spec.Limits.Wall = 5 * time.Second
	process := interpreter("a", "-b", "<&>\u2028")
	process.Env["OWN"] = "1"
	stdin := strings.Repeat("input\x00\xff", 20000)
	warm := run(t, m, spec, process, stdin)
	if l.cold.Load() != 0 || l.warm.Load() != 1 {
		t.Fatalf("%d cold, %d warm", l.cold.Load(), l.warm.Load())
	}
	process.Warm = nil
	spec.Ahead = nil
	cold := run(t, m, spec, process, stdin)
	if l.cold.Load() != 1 {
		t.Fatal("not cold")
	}
	if !bytes.Equal(warm.Stdout.Bytes(), cold.Stdout.Bytes()) || !bytes.Equal(warm.Stderr.Bytes(), cold.Stderr.Bytes()) ||
		warm.Exit != cold.Exit || warm.Verdict != cold.Verdict {
		t.Errorf("warm %.300q, cold %.300q", warm.Stdout.Bytes(), cold.Stdout.Bytes())
	}
	if warm.Metrics.CPUTime.Duration() != 7*time.Millisecond || warm.Metrics.IORead != 50 {
		t.Errorf("%+v", warm.Metrics)
	}
	if st := p.Stats(); st.Hits != 1 || st.Warm != 1 || st.Fallbacks != 0 || len(st.Shapes) != 1 || st.Shapes[0].Name != "lab" {
		t.Errorf("%+v", st)
	}
}

// A file of the program in the place of the driver is for a cold start, and a warm one does not see it.
func TestFileForColdStart(t *testing.T) {
	for _, how := range []mood{well, deaf} {
		l := newLab()
		l.mood.Store(how)
		p := New(l, Options{MessageTimeout: 100 * time.Millisecond})
		m := sandbox.NewManager(p, sandbox.Options{})
		spec := warmSpec(0)
		if err := warmed(t, p, m, spec); err != nil {
			t.Fatal(err)
		}
		id, err := m.Create(t.Context(), spec)
		if err == nil {
			err = m.Put(t.Context(), id, []sandbox.File{{Path: "/tmp/driver", Data: []byte("cold")}, {Path: "/tmp/other"}})
		}
		if err == nil {
			_, err = m.Run(t.Context(), id, interpreter(), sandbox.IO{})
		}
		if err != nil {
			t.Fatal(err)
		}
		if cold := l.cold.Load(); cold != map[mood]int64{deaf: 1}[how] {
			t.Errorf("%q: %d cold starts", how, cold)
		}
		var got []string
		_, err = m.Take(t.Context(), id, sandbox.Selection{Patterns: []string{"/tmp/*"}, MaxFiles: 10, MaxBytes: 100},
			func(f sandbox.File, _ sandbox.Size, _ io.Reader) error {
				got = append(got, f.Path)
				return nil
			})
		slices.Sort(got)
		if want := map[mood]string{well: "[/tmp/other]", deaf: "[/tmp/driver /tmp/other]"}[how]; err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, want %s, %v", how, got, want, err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		closed(t, p, l)
	}
}

// A waiting process has its pipes already: it serves only requests that want them as they are.
func TestMergedShape(t *testing.T) {
	l := newLab()
	p := New(l, Options{})
	defer closed(t, p, l)
	m := sandbox.NewManager(p, sandbox.Options{})
	defer m.Close()
	if err := warmed(t, p, m, warmSpec(0)); err != nil {
		t.Fatal(err)
	}
	process := interpreter()
	process.MergeOutput = true
	for _, want := range []string{"cold", "warm"} {
		spec := warmSpec(0, process)
		if want == "warm" {
			if err := warmed(t, p, m, spec); err != nil {
				t.Fatal(err)
			}
		}
		cold := l.cold.Load()
		res := run(t, m, spec, process, "")
		if (l.cold.Load() > cold) != (want == "cold") || !strings.HasSuffix(string(res.Stdout.Bytes()), "done\n") || res.Stderr.Total > 0 {
			t.Errorf("%s: %d cold starts before, %d after, %q, %q", want, cold, l.cold.Load(), res.Stdout.Bytes(), res.Stderr.Bytes())
		}
	}
}

// A pooled sandbox contains nothing of an earlier request (W1).
func TestShapeSpecHasNoRequestData(t *testing.T) {
	p := New(newLab(), Options{})
	defer p.Close()
	spec := warmSpec(0)
	spec.Env, spec.Labels = map[string]string{"SECRET": "hunter2"}, map[string]string{"tenant": "hunter2"}
	spec.Limits.Wall = 17 * time.Second
	m := sandbox.NewManager(p, sandbox.Options{})
	complete, err := m.Complete(spec)
	if err != nil {
		t.Fatal(err)
	}
	tpl, ok := p.shapeSpecOf(&complete)
	if !ok {
		t.Fatal("not warmable")
	}
	text := fmt.Sprintf("%+v", tpl)
	if strings.Contains(text, "hunter2") || strings.Contains(text, "17s") {
		t.Error(text)
	}
	spec.Env, spec.Labels, spec.Limits.Wall, spec.Limits.Output, spec.Limits.CPUTime = nil, nil, time.Second, sandbox.KiB, time.Minute
	other, _ := m.Complete(spec)
	if again, _ := p.shapeSpecOf(&other); again.key != tpl.key {
		t.Error("the shape depends on data of one request")
	}
	for name, change := range map[string]func(*sandbox.Spec){
		"memory":   func(s *sandbox.Spec) { s.Limits.Memory = 99 * sandbox.MiB },
		"network":  func(s *sandbox.Spec) { s.Network = sandbox.NetworkLocalhost },
		"user":     func(s *sandbox.Spec) { s.User = sandbox.User{UID: 1234, GID: 1234} },
		"root":     func(s *sandbox.Spec) { s.Root.Dir = "/srv/image" },
		"hostname": func(s *sandbox.Spec) { s.Hostname = "else" }, "scratch": func(s *sandbox.Spec) { s.Scratch = sandbox.ScratchMemory },
		"writable": func(s *sandbox.Spec) { s.WritableRoot = true }, "require": func(s *sandbox.Spec) { s.Strict = true },
		"argument": func(s *sandbox.Spec) { s.Ahead[0].Args = []string{"interpreter", "-x"} },
		"driver": func(s *sandbox.Spec) {
			w := *s.Ahead[0].Warm
			w.Files = []sandbox.File{{Path: "/tmp/driver", Data: []byte("y")}}
			s.Ahead[0].Warm = &w
		},
		"limits": func(s *sandbox.Spec) { s.Ahead[0].Limits.Processes = 7 },
	} {
		changed := warmSpec(0)
		change(&changed)
		c, err := m.Complete(changed)
		if err != nil {
			t.Fatal(name, err)
		}
		if another, ok := p.shapeSpecOf(&c); !ok || another.key == tpl.key {
			t.Errorf("%s: the same shape", name)
		}
	}
	for name, change := range map[string]func(*sandbox.Spec){
		"volume":    func(s *sandbox.Spec) { s.Volumes = []sandbox.Volume{{Source: "/srv", Target: "/data"}} },
		"terminal":  func(s *sandbox.Spec) { s.Ahead[0].TTY = &sandbox.TTY{Rows: 1, Cols: 1} },
		"directory": func(s *sandbox.Spec) { s.Workdir = "/workspace/sub" },
		"nothing":   func(s *sandbox.Spec) { s.Ahead[0].Warm = nil },
	} {
		changed := warmSpec(0)
		change(&changed)
		c, err := m.Complete(changed)
		if err != nil {
			t.Fatal(name, err)
		}
		if t2, ok := p.shapeSpecOf(&c); ok == (name == "volume") || ok && len(t2.ahead)+len(t2.fork) > 0 {
			t.Errorf("%s: %v, %+v", name, ok, t2)
		}
	}
}

// Whatever is wrong with a pooled sandbox, the request is served (W5).
func TestFallback(t *testing.T) {
	for _, how := range []mood{dies, babbles, hangs, chats, mutters, collapse, deaf, litters} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			l := newLab()
			l.mood.Store(how)
			o := Options{MessageTimeout: 100 * time.Millisecond}
			if how == hangs { // the others are as good as at once ready, or never
				o.ReadyTimeout = time.Second
			}
			p := New(l, o)
			defer closed(t, p, l)
			m := sandbox.NewManager(p, sandbox.Options{})
			defer m.Close()
			err := warmed(t, p, m, warmSpec(0))
			switch how {
			case collapse:
				time.Sleep(400 * time.Millisecond)
			case deaf:
				if err != nil {
					t.Fatal(err)
				}
			case dies, babbles, hangs, litters:
				if err == nil {
					t.Error("OnFailure was not called")
				}
			}
			for range 3 {
				res := run(t, m, warmSpec(0), interpreter("x"), "in")
				if res.Exit.Code != 3 || !strings.HasSuffix(string(res.Stdout.Bytes()), "\nin") || string(res.Stderr.Bytes()) != "done\n" {
					t.Errorf("%+v %q %q", res.Exit, res.Stdout.Bytes(), res.Stderr.Bytes())
				}
			}
			if l.warm.Load() != 0 || l.cold.Load() != 3 {
				t.Errorf("%d warm, %d cold", l.warm.Load(), l.cold.Load())
			}
			if st := p.Stats(); how == deaf && st.Fallbacks == 0 {
				t.Errorf("%+v", st)
			}
			// When new processes work again, so does the pool.
			l.mood.Store(well)
			for end := time.Now().Add(time.Minute); l.warm.Load() == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				run(t, m, warmSpec(0), interpreter("x"), "in")
			}
			if l.warm.Load() == 0 {
				t.Error("it never recovers")
			}
		})
	}
}

// A process other than the announced one starts cold, and no other process is in its phase.
func TestMismatch(t *testing.T) {
	for name, change := range map[string]func(*sandbox.Process){
		"another interpreter": func(p *sandbox.Process) { p.Args = []string{"compiler", "x"} },
		"fewer arguments":     func(p *sandbox.Process) { p.Args = p.Args[:1] },
		"limits":              func(p *sandbox.Process) { p.Limits.Memory = 99 * sandbox.MiB },
		"no longer warm":      func(p *sandbox.Process) { p.Warm = nil },
		"not text":            func(p *sandbox.Process) { p.Args = append(p.Args, "\xff") },
		"not text in env":     func(p *sandbox.Process) { p.Env["X"] = "\xff" },
		"directory":           func(p *sandbox.Process) { p.Workdir = "/tmp" },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab()
			p := New(l, Options{})
			defer closed(t, p, l)
			m := sandbox.NewManager(p, sandbox.Options{})
			defer m.Close()
			spec := warmSpec(0, interpreter("fixed"))
			if err := warmed(t, p, m, spec); err != nil {
				t.Fatal(err)
			}
			process := interpreter("fixed", "more")
			change(&process)
			if res := run(t, m, spec, process, "in"); res.Exit.Code != 3 || l.cold.Load() != 1 || l.warm.Load() != 0 {
				t.Errorf("%+v, %d cold, %d warm", res.Exit, l.cold.Load(), l.warm.Load())
			}
		})
	}
}

// Several phases wait in one sandbox; an unused one ends with the sandbox.
func TestPhases(t *testing.T) {
	l := newLab()
	p := New(l, Options{})
	defer closed(t, p, l)
	m := sandbox.NewManager(p, sandbox.Options{})
	defer m.Close()
	compiler := interpreter()
	compiler.Phase, compiler.Args[0] = "compile", "compiler"
	compiler.Warm.Files = nil
	spec := warmSpec(0, interpreter(), compiler)
	if err := warmed(t, p, m, spec); err == nil {
		t.Fatal("the second driver has no file, and was ready all the same")
	}
	compiler.Warm.Files = []sandbox.File{{Path: "/tmp/driver", Data: []byte("x")}} // the first one's, too
	_ = spec
	ctx := context.Background()
	good := newLab()
	p2 := New(good, Options{})
	defer closed(t, p2, good)
	m2 := sandbox.NewManager(p2, sandbox.Options{})
	defer m2.Close()
	plain := interpreter()
	plain.Phase, plain.Args[0] = "compile", "compiler"
	plain.Warm = nil
	spec = warmSpec(0, plain, interpreter())
	if err := warmed(t, p2, m2, spec); err != nil {
		t.Fatal(err)
	}
	id, err := m2.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range []sandbox.Process{plain, interpreter("x")} {
		if res, err := m2.Run(ctx, id, process, sandbox.IO{}); err != nil || res.Exit.Code != 3 {
			t.Errorf("%+v %v", res, err)
		}
	}
	if good.warm.Load() != 1 || good.cold.Load() != 1 {
		t.Errorf("%d warm, %d cold", good.warm.Load(), good.cold.Load())
	}
	if err := m2.Delete(ctx, id); err != nil {
		t.Error(err)
	}
	// Handed out, and never used.
	if id, err = m2.Create(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if err := m2.Delete(ctx, id); err != nil {
		t.Error(err)
	}
}

// Files go through; so does freezing.
func TestFiles(t *testing.T) {
	l := newLab()
	p := New(l, Options{})
	defer closed(t, p, l)
	m := sandbox.NewManager(p, sandbox.Options{})
	defer m.Close()
	if err := warmed(t, p, m, warmSpec(0)); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	id, err := m.Create(ctx, warmSpec(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Put(ctx, id, []sandbox.File{{Path: "/workspace/a", Data: []byte("text")}}); err != nil {
		t.Error(err)
	}
	var got []string
	_, err = m.Take(ctx, id, sandbox.Selection{Patterns: []string{"/workspace/**", "/tmp/**"}},
		func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
			text, err := io.ReadAll(r)
			got = append(got, f.Path+" "+string(text))
			return err
		})
	if err != nil || !slices.Equal(got, []string{"/workspace/a text"}) {
		t.Errorf("%q %v", got, err)
	}
	if err := m.Delete(ctx, id); err != nil {
		t.Error(err)
	}
	if st := p.Stats(); st.Hits != 1 {
		t.Errorf("%+v", st)
	}
}

// Sandboxes that can not be pooled are unchanged.
func TestConforms(t *testing.T) {
	f := conformance.NewFake(nil)
	conformance.Run(t, func(*testing.T) sandbox.Backend { return New(f, Options{}) },
		conformance.Expectations{Tier: sandbox.TierContainer, Probe: "probe", Has: []conformance.Expectation{conformance.Files}})
}

// Many requests at once, on a pool whose sandboxes are often unhealthy: every request is served, and nothing is left.
func TestCrowd(t *testing.T) {
	l := newLab()
	p := New(l, Options{ReadyTimeout: time.Second, MessageTimeout: time.Second, Parallel: 4, MaxAge: 500 * time.Millisecond, Sandboxes: 5})
	defer closed(t, p, l)
	m := sandbox.NewManager(p, sandbox.Options{})
	defer m.Close()
	moods := []mood{well, well, well, chats, dies, well, well, deaf, well, well, mutters, well, hangs}
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for n := range 40 {
				l.mood.Store(moods[(worker+n)%len(moods)])
				spec := warmSpec(sandbox.Size(64+n%3) * sandbox.MiB)
				if res := run(t, m, spec, interpreter("x"), "in"); res.Exit.Code != 3 {
					t.Errorf("%+v %q", res.Exit, res.Stderr.Bytes())
				}
				_ = p.Stats()
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	all.Wait()
	t.Logf("%d warm, %d cold, %+v", l.warm.Load(), l.cold.Load(), p.Stats())
	if l.warm.Load()+l.cold.Load() != 8*40 {
		t.Error("some ran twice, or never")
	}
	// Once sandboxes are healthy again, the pool hands them out again.
	l.mood.Store(well)
	before, spec := l.warm.Load(), warmSpec(64*sandbox.MiB)
	for end := time.Now().Add(30 * time.Second); l.warm.Load() == before; time.Sleep(50 * time.Millisecond) {
		if run(t, m, spec, interpreter("x"), "in"); time.Now().After(end) {
			t.Fatalf("no warm start any more: %+v", p.Stats())
		}
	}
}

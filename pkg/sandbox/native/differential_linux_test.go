package native

import (
	"context"
	"embed"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/driver"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// warmed is a backend whose Python programs are always forks: a process that can not be forked fails.
type warmed struct {
	*Backend
	zygote func(*sandbox.Spec, *sandbox.Process) (sandbox.Zygote, error)
}

func (w *warmed) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	in, err := w.Backend.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &warmedInstance{in.(*instance), w, spec}, nil
}

type warmedInstance struct {
	*instance
	w    *warmed
	spec *sandbox.Spec
}

func (i *warmedInstance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if p.Warm == nil {
		return i.instance.Start(ctx, p)
	}
	z, err := i.w.zygote(i.spec, p)
	if err != nil {
		return nil, err
	}
	return z.Start(ctx, i.instance, p)
}

// program is one program of the corpus.
type program struct {
	archive, name      string
	source, stdin, dir string
	args               []string
	env                map[string]string
}

//go:embed testdata/warm/programs/*.txtar
var corpus embed.FS

// programs reads the corpus: the source of each program, with its arguments and input beside it.
func programs(t testing.TB, which func(archive string) bool) (all []program) {
	t.Helper()
	archives, err := corpus.ReadDir("testdata/warm/programs")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range archives {
		if !which(a.Name()) {
			continue
		}
		text, err := corpus.ReadFile("testdata/warm/programs/" + a.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range txtar.Parse(text).Files {
			data := string(f.Data)
			if name, ok := strings.CutSuffix(f.Name, ".py"); ok {
				if slices.ContainsFunc(all, func(p program) bool { return p.name == name }) {
					t.Fatalf("%s is there twice", name)
				}
				all = append(all, program{archive: a.Name(), name: name, source: data, env: map[string]string{}})
				continue
			}
			p := &all[len(all)-1]
			lines := strings.Split(strings.TrimSuffix(data, "\n"), "\n")
			switch of := strings.TrimPrefix(f.Name, p.name); of {
			case ".stdin":
				p.stdin = data
			case ".args":
				p.args = lines
			case ".dir":
				p.dir = strings.TrimSpace(data)
			case ".env":
				for _, l := range lines {
					k, v, _ := strings.Cut(l, "=")
					p.env[k] = v
				}
			default:
				t.Fatalf("%s in %s belongs to no program", f.Name, a.Name())
			}
		}
	}
	return all
}

// seen is the part of a run that a cold start and a fork must have in common.
type seen struct {
	Verdict        sandbox.Verdict
	Exit           sandbox.Exit
	Stdout, Stderr string
	Violations     []sandbox.Violation
}

func observe(t *testing.T, m *sandbox.Manager, p program, warm *sandbox.Warm) seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	limits := sandbox.Limits{Wall: 8 * time.Minute, Memory: 256 * sandbox.MiB, Disk: 48 * sandbox.MiB, Processes: 40}
	if p.name == "time-limit" {
		limits.Wall = 3 * time.Second
	}
	id, err := m.Create(ctx, sandbox.Spec{
		Limits: limits, Env: map[string]string{"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": driver.Dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
	}()
	files := []sandbox.File{{Path: "/workspace/main.py", Mode: 0o644, Data: []byte(p.source)}}
	if warm == nil {
		files = append(files, driver.LineBuffering())
	}
	if err := m.Put(ctx, id, files); err != nil {
		t.Fatal(err)
	}
	res, err := m.Run(ctx, id, sandbox.Process{
		Args: append([]string{pythonPath, "/workspace/main.py"}, p.args...), Env: p.env, Workdir: p.dir, Warm: warm,
	}, sandbox.IO{Stdin: strings.NewReader(p.stdin)})
	if err != nil {
		t.Fatal(err)
	}
	// Addresses differ between runs; so does, on a busy machine, the message about a font cache.
	same := func(o sandbox.Output) string {
		return addresses.ReplaceAllString(strings.Replace(string(o.Bytes()),
			"Matplotlib is building the font cache; this may take a moment.\n", "", 1), "0xSOMEWHERE")
	}
	return seen{res.Verdict, res.Exit, same(res.Stdout), same(res.Stderr), res.Violations}
}

var addresses = regexp.MustCompile(`0x[0-9a-f]{8,16}\b`)

// Every program behaves as a fork as it does after a cold start. make test runs every seventh of the corpus, and every
// fourth of those about garbage and endings, which forks handle differently.
func TestForkDifferential(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	all := programs(t, func(archive string) bool { return archive != dataPrograms })
	if len(all) < 200 {
		t.Errorf("the corpus has %d programs", len(all))
	}
	if !testenv.All() {
		n := -1
		all = slices.DeleteFunc(all, func(p program) bool {
			n++
			every := 7
			if p.archive == garbagePrograms || p.archive == lastPrograms {
				every = 4
			}
			return n%every != 0
		})
	}
	watches := func(p program) bool {
		return strings.Contains(p.source, "import gc") || driver.Watches([]byte(p.source), nil)
	}
	differential(t, b, slices.DeleteFunc(slices.Clone(all), watches), driver.Python("python"))
	differential(t, b, slices.DeleteFunc(all, func(p program) bool { return !watches(p) }), driver.Watched(driver.Python("python")))
}

// Forks end without finalizing the library. Only a program that changes the finalizers of the library's own objects can
// detect that: this test uses such a program.
func TestForkEndsEarly(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	const tells = "import os\ntype(os.environ).__del__ = lambda self, write=os.write: write(1, b'gone')\nprint('end')\n"
	for name, test := range map[string]struct {
		preload []string
		source  string
	}{
		"little": {nil, ""},
		"much": {nil, "import argparse, collections, csv, dataclasses, datetime, decimal, functools, hashlib, itertools, json, " +
			"logging, math, random, re, statistics, string, typing\n" +
			"logging.basicConfig()\n@dataclasses.dataclass\nclass C:\n  n: int\nkept = {n: C(n) for n in range(1000)}\nmemo = " +
			"functools.lru_cache(None)(lambda n: n)\nmemo(1)\nisinstance([], collections.abc.Sized)\n"},
		"tables": {driver.Pandas(), "import numpy as np, pandas as pd\nframe = pd.DataFrame({'a': np.arange(10), 'b': " +
			"list('abcdefghij')})\nframe.groupby('b').sum().to_csv()\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command(pythonPath, "-c", "import "+strings.Join(append(test.preload, "os"), ", ")).CombinedOutput(); err != nil {
				t.Skipf("%s: %s", pythonPath, out)
			}
			warm := driver.Python("python", test.preload...)
			process := warmProcess()
			process.Warm = warm
			z := newZygote(t, b, warmSpec(), process)
			m := sandbox.NewManager(&warmed{b, func(*sandbox.Spec, *sandbox.Process) (sandbox.Zygote, error) { return z, nil }}, sandbox.Options{})
			p := program{name: name, source: test.source + tells}
			if cold := observe(t, m, p, nil); !strings.HasPrefix(cold.Stdout, "end\ngone") {
				t.Errorf("after a cold start: %+v", cold)
			}
			if fork := observe(t, m, p, warm); fork.Stdout != "end\n" || fork.Exit != (sandbox.Exit{}) {
				t.Errorf("as a fork: %+v", fork)
			}
		})
	}
}

// garbagePrograms test the garbage collector, half of whose work forks skip.
const garbagePrograms = "garbage.txtar"

// lastPrograms test the end of programs, which forks do differently where a program can not detect it.
const lastPrograms = "last.txtar"

// dataPrograms import modules of another preload set.
const dataPrograms = "data.txtar"

func TestForkDifferentialData(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	all := programs(t, func(archive string) bool { return archive == dataPrograms })
	modules := driver.Matplotlib()
	if out, err := exec.Command(pythonPath, "-c", "import "+strings.Join(modules, ", ")).CombinedOutput(); err != nil {
		t.Skipf("%s lacks python3-pandas or python3-matplotlib: %s", pythonPath, out)
	}
	if !testenv.All() {
		all = slices.DeleteFunc(all, func(p program) bool { return !slices.Contains([]string{"numpy-blas", "pandas", "matplotlib"}, p.name) })
	}
	differential(t, b, all, driver.Python("python+matplotlib", modules...))
}

func differential(t *testing.T, b *Backend, all []program, warm *sandbox.Warm) {
	t.Helper()
	var z sandbox.Zygote
	cold := sandbox.NewManager(b, sandbox.Options{})
	forks := sandbox.NewManager(&warmed{b, func(*sandbox.Spec, *sandbox.Process) (sandbox.Zygote, error) { return z, nil }}, sandbox.Options{})
	p := warmProcess()
	p.Warm = warm
	z = newZygote(t, b, warmSpec(), p)
	t.Run("programs", func(t *testing.T) {
		for _, p := range all {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				want := observe(t, cold, p, nil)
				got := observe(t, forks, p, warm)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("after a cold start (-), as a fork (+):\n%s", diff)
				}
			})
		}
	})
	select {
	case <-z.Done():
		t.Error("the zygote did not survive its forks")
	default:
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// hello is a program that prints one number, in one language, with its bar.
type hello struct {
	language string
	file     string
	text     string // %d is the number
	compiled bool   // the reference compiles, too
	table    bool   // prints the number in a table
	excess   float64
	ratio    float64
	cached   float64 // bar of the ratio if the source is unchanged
	deps     []string
}

var hellos = []hello{
	{language: "python", file: "main.py", text: "print(%d)\n", excess: 15},
	{language: "javascript", file: "main.js", text: "console.log(%d)\n", excess: 15},
	{language: "shell", file: "main.sh", text: "echo %d\n", excess: 15},
	{language: "typescript", file: "main.ts", text: "const n: number = %d;\nconsole.log(n);\n", excess: 15},
	{language: "go", file: "main.go", text: "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(%d) }\n", compiled: true,
		ratio: 1.15, cached: 0.5},
	{language: "rust", file: "main.rs", text: "fn main() { println!(\"{}\", %d); }\n", compiled: true, ratio: 1.15, cached: 0.5},
	{language: "java", file: "Main.java", text: "public class Main { public static void main(String[] a) { System.out.println(%d); } }\n",
		compiled: true, ratio: 1.15, cached: 0.5},
}

// languages compares whole commands, from code to result, with the same programs and flags without a sandbox. Both sides may use both
// processors.
func (s *environment) languages(ctx context.Context) ([]bench.Row, error) {
	var rows []bench.Row
	for _, h := range hellos {
		more, err := s.hello(ctx, h)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.language, err)
		}
		rows = append(rows, more...)
	}
	row, err := s.printing(ctx)
	return append(rows, row), err
}

// printing compares many lines of a program with those of the same interpreter with line buffering and without a sandbox. This process
// reads both.
func (s *environment) printing(ctx context.Context) (row bench.Row, err error) {
	dir, err := os.MkdirTemp("", "sandbox-run-bench-")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), dir)) }()
	const lines = "for i in range(200000):\n    print(i, %d)\n"
	b := bare{environment: s, hello: hello{file: "main.py", text: lines}, dir: dir}
	if err := b.prepare(ctx); err != nil {
		return row, err
	}
	read := func(name string, args ...string) (bench.Sample, error) {
		return timed(func() error {
			cmd := exec.CommandContext(ctx, name, args...)
			cmd.Stdout = struct{ io.Writer }{io.Discard} // a pipe
			return cmd.Run()
		}, nil)
	}
	python := b.steps[b.first].path
	ours, ref, err := bench.Pairs(ctx, min(1, s.warmup), s.probes, func(_ context.Context, number int) (bench.Sample, error) {
		if err := b.write("ours", number); err != nil {
			return bench.Sample{}, err
		}
		return read(b.cli, "--cpus", "2", "--quiet", b.source("ours"))
	}, func(_ context.Context, number int) (bench.Sample, error) {
		return read(python, "-c", "import sys\nsys.stdout.reconfigure(line_buffering=True)\n"+fmt.Sprintf(lines, number))
	})
	if err != nil {
		return row, err
	}
	row = bench.Compare("python, 200,000 lines into a pipe, the whole command", "bare", ours, ref, 1.3)
	row.Note = "bare: " + python + " with line buffering"
	return row, nil
}

func (s *environment) hello(ctx context.Context, h hello) (rows []bench.Row, err error) {
	dir, err := os.MkdirTemp("", "sandbox-run-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), dir)) }()
	b := bare{environment: s, hello: h, dir: dir, base: int(time.Now().Unix()%2e6) * 1000} // of 31 bits
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	pairs := s.probes
	ours := func(ctx context.Context, number int) (bench.Sample, error) {
		if err := b.write("ours", number); err != nil {
			return bench.Sample{}, err
		}
		return b.command()
	}
	cold, ref, err := bench.Pairs(ctx, min(3, s.warmup), pairs, ours, b.sample)
	if err != nil {
		return nil, err
	}
	row := bench.Compare(fmt.Sprintf("%s hello, the whole command, source changed each time", h.language), "bare", cold, ref, h.ratio)
	if h.excess > 0 {
		row.Bar = &bench.Bar{Limit: h.excess, OfExcess: true}
	}
	row.Note = "bare: " + b.String()
	rows = append(rows, row)
	if h.cached == 0 {
		return rows, nil
	}
	again := func(context.Context, int) (bench.Sample, error) { return b.command() }
	warm, ref, err := bench.Pairs(ctx, min(3, s.warmup), pairs, again, b.sample)
	if err != nil {
		return nil, err
	}
	row = bench.Compare(fmt.Sprintf("%s hello, the whole command, source unchanged", h.language), "bare", warm, ref, h.cached)
	row.Note = "the source of the reference changes, as above"
	return append(rows, row), nil
}

// bare runs the commands of a plan without a sandbox: the same programs, arguments and variables, with paths of the host.
type bare struct {
	*environment
	hello
	dir   string
	env   []string // of the command that makes the plan, in addition to this process's own
	steps []step
	first int // the first step whose time counts
	// base is the first number. Compiled programs are cached across benchmarks: no two may use the same numbers.
	base int
}

type step struct {
	path string
	args []string
	env  []string
	dir  string
}

// source returns the program's file on one of the two sides, "ours" or "workspace".
func (b *bare) source(side string) string { return filepath.Join(b.dir, side, b.file) }

func (b *bare) write(side string, number int) error {
	return os.WriteFile(b.source(side), fmt.Appendf(nil, b.text, b.base+number), 0o644)
}

// prepare reads the command's plan and replaces its paths by paths of the host.
func (b *bare) prepare(ctx context.Context) error {
	for _, d := range []string{"ours", "workspace", "build", "home"} {
		if err := os.Mkdir(filepath.Join(b.dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := b.write("ours", 0); err != nil {
		return err
	}
	// The first run makes the prepared files of the toolchain.
	first := exec.CommandContext(ctx, b.cli, b.source("ours"))
	first.Env = append(os.Environ(), b.env...)
	if out, err := first.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	dry := exec.CommandContext(ctx, b.cli, "--dry-run", "--json", "--cpus", "2", b.source("ours"))
	dry.Env = first.Env
	text, err := dry.Output()
	if err != nil {
		return fmt.Errorf("the plan: %w", err)
	}
	var plan struct {
		Sandbox sandbox.Spec `json:"sandbox"`
		Phases  []struct {
			Process sandbox.Process `json:"process"`
		} `json:"phases"`
	}
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("the plan: %w", err)
	}
	places := []string{
		sandbox.WorkspaceDir, filepath.Join(b.dir, "workspace"), sandbox.TmpDir + "/build", filepath.Join(b.dir, "build"),
		sandbox.HomeDir, filepath.Join(b.dir, "home"),
	}
	for _, m := range plan.Sandbox.Root.Add {
		// The reference writes to directories that are read-only inside, so it gets copies of its own.
		if strings.HasSuffix(m.Target, "/go-build") {
			own := filepath.Join(b.dir, "go-build")
			if err := os.CopyFS(own, os.DirFS(m.Source)); err != nil {
				return err
			}
			m.Source = own
		}
		places = append(places, m.Target, m.Source)
	}
	onHost := strings.NewReplacer(places...).Replace
	for _, p := range plan.Phases {
		st := step{dir: filepath.Join(b.dir, "workspace")}
		for _, a := range p.Process.Args {
			st.args = append(st.args, onHost(a))
		}
		env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": filepath.Join(b.dir, "home"),
			"LANG": "C.UTF-8"}
		maps.Copy(env, plan.Sandbox.Env)
		maps.Copy(env, p.Process.Env)
		for _, k := range slices.Sorted(maps.Keys(env)) {
			st.env = append(st.env, k+"="+onHost(env[k]))
		}
		st.path = st.args[0] // an earlier step makes it
		if !strings.Contains(st.path, "/") {
			if st.path, err = exec.LookPath(st.path); err != nil {
				return err
			}
		}
		b.steps = append(b.steps, st)
	}
	if !b.compiled {
		b.first = len(b.steps) - 1
	}
	return nil
}

// String returns the command as in a shell.
func (b *bare) String() string {
	var steps []string
	for _, st := range b.steps[b.first:] {
		steps = append(steps, strings.Join(st.args, " "))
	}
	text := strings.ReplaceAll(strings.Join(steps, " && "), b.dir+"/", "")
	if home, err := os.UserHomeDir(); err == nil {
		text = strings.ReplaceAll(text, home+"/", "~/")
	}
	return text
}

// command runs sandbox-run in the user's own environment, through which it finds toolchains.
func (b *bare) command() (bench.Sample, error) {
	args := []string{"sandbox-run", "--cpus", "2", "--quiet", b.source("ours")}
	return timed(func() error { return b.do(step{path: b.cli, args: args, env: os.Environ()}) }, nil)
}

func (b *bare) sample(_ context.Context, number int) (bench.Sample, error) {
	if err := b.write("workspace", number); err != nil {
		return bench.Sample{}, err
	}
	for _, st := range b.steps[:b.first] {
		if err := b.do(st); err != nil {
			return bench.Sample{}, err
		}
	}
	return timed(func() error {
		for _, st := range b.steps[b.first:] {
			if err := b.do(st); err != nil {
				return err
			}
		}
		return nil
	}, nil)
}

func (s *environment) do(st step) error {
	pid, err := syscall.ForkExec(st.path, st.args, &syscall.ProcAttr{Dir: st.dir, Env: st.env,
		Files: []uintptr{s.null.Fd(), s.null.Fd(), s.null.Fd()}})
	if err != nil {
		return fmt.Errorf("%s: %w", st.path, err)
	}
	return (&program{path: st.path, args: st.args}).await(pid)
}

// audit measures a line in the audit log at the end of a run: open, lock, write and close.
func (s *environment) audit(context.Context) ([]bench.Row, error) {
	entry := audit.Entry{
		Who: audit.Me(audit.EntryCLI), Language: "python", Version: "3.11.7", CodeSHA256: audit.Digest([]byte("print(1)")),
		Verdict: sandbox.VerdictOK, Metrics: &monitor.Metrics{},
	}
	var took []float64
	for range s.pairs {
		began := time.Now()
		log, err := audit.Open(filepath.Join(s.cache, "audit", "audit.jsonl"), audit.Options{})
		if err == nil {
			err = log.Append(entry)
		}
		if err != nil {
			return nil, err
		}
		took = append(took, bench.Milliseconds(time.Since(began)))
		time.Sleep(pause)
	}
	return []bench.Row{{Name: "a line in the audit log", Unit: "ms", Ours: bench.SummarizeValues(took), Bar: &bench.Bar{Limit: 0.3}}}, nil
}

package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
)

// sum is a cell of a language, and the most milliseconds that it may take; 0: no bar.
type sum struct {
	language, code, want string
	most                 float64
}

var sums = []sum{
	{"python", "1+1", "2", 2}, {"javascript", "1+1", "2", 2}, {"typescript", "1+1", "2", 0}, {"shell", "echo $((1+1))", "2", 5},
	{"sql", "SELECT 1+1;", "2", 5}, {"postgres", "SELECT 1+1;", "2", 5}, {"java", "1+1", "2", 30}, {"go", `println(1+1)`, "2", 0},
	{"rust", `println!("{}", 1+1);`, "2", 0},
}

// starts are the most milliseconds of a warm start of a session.
var starts = map[string]float64{"python": 10, "javascript": 10, "java": 100}

// crowded is how many sessions live at once.
const crowded = 100

// sessions measures sessions over the unix socket of a server. The reference is Debian's ipykernel, where it is installed.
func (s *environment) sessions(ctx context.Context) (rows []bench.Row, err error) {
	v, err := s.serve(ctx, "--warm", "python,javascript,java")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	kernel, err := startKernel(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, kernel.close()) }()
	for _, l := range sums {
		own, err := v.languageRows(ctx, s, &l, kernel)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.language, err)
		}
		rows = append(rows, own...)
	}
	interrupt, err := v.interrupts(ctx, s)
	if err != nil {
		return nil, err
	}
	fork, err := v.forks(ctx, s)
	if err != nil {
		return nil, err
	}
	memory, err := v.crowd(ctx, s)
	return append(rows, interrupt, fork, memory), err
}

// call sends a request about sessions and reads the answer.
func (v *server) call(ctx context.Context, method, path string, body, into any) (status int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost/v1/sessions"+path, bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := v.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer got.Body.Close()
	text, err = io.ReadAll(got.Body)
	if err != nil || got.StatusCode >= http.StatusMultipleChoices {
		return got.StatusCode, errors.Join(err, fmt.Errorf("%s %s: %s: %s", method, path, got.Status, text))
	}
	if into != nil {
		err = json.Unmarshal(text, into)
	}
	return got.StatusCode, err
}

// create makes a session.
func (v *server) create(ctx context.Context, language string) (id string, status int, err error) {
	var info struct{ ID string }
	status, err = v.call(ctx, http.MethodPost, "", map[string]any{"language": language}, &info)
	return info.ID, status, err
}

func (v *server) end(ctx context.Context, id string) error {
	_, err := v.call(ctx, http.MethodDelete, "/"+id, nil, nil)
	return err
}

// cell executes a cell, and checks what it shows.
func (v *server) cell(ctx context.Context, id string, l *sum) error {
	var r struct{ Verdict, Value, Stdout, Stderr string }
	if _, err := v.call(ctx, http.MethodPost, "/"+id+"/cells", map[string]any{"code": l.code}, &r); err != nil {
		return err
	}
	if r.Verdict != "ok" || !strings.Contains(r.Value+r.Stdout+r.Stderr, l.want) {
		return fmt.Errorf("%s: %+v", l.code, r)
	}
	return nil
}

// languageRows measures cells and warm starts of a language. A language without sessions here has no rows.
func (v *server) languageRows(ctx context.Context, s *environment, l *sum, kernel *kernel) (rows []bench.Row, err error) {
	id, status, err := v.create(ctx, l.language)
	if status == http.StatusNotImplemented || status == http.StatusUnprocessableEntity {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ours := func(context.Context, int) (bench.Sample, error) {
		return wall(func() error { return v.cell(ctx, id, l) })
	}
	start := func(context.Context, int) (sample bench.Sample, err error) {
		time.Sleep(stockTime(l.language)) // of the stock: what is measured is a warm start
		var own string
		sample, err = wall(func() error {
			own, _, err = v.create(ctx, l.language)
			return err
		})
		return sample, errors.Join(err, v.end(ctx, own))
	}
	one, first := "1+1 in a session of "+l.language, "warm start of a session of "+l.language
	count := s.pairs
	if l.most == 0 || l.most > 10 {
		count = min(count, 60)
	}
	if l.language == "python" && kernel != nil {
		cells, err := kernel.compare(ctx, s, one, "cell", count, ours, 0.5)
		if err != nil {
			return nil, err
		}
		begun, err := kernel.compare(ctx, s, first, "start", min(s.probes, 10), start, 0.05)
		if err != nil {
			return nil, err
		}
		rows = append(rows, cells, begun)
	}
	samples, err := bench.Series(ctx, s.warmup, count, ours)
	if err != nil {
		return nil, err
	}
	rows = append(rows, bench.Row{Name: one, Unit: "ms", Ours: bench.Summarize(samples), Bar: atMost(l.most)})
	if most := starts[l.language]; most > 0 {
		if samples, err = bench.Series(ctx, min(s.warmup, 2), min(s.probes, 20), start); err != nil {
			return nil, err
		}
		rows = append(rows, bench.Row{Name: first, Unit: "ms", Ours: bench.Summarize(samples), Bar: atMost(most)})
	}
	return rows, v.end(ctx, id)
}

// stockTime is how long the server has to start the next session of a language.
func stockTime(language string) time.Duration {
	if language == "java" {
		return 3 * time.Second
	}
	return 500 * time.Millisecond
}

func atMost(limit float64) *bench.Bar {
	if limit == 0 {
		return nil
	}
	return &bench.Bar{Limit: limit}
}

// wall measures the time alone: the work is done by another process.
func wall(do func() error) (bench.Sample, error) {
	began := time.Now()
	err := do()
	return bench.Sample{Wall: time.Since(began)}, err
}

// interrupts measures the time from an interrupt of a loop to the result of its cell.
func (v *server) interrupts(ctx context.Context, s *environment) (bench.Row, error) {
	id, _, err := v.create(ctx, "python")
	if err != nil {
		return bench.Row{}, err
	}
	samples, err := bench.Series(ctx, 1, min(s.probes, 20), func(context.Context, int) (bench.Sample, error) {
		return v.interrupt(ctx, id)
	})
	row := bench.Row{Name: "interrupt of a Python loop, to its result", Unit: "ms", Ours: bench.Summarize(samples), Bar: atMost(200)}
	return row, errors.Join(err, v.end(ctx, id))
}

// interrupt starts a loop, and interrupts it when it has printed something.
func (v *server) interrupt(ctx context.Context, id string) (sample bench.Sample, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/sessions/"+id+"/cells",
		strings.NewReader(`{"code": "print('begun', flush=True)\nwhile True: pass"}`))
	if err != nil {
		return sample, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/x-ndjson")
	got, err := v.client.Do(r)
	if err != nil {
		return sample, err
	}
	defer got.Body.Close()
	events := bufio.NewReader(got.Body)
	for line := ""; !strings.Contains(line, `"data":"begun`); {
		if line, err = events.ReadString('\n'); err != nil {
			return sample, err
		}
	}
	return wall(func() error {
		if _, err := v.call(ctx, http.MethodPost, "/"+id+"/interrupt", nil, nil); err != nil {
			return err
		}
		rest, err := io.ReadAll(events)
		if err == nil && !strings.Contains(string(rest), `"interrupted":true`) {
			err = fmt.Errorf("the loop was not interrupted: %.500s", rest)
		}
		return err
	})
}

// forks measures the time until a fork of a Python session is there; each has the state.
func (v *server) forks(ctx context.Context, s *environment) (bench.Row, error) {
	id, _, err := v.create(ctx, "python")
	if err != nil {
		return bench.Row{}, err
	}
	state := sum{code: "x = list(range(43)); x[-1]", want: "42"}
	if err := v.cell(ctx, id, &state); err != nil {
		return bench.Row{}, err
	}
	state.code = "x[-1]"
	samples, err := bench.Series(ctx, 1, min(s.probes, 20), func(context.Context, int) (bench.Sample, error) {
		var fork struct{ ID string }
		sample, err := wall(func() error {
			_, err := v.call(ctx, http.MethodPost, "/"+id+"/fork", map[string]any{}, &fork)
			return err
		})
		if err != nil {
			return sample, err
		}
		return sample, errors.Join(v.cell(ctx, fork.ID, &state), v.end(ctx, fork.ID))
	})
	row := bench.Row{Name: "fork of a live Python session", Unit: "ms", Ours: bench.Summarize(samples), Bar: atMost(20)}
	return row, errors.Join(err, v.end(ctx, id))
}

// crowd measures the memory of sessions that live at once, as their cgroups count it.
func (v *server) crowd(ctx context.Context, s *environment) (row bench.Row, err error) {
	count := min(crowded, s.crowdSize)
	var ids []string
	var used []float64
	defer func() {
		for _, id := range ids {
			err = errors.Join(err, v.end(ctx, id))
		}
	}()
	for range count {
		id, _, err := v.create(ctx, "python")
		if err != nil {
			return row, err
		}
		ids = append(ids, id)
		if err := v.cell(ctx, id, &sums[0]); err != nil {
			return row, err
		}
	}
	for _, id := range ids {
		var info struct {
			Usage struct {
				Memory float64 `json:"memory_current"`
			}
		}
		if _, err := v.call(ctx, http.MethodGet, "/"+id, nil, &info); err != nil {
			return row, err
		}
		used = append(used, info.Usage.Memory/1e6)
	}
	_, pss, err := v.pss()
	return bench.Row{
		Name: fmt.Sprintf("memory of each of %d live Python sessions", count), Unit: "MB", Ours: bench.SummarizeValues(used), Bar: atMost(15),
		Note: fmt.Sprintf("of its cgroup; PSS of all processes of the server divided by the sessions: %.1f MB", pss/float64(count)),
	}, err
}

//go:embed kernel.py
var kernelDriver string

// kernel is a client of Debian's ipykernel in a process of its own.
type kernel struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startKernel returns nil where ipykernel is not installed.
func startKernel(ctx context.Context) (*kernel, error) {
	const python = "/usr/bin/python3"
	if exec.CommandContext(ctx, python, "-c", "import ipykernel, jupyter_client").Run() != nil {
		fmt.Fprintln(os.Stderr, "bench: sessions: python3-ipykernel is not installed: no reference (scripts/deps.sh bench)")
		return nil, nil
	}
	k := &kernel{cmd: exec.CommandContext(ctx, python, "-c", kernelDriver)}
	k.cmd.Stderr = os.Stderr
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if k.in, err = k.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	k.out = bufio.NewReader(out)
	return k, k.cmd.Start()
}

// compare pairs a measure of ours with one of the kernel, which measures itself.
func (k *kernel) compare(ctx context.Context, s *environment, name, what string, count int, ours bench.Run, limit float64) (bench.Row, error) {
	reference := func(context.Context, int) (bench.Sample, error) {
		if _, err := io.WriteString(k.in, what+"\n"); err != nil {
			return bench.Sample{}, err
		}
		line, err := k.out.ReadString('\n')
		if err != nil {
			return bench.Sample{}, err
		}
		took, err := time.ParseDuration(strings.TrimSpace(line) + "s")
		return bench.Sample{Wall: took}, err
	}
	a, b, err := bench.Pairs(ctx, min(s.warmup, 2), count, ours, reference)
	if err != nil {
		return bench.Row{}, err
	}
	return bench.Compare(name, "ipykernel", a, b, limit), nil
}

func (k *kernel) close() error {
	if k == nil {
		return nil
	}
	return errors.Join(k.in.Close(), k.cmd.Wait())
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
)

// server is a real `sandbox-rund serve` with a socket, a directory and a log of its own.
type server struct {
	cmd    *exec.Cmd
	dir    string
	client *http.Client
	number *atomic.Int64 // of the next source; no two sources of the benchmark are equal
	exited chan struct{}
}

// serverTimeout bounds the start and the end of a server.
const serverTimeout = 60 * time.Second

// serve starts a server, and waits until it answers.
func (s *environment) serve(ctx context.Context, flags ...string) (*server, error) {
	return s.serveWith(ctx, nil, flags...)
}

// serveWith is serve with variables in addition to this process's own.
func (s *environment) serveWith(ctx context.Context, env []string, flags ...string) (*server, error) {
	return s.serveFrom(ctx, filepath.Dir(s.cli), append(os.Environ(), env...), flags...)
}

// serveFrom is serve with the executables of a directory, and a whole environment.
func (s *environment) serveFrom(ctx context.Context, bin string, env []string, flags ...string) (_ *server, err error) {
	full := filepath.Join(bin, "sandbox-rund")
	if _, err := os.Stat(full); err != nil {
		return nil, fmt.Errorf("%w; try: make build", err)
	}
	v := &server{number: &s.number, exited: make(chan struct{})}
	if v.dir, err = os.MkdirTemp("/tmp", "sandbox-run-bench-"); err != nil { // the path of a socket has at most 108 bytes
		return nil, err
	}
	socket := filepath.Join(v.dir, "s")
	v.cmd = exec.Command(full, append([]string{
		"serve", "--listen", "unix://" + socket, "--dir", filepath.Join(v.dir, "state"), "--audit-log", filepath.Join(v.dir, "audit.jsonl"),
		"--log-level", "warn",
	}, flags...)...)
	v.cmd.Env = env
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(v.dir, "log"))
	if err != nil {
		return nil, errors.Join(err, discard(v.dir))
	}
	defer log.Close()
	v.cmd.Stdout, v.cmd.Stderr = log, log
	if err := v.cmd.Start(); err != nil {
		return nil, errors.Join(err, discard(v.dir))
	}
	go func() {
		_ = v.cmd.Wait() // its log has the reason
		close(v.exited)
	}()
	transport := &http.Transport{
		MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	v.client = &http.Client{Transport: transport, Timeout: 2 * serverTimeout}
	for end := time.Now().Add(serverTimeout); ; time.Sleep(20 * time.Millisecond) {
		_, err := v.get(ctx, "/v1/health")
		if err == nil {
			return v, nil
		}
		select {
		case <-v.exited:
			err = errors.New("it has ended")
		default:
			if time.Now().Before(end) && ctx.Err() == nil {
				continue
			}
		}
		return nil, errors.Join(fmt.Errorf("sandbox-rund serve: %w: %s", err, v.said()), v.close())
	}
}

// said returns the end of the server's log.
func (v *server) said() []byte {
	text, _ := os.ReadFile(filepath.Join(v.dir, "log"))
	return text[max(0, len(text)-2000):]
}

// close ends the server with SIGTERM, and removes its directory.
func (v *server) close() (err error) {
	v.client.CloseIdleConnections()
	for i, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM, syscall.SIGKILL} {
		_ = v.cmd.Process.Signal(signal) // it may have ended
		select {
		case <-v.exited:
			if i == 2 {
				err = errors.New("the server had to be killed")
			}
			return errors.Join(err, discard(v.dir))
		case <-time.After(serverTimeout / 2):
		}
	}
	return fmt.Errorf("the server does not end; see %s", v.dir)
}

// discard removes a directory of a daemon that has ended.
func discard(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
	defer cancel()
	return removal.Tree(ctx, dir)
}

// errBusy is the error for an answer with status 429 or 503.
var errBusy = errors.New("refused: 429 or 503")

type answer struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Verdict string `json:"verdict"`
	Stdout  string `json:"stdout"`
	Stderr  string `json:"stderr"`
	Phases  []struct {
		Name   string `json:"name"`
		Cached bool   `json:"cached"`
	} `json:"phases"`
}

func (v *server) do(ctx context.Context, method, path string, body any) (*answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	if body == nil {
		text = nil
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := v.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer got.Body.Close()
	text, err = io.ReadAll(got.Body)
	switch {
	case err != nil:
		return nil, err
	case got.StatusCode == http.StatusTooManyRequests, got.StatusCode == http.StatusServiceUnavailable:
		return nil, errBusy
	case got.StatusCode >= http.StatusMultipleChoices:
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, got.Status, text)
	}
	var a answer
	if len(text) > 0 && strings.HasPrefix(got.Header.Get("Content-Type"), "application/json") {
		err = json.Unmarshal(text, &a)
	}
	return &a, err
}

func (v *server) get(ctx context.Context, path string) (*answer, error) {
	return v.do(ctx, http.MethodGet, path, nil)
}

// hello runs a program with a new number, and checks that the program printed it.
func (v *server) hello(ctx context.Context, h *hello) error {
	n := int(v.number.Add(1))
	body := map[string]any{"language": h.language, "code": fmt.Sprintf(h.text, n), "name": h.file}
	if h.deps != nil {
		body["deps"] = h.deps
	}
	if h.compiled {
		body["cpus"] = 2 // as for the reference
	}
	a, err := v.do(ctx, http.MethodPost, "/v1/run", body)
	if err != nil {
		return err
	}
	printed := strings.TrimSpace(a.Stdout)
	if h.table && slices.Contains(strings.Fields(printed), strconv.Itoa(n)) {
		printed = strconv.Itoa(n)
	}
	if a.Verdict != "ok" || printed != strconv.Itoa(n) {
		return fmt.Errorf("%s of %d: %s, %q, %q", h.language, n, a.Verdict, a.Stdout, a.Stderr)
	}
	for _, p := range a.Phases {
		if p.Cached && p.Name != "install" { // nothing was measured
			return fmt.Errorf("%s of %d: its phase %s was cached: the source is not new", h.language, n, p.Name)
		}
	}
	return nil
}

// metric returns the sum of a metric's series.
func (v *server) metric(ctx context.Context, name string) (sum float64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/metrics", nil)
	if err != nil {
		return 0, err
	}
	got, err := v.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil || got.StatusCode != http.StatusOK {
		return 0, errors.Join(err, fmt.Errorf("/metrics: %s", got.Status))
	}
	for line := range strings.Lines(string(text)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(series, "{"); ok && base == name {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum += f
		}
	}
	return sum, nil
}

// tree lists the server and all its descendants.
func (v *server) tree() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	parents := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statOf(pid); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			parents[parent] = append(parents[parent], pid)
		}
	}
	pids := []int{v.cmd.Process.Pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, parents[pids[i]]...)
	}
	return pids, nil
}

// statOf returns the fields after the name in /proc/PID/stat (state, parent, …), or nil if the process has ended.
func statOf(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// clockTick is the unit of /proc/PID/stat: 100 per second on every Linux.
const clockTick = 10 * time.Millisecond

// cpu returns the CPU time of the server and all its descendants, running and reaped.
func (v *server) cpu() (time.Duration, error) {
	pids, err := v.tree()
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, pid := range pids {
		f := statOf(pid)
		if len(f) < 15 {
			continue // ended meanwhile, and counted by its parent now
		}
		for _, field := range f[11:15] { // utime, stime, cutime, cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * clockTick, nil
}

// pss returns the memory of the server alone and of its descendants, in MB.
func (v *server) pss() (own, others float64, err error) {
	pids, err := v.tree()
	if err != nil {
		return 0, 0, err
	}
	for i, pid := range pids {
		m, err := pssOf(strconv.Itoa(pid))
		switch {
		case err != nil: // ended meanwhile
		case i == 0:
			own = m
		default:
			others += m
		}
	}
	return own, others, nil
}

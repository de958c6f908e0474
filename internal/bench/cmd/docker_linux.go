package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/hostimage"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker"
)

const dockerImage = "bench/python:latest"

// dockerArrivals is the time between two runs: two a second.
const dockerArrivals = 500 * time.Millisecond

// docker compares the docker backend with `docker run`, on a daemon of the benchmark's own.
func (s *environment) docker(ctx context.Context) (rows []bench.Row, err error) {
	d, err := s.daemon(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	reference := func(ctx context.Context, n int) (bench.Sample, error) {
		time.Sleep(s.dockerPause())
		began := time.Now()
		out, err := exec.CommandContext(ctx, "docker", "-H", d.host, "run", "--rm", "--network", "none", dockerImage, python3, "-c",
			fmt.Sprintf("print(%d)", n)).Output()
		took := time.Since(began)
		if err == nil && strings.TrimSpace(string(out)) != fmt.Sprint(n) {
			err = fmt.Errorf("docker run printed %q", out)
		}
		return bench.Sample{Wall: took}, err
	}
	for _, c := range []struct {
		name  string
		warm  int
		limit float64
	}{{"docker backend cold, Python hello", 0, 1.1}, {"docker backend warm, Python hello, arrivals 2 /s", 3, 0.25}} {
		row, err := s.dockerRow(ctx, d, c.warm, reference)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		row.Name, row.Bar = c.name, &bench.Bar{Limit: c.limit, OfRatio: true}
		rows = append(rows, row)
	}
	return rows, nil
}

// dockerPause is the pause between runs; with -smoke there is none.
func (s *environment) dockerPause() time.Duration {
	if s.smoke {
		return 0
	}
	return dockerArrivals
}

func (s *environment) dockerRow(ctx context.Context, d *daemon, warm int, reference bench.Run) (row bench.Row, err error) {
	b, err := docker.New(docker.Options{Host: d.host, Image: dockerImage, Helper: filepath.Join(filepath.Dir(s.cli), "sandbox-helper"),
		Warm: warm, StateDir: filepath.Join(d.dir, "locks")})
	if err != nil {
		return row, err
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	defer func() { err = errors.Join(err, m.Close(), b.Close()) }()
	ours := func(ctx context.Context, n int) (bench.Sample, error) {
		time.Sleep(s.dockerPause())
		began := time.Now()
		id, err := m.Create(ctx, sandbox.Spec{})
		if err != nil {
			return bench.Sample{}, err
		}
		res, err := m.Run(ctx, id, sandbox.Process{Args: []string{python3, "-c", fmt.Sprintf("print(%d)", n)}}, sandbox.IO{})
		if err == nil && strings.TrimSpace(string(res.Stdout.Bytes())) != fmt.Sprint(n) {
			err = fmt.Errorf("%s, printed %q", res.Verdict, res.Stdout.Bytes())
		}
		if err == nil {
			err = m.Delete(ctx, id) // blocks until all its processes have ended
		}
		return bench.Sample{Wall: time.Since(began)}, err
	}
	a, r, err := bench.Pairs(ctx, min(3, s.warmup), min(s.probes, 30), ours, reference)
	if err != nil {
		return row, err
	}
	row = bench.Compare("", "docker run", a, r, 0)
	row.Note = "docker run --rm --network none, a daemon of its own; no figure includes the daemon's CPU time"
	row.Ours.CPU, row.Reference.CPU = 0, 0
	return row, nil
}

// daemon is a dockerd with its own directories and mount namespace.
type daemon struct {
	cmd  *exec.Cmd
	dir  string
	host string
}

func (s *environment) daemon(ctx context.Context) (_ *daemon, err error) {
	dockerd, err := exec.LookPath("dockerd")
	if err == nil {
		_, err = exec.LookPath("docker")
	}
	if err != nil {
		return nil, fmt.Errorf("%w; try: scripts/deps.sh bench", err)
	}
	dir, err := os.MkdirTemp("/tmp", "sandbox-run-bench-") // the path of a socket has at most 108 bytes
	if err != nil {
		return nil, err
	}
	d := &daemon{dir: dir, host: "unix://" + dir + "/s"}
	log, err := os.Create(dir + "/log")
	if err != nil {
		return nil, errors.Join(err, discard(dir))
	}
	defer log.Close()
	d.cmd = exec.Command(dockerd, "--data-root", dir+"/data", "--exec-root", dir+"/exec", "--pidfile", dir+"/pid", "-H", d.host,
		"--bridge", "none", "--iptables=false", "--ip6tables=false")
	d.cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Unshareflags: syscall.CLONE_NEWNS}
	if err := d.cmd.Start(); err != nil {
		return nil, errors.Join(err, discard(dir))
	}
	for end := time.Now().Add(2 * serverTimeout); ; time.Sleep(50 * time.Millisecond) {
		if err = exec.CommandContext(ctx, "docker", "-H", d.host, "version").Run(); err == nil {
			break
		}
		if time.Now().After(end) || ctx.Err() != nil {
			text, _ := os.ReadFile(dir + "/log")
			return nil, errors.Join(fmt.Errorf("dockerd does not answer: %w: %s", err, text[max(0, len(text)-2000):]), d.close())
		}
	}
	if err := d.load(ctx, s); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// load imports an image of this machine's own Python into the daemon.
func (d *daemon) load(ctx context.Context, s *environment) error {
	store, err := image.Open(filepath.Join(s.cache, "docker-images"))
	if err != nil {
		return err
	}
	python, err := filepath.EvalSymlinks(python3) //nolint:forbidigo // the machine's own, for its name
	if err != nil {
		return fmt.Errorf("%w; try: scripts/deps.sh bench", err)
	}
	left := []string{"test", "idlelib", "tkinter", "lib2to3", "ensurepip", "pydoc_data", "dist-packages"}
	_, err = hostimage.Add(ctx, store, dockerImage, hostimage.Contents{
		Programs: []string{python3, "/bin/sh"}, Trees: []string{"/usr/lib/" + filepath.Base(python)},
		Skip: func(p string) bool { return slices.Contains(left, filepath.Base(p)) },
	})
	if err != nil {
		return err
	}
	load := exec.CommandContext(ctx, "docker", "-H", d.host, "load")
	in, err := load.StdinPipe()
	if err != nil {
		return err
	}
	var said strings.Builder
	load.Stdout, load.Stderr = &said, &said
	if err := load.Start(); err != nil {
		return err
	}
	err = errors.Join(store.Export(ctx, []string{dockerImage}, in, image.FormatDocker), in.Close())
	if err = errors.Join(err, load.Wait()); err != nil {
		return fmt.Errorf("docker load: %w: %s", err, said.String())
	}
	return nil
}

// close ends the daemon. The kernel removes its mounts with its mount namespace.
func (d *daemon) close() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { _ = d.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(serverTimeout):
		_ = d.cmd.Process.Kill()
		<-done
	}
	return discard(d.dir)
}

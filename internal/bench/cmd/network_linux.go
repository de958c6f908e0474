package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/internal/testnet"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// network measures networks with rules, in the test internet: this command runs itself there.
func (s *environment) network(ctx context.Context) (rows []bench.Row, err error) {
	if testnet.Inside() {
		return s.insideInternet(ctx)
	}
	dir, err := os.MkdirTemp("", "sandbox-run-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, discard(dir)) }()
	report := filepath.Join(dir, "report.json")
	args := []string{"-only", "^network$", "-bin", filepath.Dir(s.cli), "-n", strconv.Itoa(max(s.pairs, leastPairs)), "-json", report}
	if s.smoke {
		args = append(args, "-smoke")
	}
	cmd := exec.CommandContext(ctx, s.self, args...)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Discard, &stderr
	testnet.Wrap(s.self, cmd)
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == exitMissed) {
		return nil, fmt.Errorf("in the test internet: %w: %s", err, stderr.Bytes())
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	var inside bench.Report
	return inside.Rows, json.Unmarshal(text, &inside)
}

// goodHost is a host of the test internet that the sandboxes may reach.
const goodHost = "good.example"

// Amounts of the rows of networks.
const (
	streamBytes = 512 << 20
	connects    = 200
	openAtOnce  = 500
)

func (s *environment) insideInternet(ctx context.Context) ([]bench.Row, error) {
	// The backend finds sandbox-net as an installed program does.
	if err := os.Setenv("PATH", filepath.Dir(s.cli)+":"+os.Getenv("PATH")); err != nil {
		return nil, err
	}
	var rows []bench.Row
	for _, measure := range []func(context.Context) ([]bench.Row, error){s.networkStart, s.networkStreams, s.networkConnects, s.networkMemory} {
		some, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// networked is a sandbox that has the probe, and may reach the ports of a host.
func (s *environment) networked(rule string) sandbox.Spec {
	return sandbox.Spec{
		Scratch: sandbox.ScratchMemory, Volumes: []sandbox.Volume{{Source: s.self, Target: probeAt}}, Env: probeEnv,
		Limits:  sandbox.Limits{CPUs: float64(min(2, machine().Cores)), OpenFiles: 2 * openAtOnce, Memory: sandbox.GiB},
		Network: network.Policy{Allow: []string{rule}},
	}
}

// networkStart compares starts with and without a network.
func (s *environment) networkStart(ctx context.Context) ([]bench.Row, error) {
	with := sandbox.Spec{Scratch: sandbox.ScratchMemory, Network: network.Policy{Allow: []string{goodHost}}}
	without := sandbox.Spec{Scratch: sandbox.ScratchMemory}
	a, b, err := bench.Pairs(ctx, s.warmup, s.pairs, s.fresh(with, "true"), s.fresh(without, "true"))
	if err != nil {
		return nil, err
	}
	row := bench.Compare("library: true with a rule for a host", "without a network", a, b, 0)
	row.Bar = &bench.Bar{Limit: 3, OfExcess: true}
	return []bench.Row{row}, nil
}

// networkStreams compares one TCP stream with slirp4netns at the same MTU.
func (s *environment) networkStreams(ctx context.Context) (rows []bench.Row, err error) {
	slirp, err := s.slirp(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, slirp.end()) }()
	n := streamBytes
	if s.smoke {
		n = 16 << 20
	}
	for _, c := range []struct{ name, work, port string }{
		{"one TCP stream from the sandbox", "upload", testnet.HalfPort}, {"one TCP stream to the sandbox", "download", "80"},
	} {
		ours := func(ctx context.Context, number int) (bench.Sample, error) {
			r, err := s.once(ctx, number, s.networked(goodHost+":"+c.port), probeAt, probeWord, c.work, goodHost+":"+c.port, strconv.Itoa(n))
			if err != nil {
				return bench.Sample{}, err
			}
			return selfTimed(r.Stdout.Bytes())
		}
		theirs := func(context.Context, int) (bench.Sample, error) {
			return slirp.run(c.work, net.JoinHostPort(testnet.Public, c.port), strconv.Itoa(n))
		}
		a, b, err := bench.Pairs(ctx, min(2, s.warmup), min(s.probes, 20), ours, theirs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		row := bench.Compare(c.name, "slirp4netns", a, b, 1/1.5)
		row.Note = fmt.Sprintf("%d MiB, MTU %d; %.1f and %.1f Gbit/s; both sides share the cores with the servers", n>>20, netdev.MTU,
			gigabits(n, row.Ours.P50), gigabits(n, row.Reference.P50))
		rows = append(rows, row)
	}
	return rows, nil
}

func gigabits(n int, milliseconds float64) float64 { return float64(n) * 8 / milliseconds / 1e6 }

// networkConnects compares the time of a connect with that of a program outside.
func (s *environment) networkConnects(ctx context.Context) ([]bench.Row, error) {
	bare := s.program(s.self, probeWord, "connects", net.JoinHostPort(testnet.Public, testnet.EchoPort), strconv.Itoa(connects))
	ours := func(ctx context.Context, number int) (bench.Sample, error) {
		r, err := s.once(ctx, number, s.networked(goodHost+":"+testnet.EchoPort), probeAt, probeWord, "connects", goodHost+":"+testnet.EchoPort,
			strconv.Itoa(connects))
		if err != nil {
			return bench.Sample{}, err
		}
		return selfTimed(r.Stdout.Bytes())
	}
	outside := func(context.Context, int) (bench.Sample, error) {
		out, err := bare.output()
		if err != nil {
			return bench.Sample{}, err
		}
		return selfTimed(out)
	}
	a, b, err := bench.Pairs(ctx, min(3, s.warmup), s.probes, ours, outside)
	if err != nil {
		return nil, err
	}
	row := bench.Compare("TCP connect through the rules", "bare", a, b, 0)
	row.Bar, row.Note = &bench.Bar{Limit: 0.5, OfExcess: true}, fmt.Sprintf("each sample is the median of %d connects", connects)
	return []bench.Row{row}, nil
}

// networkMemory measures sandbox-net while many connections are open. Each of them has echoed a line.
func (s *environment) networkMemory(ctx context.Context) (rows []bench.Row, err error) {
	id, err := s.manager.Create(ctx, s.networked(goodHost+":"+testnet.EchoPort))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.manager.Delete(ctx, id)) }()
	said, told := io.Pipe()
	var measured float64
	failed := make(chan error, 1)
	stdin, release := io.Pipe()
	go func() {
		line, err := bufio.NewReader(said).ReadString('\n')
		if err == nil && strings.TrimSpace(line) != strconv.Itoa(openAtOnce) {
			err = fmt.Errorf("the probe said %q", line)
		}
		time.Sleep(time.Second) // what it took to make the connections is given back
		if err == nil {
			measured, err = anonymousMemory(network.ProcessName)
		}
		failed <- errors.Join(err, release.Close())
		_, _ = io.Copy(io.Discard, said)
	}()
	r, err := s.manager.Run(ctx, id, sandbox.Process{Args: []string{probeAt, probeWord, "hold", goodHost + ":" + testnet.EchoPort, strconv.Itoa(openAtOnce)}},
		sandbox.IO{Stdin: stdin, OnEvent: func(e sandbox.Event) {
			if e.Kind == sandbox.EventStdout {
				_, _ = told.Write(e.Data)
			}
		}})
	_ = told.Close()
	if err == nil && !r.Success() {
		err = fmt.Errorf("%s: %s", r.Verdict, r.Stderr.Bytes())
	}
	if err = errors.Join(err, <-failed); err != nil {
		return nil, err
	}
	return []bench.Row{{
		Name: fmt.Sprintf("memory of sandbox-net with %d open connections", openAtOnce), Unit: "MiB", Ours: bench.Stat{P50: measured, N: 1},
		Bar: &bench.Bar{Limit: 12}, Note: "anonymous memory, which the sandbox is charged for; each connection has echoed a line a second before, and none was lost",
	}}, nil
}

// anonymousMemory is that of the only child with a name, in MiB.
func anonymousMemory(name string) (float64, error) {
	pids, err := children()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		if comm, err := os.ReadFile(dir + "/comm"); err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		text, err := os.ReadFile(dir + "/smaps_rollup")
		if err != nil {
			return 0, err
		}
		total := 0
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Anonymous:" {
				total, err = strconv.Atoi(f[1])
			}
		}
		return float64(total) / 1024, err
	}
	return 0, fmt.Errorf("there is no child %s", name)
}

// slirpNetwork is a network namespace whose device leads to slirp4netns.
type slirpNetwork struct {
	self        string
	holder, own *exec.Cmd
	hold        io.Closer
}

func (s *environment) slirp(ctx context.Context) (*slirpNetwork, error) {
	path, err := exec.LookPath("slirp4netns")
	if err != nil {
		return nil, fmt.Errorf("the reference is missing: %w; try: scripts/deps.sh bench", err)
	}
	n := &slirpNetwork{self: s.self, holder: exec.CommandContext(ctx, s.self, probeWord, "wait")}
	if n.hold, err = n.holder.StdinPipe(); err != nil {
		return nil, err
	}
	n.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := n.holder.Start(); err != nil {
		return nil, err
	}
	ready, tell, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, n.end())
	}
	defer func() { _ = ready.Close() }()
	n.own = exec.CommandContext(ctx, path, "--configure", "--mtu="+strconv.Itoa(netdev.MTU), "--ready-fd=3", strconv.Itoa(n.holder.Process.Pid), "tap0")
	n.own.ExtraFiles = []*os.File{tell}
	n.own.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = n.own.Start()
	_ = tell.Close()
	if err == nil {
		_, err = ready.Read(make([]byte, 1))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("slirp4netns: %w", err), n.end())
	}
	return n, nil
}

// run runs the probe in the namespace.
func (n *slirpNetwork) run(args ...string) (bench.Sample, error) {
	in := []string{"-t", strconv.Itoa(n.holder.Process.Pid), "-n", n.self, probeWord}
	out, err := exec.Command("nsenter", append(in, args...)...).Output()
	if err != nil {
		return bench.Sample{}, fmt.Errorf("the probe at slirp4netns: %w: %s", err, out)
	}
	return selfTimed(out)
}

func (n *slirpNetwork) end() error {
	err := n.hold.Close()
	if n.own != nil && n.own.Process != nil {
		_ = n.own.Process.Kill()
		_ = n.own.Wait()
	}
	return errors.Join(err, n.holder.Wait())
}

// networkProbe is the part of the probe that uses a network. It prints nanoseconds, or for hold the number of connections.
func networkProbe(args []string, stdout io.Writer) error {
	switch work := args[0]; {
	case work == "wait":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return nil
	case len(args) != 3:
		return fmt.Errorf("%s: HOST:PORT and a number are missing", work)
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if args[0] == "hold" {
		return holdConnections(args[1], n, stdout)
	}
	took, err := map[string]func(string, int) (time.Duration, error){"upload": upload, "download": download, "connects": connectTime}[args[0]](args[1], n)
	if err == nil {
		fmt.Fprintln(stdout, took.Nanoseconds())
	}
	return err
}

// upload sends n bytes, and waits for the server's answer to the end of them.
func upload(to string, n int) (time.Duration, error) {
	c, err := net.Dial("tcp", to)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	chunk := make([]byte, 256<<10)
	began := time.Now()
	for sent := 0; sent < n; sent += len(chunk) {
		if _, err := c.Write(chunk); err != nil {
			return 0, err
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil { //nolint:forcetypeassert // it dials tcp
		return 0, err
	}
	_, err = io.Copy(io.Discard, c)
	return time.Since(began), err
}

// download asks a web server for n bytes.
func download(from string, n int) (time.Duration, error) {
	c, err := net.Dial("tcp", from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	host, _, _ := strings.Cut(from, ":")
	if _, err := fmt.Fprintf(c, "GET %s%d HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", testnet.BytesPath, n, host); err != nil {
		return 0, err
	}
	chunk, got := make([]byte, 256<<10), 0
	began := time.Now()
	for {
		m, err := c.Read(chunk)
		if got += m; errors.Is(err, io.EOF) && got >= n {
			return time.Since(began), nil
		}
		if err != nil {
			return 0, fmt.Errorf("after %d bytes: %w", got, err)
		}
	}
}

// connectTime is the median time of a connect.
func connectTime(to string, n int) (time.Duration, error) {
	addr, err := net.ResolveTCPAddr("tcp4", to)
	if err != nil {
		return 0, err
	}
	var all []float64
	for range n {
		began := time.Now()
		c, err := net.DialTCP("tcp4", nil, addr)
		if err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(began)))
		_ = c.Close()
	}
	return time.Duration(bench.Median(all)), nil
}

// holdConnections opens n connections at once, has each echo a line, prints how many did, and holds them until the end of its input.
func holdConnections(to string, n int, stdout io.Writer) error {
	addr, err := net.ResolveTCPAddr("tcp4", to)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var all []net.Conn
	var failed []error
	var dialling sync.WaitGroup
	for i := range n {
		dialling.Go(func() {
			c, err := net.DialTCP("tcp4", nil, addr)
			if err == nil {
				var line string
				_, err = fmt.Fprintf(c, "line %d\n", i)
				if err == nil {
					line, err = bufio.NewReader(c).ReadString('\n')
				}
				if err == nil && !strings.Contains(line, strconv.Itoa(i)) {
					err = fmt.Errorf("echo %q", line)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
				return
			}
			all = append(all, c)
		})
	}
	dialling.Wait()
	fmt.Fprintln(stdout, len(all))
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, c := range all {
		_ = c.Close()
	}
	return errors.Join(failed...)
}

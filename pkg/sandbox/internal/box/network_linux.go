package box

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/netproc"
)

// phaseNetwork is the network of a phase with rules: the process of its user-mode stack, behind the device of its init. All processes
// of the phase share it.
type phaseNetwork struct {
	policy    network.Policy
	started   chan struct{} // closed when the fields up to err are set
	process   *netproc.Process
	filter    *network.Filter
	device    initproto.Device
	listeners []*os.File // of the published ports, until they are handed over
	published []network.Port
	err       error
	refused   error // why the network can not be used, before it was started

	config    network.Config
	frames    int // of the device, while connected; this process has it, so that the end of the other one does not wait for the last close
	connected bool
	used      bool // a program has it
	report    *network.Report
	ended     atomic.Bool // the process ended before its phase
}

// end has the process report and end.
func (n *phaseNetwork) end() {
	<-n.started
	n.closeListeners()
	if n.process != nil {
		n.report, n.err = n.process.Report()
	}
}

// close waits for the end of the process.
func (n *phaseNetwork) close() {
	if n.process != nil {
		n.process.Close()
	}
	if n.connected {
		netdev.Abandon(n.frames)
		n.connected = false
	}
}

// hasNetwork notes before the first process of a phase that there will be a network: its threads count in the limit of processes.
func (p *Phase) hasNetwork(n network.Policy) {
	if n.HasRules() {
		p.reserved.Store(network.MaxThreads)
	}
}

// groupLimits are the limits of the cgroup: of the programs, and room for the network's threads.
func (p *Phase) groupLimits(l sandbox.Limits) cgroup.Limits {
	limits := p.Instance.Host.Limits(l)
	if limits.Pids > 0 {
		limits.Pids += int(p.reserved.Load())
	}
	return limits
}

// BeginNetwork starts the process of the phase's network in the background, unless it runs. A network that was begun for another process ends.
func (p *Phase) BeginNetwork(n network.Policy) {
	p.networking.Lock()
	defer p.networking.Unlock()
	if old := p.network.Load(); old != nil && !old.policy.Equal(n) {
		old.end()
		old.close()
		p.network.Store(nil)
		p.reserved.Store(0)
	}
	if p.network.Load() == nil && n.HasRules() {
		p.hasNetwork(n)
		err := p.applyLimits()
		next := p.newNetwork(n)
		next.refused = err
		p.network.Store(next)
	}
}

// newNetwork starts the process of a network.
func (p *Phase) newNetwork(policy network.Policy) *phaseNetwork {
	i := p.Instance
	n := &phaseNetwork{policy: policy, started: make(chan struct{})}
	go func() {
		defer close(n.started)
		filter, device, err := i.compileNetwork(policy)
		if err == nil {
			n.filter, n.device = filter, device
			err = n.listen(filter.Published())
		}
		o := netproc.Options{Filter: i.Filter, Ended: func() {
			n.ended.Store(true)
			_ = p.Kill() // its programs have no network any more
		}}
		for _, f := range p.Join {
			o.Cgroups = append(o.Cgroups, int(f.Fd()))
		}
		if p.Born != nil {
			o.IntoCgroup = int(p.Born.Fd())
		}
		if i.Host.Self.Privileged {
			o.UID = uint32(i.ID.Init) //nolint:gosec // an id
		}
		if err == nil {
			n.process, err = Answered(i.lives, i.Host.Timeout, func(ctx context.Context) (*netproc.Process, error) { return netproc.Start(ctx, o) })
			err = p.networkFailure(err)
		}
		if n.err = err; err != nil {
			n.closeListeners()
		}
	}()
	return n
}

// awaitNetwork waits until the process of the phase's network runs, and makes room for its threads in the limit of processes: exactly as
// much as they need. Programs have no network without it, so that an error refuses the start.
func (p *Phase) awaitNetwork(ctx context.Context, process *sandbox.Process) (cgroup.Limits, error) {
	p.networking.Lock()
	defer p.networking.Unlock()
	n := p.network.Load()
	if n == nil || !process.Network.HasRules() {
		return p.applied, nil
	}
	select {
	case <-n.started:
	case <-ctx.Done(): // Finish ends it
		return p.applied, ctx.Err()
	}
	if err := cmp.Or(n.refused, n.err); err != nil {
		return p.applied, err
	}
	n.config = network.Config{Policy: n.policy, Bounds: p.Instance.Spec.Bounds, Limits: process.Limits.Network()}
	p.reserved.Store(int64(n.process.Threads()))
	err := p.applyLimits()
	return p.applied, err
}

// prepareNetwork begins the network of a process.
func (p *Phase) prepareNetwork(ctx context.Context, process *sandbox.Process, device *initproto.Device, expected *measure.Program) error {
	d, err := p.Instance.Device(process.Network)
	if err != nil {
		return err
	}
	p.loopback = process.Network.HasLoopback()
	if p.Frames == nil {
		*device = d
	}
	if p.BeginNetwork(process.Network); process.Network.HasRules() {
		p.AwaitNetwork(ctx, process, expected)
		return nil
	}
	return p.applyLimits()
}

// AwaitNetwork has the network of a process awaited while the process waits to be examined.
func (p *Phase) AwaitNetwork(ctx context.Context, process *sandbox.Process, expected *measure.Program) {
	if expected != nil && process.Network.HasRules() {
		expected.Ready = func() (cgroup.Limits, error) { return p.awaitNetwork(ctx, process) }
	}
}

// Device is the network device of programs with a policy; without rules there is none.
func (i *Instance) Device(n network.Policy) (initproto.Device, error) {
	if !n.HasRules() {
		return initproto.Device{}, nil
	}
	_, d, err := i.compileNetwork(n)
	return d, err
}

func (i *Instance) compileNetwork(n network.Policy) (f *network.Filter, d initproto.Device, err error) {
	if f, err = sandbox.CompileNetwork(n, i.Spec.Bounds); err != nil {
		return nil, d, err
	}
	ranges, err := f.Ranges()
	if err != nil {
		return nil, d, sandbox.Invalid("network", "%w", err)
	}
	d.Addresses, d.Gateways = ranges.Device()
	return f, d, nil
}

// networkFailure is the error of a network that can not be made: the run is refused, because nothing replaces it.
func (p *Phase) networkFailure(err error) error {
	if err == nil {
		return nil
	}
	return &sandbox.Error{
		Backend: p.Instance.Host.Name, Op: "make the network", Stage: "network", Kind: sandbox.ErrUnsupported, Err: err,
		Hint: "install all executables of sandbox-run in one directory (make install); or run with --network none",
	}
}

// connectNetwork hands the device, which the init has made for the first process, to the process of the network.
func (p *Phase) connectNetwork(ctx context.Context, process *sandbox.Process) error {
	if !process.Network.HasRules() {
		return nil
	}
	if _, err := p.awaitNetwork(ctx, process); err != nil { // of a program that was not examined
		return err
	}
	p.networking.Lock()
	defer p.networking.Unlock()
	n := p.network.Load()
	if n.connected {
		return nil
	}
	frames := p.Frames
	if frames == nil {
		if frames = p.Init.TakeDevice(); frames == nil {
			return p.failure("make the network", "protocol", initproto.ErrMalformed)
		}
		defer func() { _ = frames.Close() }()
	}
	return p.networkFailure(n.connect(frames))
}

// connect hands the device to the process of the network.
func (n *phaseNetwork) connect(frames *os.File) error {
	err := n.process.Connect(n.config, append([]*os.File{frames}, n.listeners...))
	n.closeListeners()
	if err == nil {
		n.frames, err = unix.FcntlInt(frames.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		n.connected, n.used = err == nil, err == nil
	}
	return err
}

// SetNetwork replaces the rules of the phase's network, or gives the phase one, while its programs run. Connections of the network before end.
// Without rules, a network that had some refuses everything from then on.
func (t *Task) SetNetwork(ctx context.Context, process *sandbox.Process) error {
	p := t.phase
	p.networking.Lock()
	defer p.networking.Unlock()
	old := p.network.Load()
	if !process.Network.HasRules() && old != nil {
		closed := *process
		closed.Network = network.Policy{Mode: network.Allow}
		process = &closed
	}
	fixed := p.Container != nil || p.NetworkFixed || p.Instance.Host.Opaque
	switch {
	case !process.Network.HasRules() && (p.loopback || !process.Network.HasLoopback()):
		return nil // as it is
	case fixed || !process.Network.HasRules(): // Landlock lets no program open ports that was started without a loopback
		return &sandbox.Error{
			Backend: p.Instance.Host.Name, Op: "change the network", Kind: sandbox.ErrUnsupported, Hint: "a session that is created with this network",
			Err: errors.New("the network of this sandbox is fixed when its programs start"),
		}
	}
	device, err := p.Instance.Device(process.Network)
	if err != nil {
		return err
	}
	if old != nil {
		if !slices.EqualFunc(old.device.Addresses, device.Addresses, bytes.Equal) {
			return sandbox.Errorf(sandbox.ErrUnsupported, "network", "a session that is created with the rules",
				"a rule needs the addresses that the programs have already")
		}
		old.end()
		old.close()
	}
	if err = p.failure("make the network", "network", p.Init.MakeDevice(ctx, p.Instance.NextExec(), device)); err == nil {
		err = p.startNetwork(ctx, process, p.Init.TakeDevice())
	}
	if err != nil && old != nil {
		_ = p.Kill() // its programs have no network any more
	}
	return err
}

// startNetwork starts the process of a network and connects it to the device, whose frames it closes. With networking locked.
func (p *Phase) startNetwork(ctx context.Context, process *sandbox.Process, frames *os.File) error {
	if frames == nil {
		return p.failure("make the network", "protocol", initproto.ErrMalformed)
	}
	defer frames.Close()
	p.hasNetwork(process.Network)
	if err := p.applyLimits(); err != nil {
		return err
	}
	n := p.newNetwork(process.Network)
	<-n.started // Answered bounds it
	err := cmp.Or(n.err, ctx.Err())
	if err == nil {
		p.reserved.Store(int64(n.process.Threads()))
		err = p.applyLimits()
	}
	if err == nil {
		n.config = network.Config{Policy: n.policy, Bounds: p.Instance.Spec.Bounds, Limits: process.Limits.Network()}
		err = n.connect(frames)
	}
	if err != nil {
		n.end()
		n.close()
		return p.networkFailure(err)
	}
	p.network.Store(n)
	return nil
}

// endNetwork ends the network, after the end of the programs. Its report is then complete; closeNetwork waits for its process. The error is of
// a network that could not be made: its programs had none.
func (p *Phase) endNetwork() error {
	p.networking.Lock()
	defer p.networking.Unlock()
	n := p.network.Load()
	if n == nil {
		return nil
	}
	n.end()
	if !n.used {
		return nil // the start has returned its error
	}
	return p.networkFailure(n.err)
}

// closeNetwork waits for the end of the network's process.
func (p *Phase) closeNetwork() {
	p.networking.Lock()
	defer p.networking.Unlock()
	if n := p.network.Load(); n != nil {
		n.close()
	}
}

// isEmpty reports whether all programs of the phase are gone. The network's process may be left.
func (p *Phase) isEmpty() bool {
	n := p.network.Load()
	if n == nil || n.process == nil {
		empty, err := p.Group.Empty()
		return empty && err == nil
	}
	left, err := p.Group.Procs()
	return err == nil && !slices.ContainsFunc(left, func(pid int) bool { return pid != n.process.PID() })
}

// listen opens the published ports on the host's loopback.
func (n *phaseNetwork) listen(ports []network.Port) error {
	for _, p := range ports {
		f, port, err := listenLoopback(p.Host)
		if err != nil {
			n.closeListeners()
			if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EACCES) {
				return &sandbox.Error{
					Op: "publish", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("port %d of the host: %w", p.Host, err),
					Hint: fmt.Sprintf("another port of the host, or --publish %d for one that is free", p.Sandbox),
				}
			}
			return err
		}
		n.listeners = append(n.listeners, f)
		n.published = append(n.published, network.Port{Host: port, Sandbox: p.Sandbox})
	}
	return nil
}

// listenLoopback opens a TCP listener on 127.0.0.1; port 0 is any. (Package net would cost every start of the command its initialisers.)
func listenLoopback(port uint16) (*os.File, uint16, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	var at unix.Sockaddr
	if err == nil {
		at, err = unix.Getsockname(fd)
	}
	if here, ok := at.(*unix.SockaddrInet4); ok && err == nil {
		return f, uint16(here.Port), nil //nolint:gosec // a port
	}
	_ = f.Close()
	return nil, 0, err
}

func (n *phaseNetwork) closeListeners() {
	for _, f := range n.listeners {
		_ = f.Close()
	}
	n.listeners = nil
}

// NetworkRefusals yields each kind of refused name and connection when it first occurs.
func (t *Task) NetworkRefusals() iter.Seq[network.Refused] {
	if n := t.phase.network.Load(); n != nil {
		return n.process.First()
	}
	return func(func(network.Refused) bool) {}
}

// NetworkSoFar is what the phase's network did so far.
func (t *Task) NetworkSoFar() (r *network.Report, identity any) {
	n := t.phase.network.Load()
	if n == nil {
		return nil, nil
	}
	if <-n.started; n.process == nil {
		return nil, nil
	}
	return n.process.SoFar(), n
}

// Published are the ports of the phase on the host's loopback.
func (t *Task) Published() []network.Port {
	if n := t.phase.network.Load(); n != nil {
		return n.published
	}
	return nil
}

// Network is what the phase's network did. Before the end of the phase it is not known.
func (t *Task) Network() (report *network.Report, unknown string) {
	n := t.phase.network.Load()
	switch {
	case n == nil:
		return nil, ""
	case n.report == nil && n.ended.Load():
		return nil, "the network's process ended, and the programs with it"
	case n.report == nil:
		return nil, "the network's process gave no report"
	case n.report.Lost > 0:
		return n.report, fmt.Sprintf("%d of them were not remembered", n.report.Lost)
	}
	return n.report, ""
}

package box

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/netproc"
)

// phaseNetwork is the network of a phase with rules: the process of its user-mode stack, behind the device of its init. All processes
// of the phase share it.
type phaseNetwork struct {
	process   *netproc.Process
	device    initproto.Device
	config    network.Config
	listeners []*os.File // of the published ports, until they are handed over
	published []network.Port
	connected bool
	report    *network.Report
	ended     atomic.Bool // the process ended before its phase
}

// hasNetwork notes before the first process of a phase that there will be a network: its threads count in the limit of processes.
func (p *Phase) hasNetwork(n network.Policy) {
	if n.HasRules() {
		p.reserved = network.MaxThreads
	}
}

// groupLimits are the limits of the cgroup: of the programs, and room for the network's threads.
func (p *Phase) groupLimits(l sandbox.Limits) cgroup.Limits {
	limits := p.Instance.Host.Limits(l)
	if limits.Pids > 0 {
		limits.Pids += p.reserved
	}
	return limits
}

// StartNetwork starts the process of the phase's network, unless it runs. Programs have no network without it, so that an error refuses the
// start.
func (p *Phase) StartNetwork(ctx context.Context, process *sandbox.Process) error {
	if !process.Network.HasRules() || p.network != nil {
		return nil
	}
	i := p.Instance
	filter, device, err := i.compileNetwork(process.Network)
	if err != nil {
		return err
	}
	n := &phaseNetwork{device: device, config: network.Config{
		Policy: process.Network, Bounds: i.Spec.Bounds, Limits: process.Limits.Network(),
	}}
	if err := n.listen(filter.Published()); err != nil {
		return p.failure("publish a port", "network", err)
	}
	o := netproc.Options{Ended: func() {
		n.ended.Store(true)
		_ = p.Kill() // its programs have no network any more
	}}
	if o.Filter, err = i.Host.Filter(seccomp.Policy{}); err == nil {
		for _, f := range p.Join {
			o.Cgroups = append(o.Cgroups, int(f.Fd()))
		}
		if p.Born != nil {
			o.IntoCgroup = int(p.Born.Fd())
		}
		if i.Host.Self.Privileged {
			o.UID = uint32(i.ID.Init) //nolint:gosec // an id
		}
		n.process, err = Answered(ctx, i.Host.Timeout, func(ctx context.Context) (*netproc.Process, error) { return netproc.Start(ctx, o) })
	}
	if err != nil {
		n.closeListeners()
		return p.networkFailure(err)
	}
	p.network = n
	p.reserved = n.process.Threads()
	return p.applyLimits()
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
	return &sandbox.Error{
		Backend: p.Instance.Host.Name, Op: "make the network", Stage: "network", Kind: sandbox.ErrUnsupported, Err: err,
		Hint: "install all executables of sandbox-run in one directory (make install); or run with --network none",
	}
}

// deviceFor is the device that the init makes before it starts a process.
func (p *Phase) deviceFor(process *sandbox.Process) (d initproto.Device) {
	if p.network != nil && process.Network.HasRules() && p.Frames == nil {
		d = p.network.device
	}
	return d
}

// connectNetwork hands the device, which the init has made for the first process, to the process of the network.
func (p *Phase) connectNetwork(ctx context.Context) error {
	n := p.network
	if n == nil || n.connected {
		return nil
	}
	frames := p.Frames
	if frames == nil {
		if frames = p.Init.TakeDevice(); frames == nil {
			return p.failure("make the network", "protocol", initproto.ErrMalformed)
		}
		defer func() { _ = frames.Close() }()
	}
	_, err := Answered(ctx, p.Instance.Host.Timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, n.process.Connect(ctx, n.config, append([]*os.File{frames}, n.listeners...))
	})
	n.closeListeners()
	n.connected = err == nil
	if err != nil {
		return p.networkFailure(err)
	}
	return nil
}

// endNetwork ends the process of the network, after the end of the programs. The report is then complete.
func (p *Phase) endNetwork() {
	if p.network == nil {
		return
	}
	p.network.closeListeners()
	p.network.report = p.network.process.Close()
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
	if n := t.phase.network; n != nil {
		return n.process.First()
	}
	return func(func(network.Refused) bool) {}
}

// Published are the ports of the phase on the host's loopback.
func (t *Task) Published() []network.Port {
	if n := t.phase.network; n != nil {
		return n.published
	}
	return nil
}

// Network is what the phase's network did. Before the end of the phase it is not known.
func (t *Task) Network() (report *network.Report, unknown string) {
	n := t.phase.network
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

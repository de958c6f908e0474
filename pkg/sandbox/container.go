package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// State is a step in the life cycle of a sandbox.
//
//	Create ──► ready ◄──────► running        Run starts; the last Run ends
//	             │               │
//	             └──── Stop ─────┴──► stopping ──► stopped
//	 any state ──── Delete ──► deleted
//
// Run is legal in ready and running; Stop in every state but deleted; Delete in every state. Stop and Delete may be
// called twice.
type State string

// The states of a sandbox.
const (
	StateReady    State = "ready"
	StateRunning  State = "running"
	StateStopping State = "stopping"
	StateStopped  State = "stopped"
	StateDeleted  State = "deleted"
)

// Options configure a Manager. The zero value is usable.
type Options struct {
	// VolumeRoots are the only directories that volumes may come from; none allows every directory.
	VolumeRoots []string
	// SampleInterval is the time between two samples of a running process; default 100 ms.
	SampleInterval time.Duration
	// Chosen is the reason for the choice of this backend where the caller named none; reports include it.
	Chosen string
}

// Manager creates, runs, stops and deletes sandboxes of one backend. It owns them: Close deletes the remaining ones.
type Manager struct {
	backend Backend
	opts    Options
	machine Machine

	probe sync.Once
	can   Isolation // what the machine can enforce; valid after probe

	mu         sync.Mutex
	containers map[string]*container
	closed     bool
	creating   sync.WaitGroup
}

// NewManager returns a manager of sandboxes of a backend. The caller keeps and closes the backend.
func NewManager(b Backend, opts Options) *Manager {
	return &Manager{backend: b, opts: opts, machine: thisMachine(), containers: map[string]*container{}}
}

// Backend returns the backend of these sandboxes.
func (m *Manager) Backend() Backend { return m.backend }

// Machine returns the resources that the sandboxes share.
func (m *Manager) Machine() Machine { return m.machine }

// container is one sandbox: its instance, and the current runs in it.
type container struct {
	id       string
	spec     Spec
	notes    []string
	chosen   string // see Options
	instance Instance
	created  time.Time

	mu      sync.Mutex
	state   State
	runs    map[*run]struct{}
	lives   map[*Live]struct{}
	idle    chan struct{} // closed when the last run ends; nil while none runs
	last    monitor.Metrics
	deleted chan struct{} // closed when Delete has finished
}

// Info describes a sandbox.
type Info struct {
	ID        string            `json:"id"`
	State     State             `json:"state"`
	Created   time.Time         `json:"created"`
	Labels    map[string]string `json:"labels,omitempty"`
	Isolation Isolation         `json:"isolation"`
	Limits    Limits            `json:"limits"`
}

// Complete fills in the defaults of a spec, as Create does, for a caller that prepares for a sandbox.
func (m *Manager) Complete(spec Spec) (Spec, error) {
	spec, _, err := spec.complete(m.machine, m.opts.VolumeRoots)
	return spec, err
}

// Create builds a sandbox and returns its id. It refuses a sandbox that would be weaker than the spec requires, before
// it builds anything.
func (m *Manager) Create(ctx context.Context, spec Spec) (string, error) {
	spec, notes, err := spec.complete(m.machine, m.opts.VolumeRoots)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return "", errClosed()
	}
	m.creating.Add(1) // with mu held: Close waits for sandboxes that are not in the map yet
	m.mu.Unlock()
	defer m.creating.Done()
	m.probe.Do(func() { m.can = m.backend.Probe(ctx) })
	if err := m.can.Check(spec.Require, false); err != nil { // strictness is about what is made
		return "", err
	}
	instance, err := m.backend.Create(ctx, &spec)
	if err != nil {
		return "", err
	}
	c := &container{
		id: newID(), spec: spec, notes: notes, chosen: m.opts.Chosen, instance: instance, created: time.Now(),
		state: StateReady, runs: map[*run]struct{}{}, deleted: make(chan struct{}),
	}
	if err := c.isolation().Check(spec.Require, spec.Strict); err != nil {
		return "", errors.Join(err, instance.Destroy(context.WithoutCancel(ctx)))
	}
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.containers[c.id] = c
	}
	m.mu.Unlock()
	if closed {
		return "", errors.Join(errClosed(), instance.Destroy(context.WithoutCancel(ctx)))
	}
	return c.id, nil
}

func errClosed() error {
	return &Error{Op: "create", Kind: ErrState, Err: errors.New("the manager is closed")}
}

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b[:])
}

func (m *Manager) find(id string) (*container, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.containers[id]
	if !ok {
		return nil, &Error{Op: fmt.Sprintf("sandbox %q", id), Kind: ErrNotFound}
	}
	return c, nil
}

// IO connects a run to its caller.
type IO struct {
	// Stdin is copied to the process until it ends; nil is an empty input.
	Stdin io.Reader
	// OnEvent gets every event live, in order, one at a time. It may block: the program then waits. It must not keep
	// Event.Data.
	OnEvent func(Event)
	// Spill writes output that exceeds the memory to disk.
	Spill *Spill
	// OutputSpace holds kept output beyond OutputMemory; nil: it is held in memory. A caller that sets it closes the
	// Result.
	OutputSpace *OutputSpace
	// Resize carries new sizes of the terminal.
	Resize <-chan TTY
	// Signals are sent to the process itself while it runs. A signal that can not be delivered is dropped.
	Signals <-chan syscall.Signal
}

// Run runs one process to its end and returns the result. The error is for failures of the sandbox; a program that fails
// is a Result. Cancelling ctx stops the process gracefully (SIGTERM, grace, SIGKILL); Run then still returns a Result,
// with the verdict cancelled.
func (m *Manager) Run(ctx context.Context, id string, p Process, io IO) (*Result, error) {
	c, err := m.find(id)
	if err != nil {
		return nil, err
	}
	asked := p
	if p, err = p.complete(c.spec, m.machine); err != nil {
		return nil, err
	}
	r := newRun(ctx, c, p, io)
	if err := c.begin(r, asked); err != nil {
		r.abandonStart()
		_ = r.rec.Close() // nothing was recorded
		return nil, err
	}
	defer c.end(r)
	return r.do(ctx, m.opts.SampleInterval)
}

// begin admits a run. A limit that the run itself asks for must agree with its phase.
func (c *container) begin(r *run, asked Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != StateReady && c.state != StateRunning {
		return stateError(c)
	}
	for n := range c.runs {
		if n.p.Phase != r.p.Phase {
			continue
		}
		if err := r.p.join(&n.p, &asked); err != nil {
			return err
		}
		break
	}
	if len(c.runs) == 0 {
		c.idle = make(chan struct{})
	}
	c.runs[r] = struct{}{}
	c.state = StateRunning
	return nil
}

func stateError(c *container) error {
	return &Error{Op: "run in sandbox " + c.id, Kind: ErrState, Err: fmt.Errorf("it is %s", c.state)}
}

func (c *container) end(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, r)
	if len(c.runs) > 0 {
		return
	}
	close(c.idle)
	c.idle = nil
	if c.state == StateRunning {
		c.state = StateReady
	}
}

// endNeighbours is called by a run that is about to end its phase: the other runs of the phase end with it, by that order.
func (c *container) endNeighbours(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.runs {
		if n != r && n.p.Phase == r.p.Phase {
			n.ordered.Store(true)
		}
	}
}

// endRuns orders every run to end, and returns a channel to wait for.
func (c *container) endRuns(next State, how func(*run)) (idle <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A stopped sandbox stays stopped, also after a second call.
	if c.state != StateDeleted && c.state != StateStopped {
		c.state = next
	}
	for r := range c.runs {
		r.ordered.Store(true)
	}
	for r := range c.runs {
		how(r)
	}
	if c.idle == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return c.idle
}

// Stop ends the processes of the sandbox: SIGTERM to every process, the grace period, SIGKILL. It returns when no
// process is left; the sandbox then takes no further runs. When ctx ends first, Stop kills everything at once. Stop may
// be called twice.
func (m *Manager) Stop(ctx context.Context, id string) error {
	c, err := m.find(id)
	if err != nil {
		return err
	}
	idle := c.endRuns(StateStopping, (*run).stop)
	select {
	case <-idle:
	case <-ctx.Done():
		<-c.endRuns(StateStopping, (*run).kill)
	}
	c.closeLives()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateStopping {
		c.state = StateStopped
	}
	return nil
}

// Kill ends the processes of the sandbox at once. The sandbox takes no further runs.
func (m *Manager) Kill(id string) error {
	c, err := m.find(id)
	if err != nil {
		return err
	}
	<-c.endRuns(StateStopped, (*run).kill)
	c.closeLives()
	return nil
}

// Delete kills the processes of the sandbox, removes its resources and its entry. It may be called in any state, and
// twice: a sandbox that is gone already is not an error.
func (m *Manager) Delete(ctx context.Context, id string) error {
	m.mu.Lock()
	c, ok := m.containers[id]
	m.mu.Unlock()
	if !ok {
		return nil
	}
	c.mu.Lock()
	first := c.state != StateDeleted
	c.state = StateDeleted
	c.mu.Unlock()
	if !first {
		<-c.deleted
		return nil
	}
	defer close(c.deleted)
	<-c.endRuns(StateDeleted, (*run).kill)
	c.closeLives()
	// The removal continues without ctx: the kernel may take longer than the caller waits.
	err := c.instance.Destroy(context.WithoutCancel(ctx))
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.containers, id)
	return err
}

// GetMetrics returns the current use of the sandbox, summed over its phases, or that of its last run. Totals and current
// values are sums; peaks and times are those of the largest.
func (m *Manager) GetMetrics(id string) (monitor.Metrics, error) {
	c, err := m.find(id)
	if err != nil {
		return monitor.Metrics{}, err
	}
	c.mu.Lock()
	runs := slices.Collect(maps.Keys(c.runs))
	last := c.last
	c.mu.Unlock()
	// Runs of one phase share its counters: each phase is sampled once.
	phases := map[string]monitor.Metrics{}
	for _, r := range runs {
		if _, asked := phases[r.p.Phase]; asked {
			continue
		}
		if s, ok := r.metrics(); ok {
			phases[r.p.Phase] = s
		}
	}
	if len(phases) == 0 {
		return last, nil
	}
	var sum monitor.Metrics
	for _, s := range phases {
		sum = together(sum, s)
	}
	return sum, nil
}

// together adds up two concurrent phases. They share one scratch.
func together(a, b monitor.Metrics) monitor.Metrics {
	a.WallTime = max(a.WallTime, b.WallTime)
	a.StartupTime = max(a.StartupTime, b.StartupTime)
	a.CPUTime += b.CPUTime
	a.CPUUser += b.CPUUser
	a.CPUSystem += b.CPUSystem
	a.CPUPercent += b.CPUPercent
	a.ThrottledTime += b.ThrottledTime
	a.IORead += b.IORead
	a.IOWrite += b.IOWrite
	a.OOMKills += b.OOMKills
	a.ProcessLimitHits += b.ProcessLimitHits
	a.MemoryCurrent += b.MemoryCurrent
	a.ProcessesCurrent += b.ProcessesCurrent
	a.MemoryPeak = max(a.MemoryPeak, b.MemoryPeak, a.MemoryCurrent)
	a.ProcessesPeak = max(a.ProcessesPeak, b.ProcessesPeak, a.ProcessesCurrent)
	a.DiskUsed = max(a.DiskUsed, b.DiskUsed)
	a.DiskFull = a.DiskFull || b.DiskFull
	return a
}

// Get returns the description of a sandbox.
func (m *Manager) Get(id string) (Info, error) {
	c, err := m.find(id)
	if err != nil {
		return Info{}, err
	}
	return c.info(), nil
}

// isolation returns a copy of the sandbox's report.
func (c *container) isolation() Isolation {
	iso := c.instance.Isolation().Clone()
	iso.Chosen = c.chosen
	if v := c.spec.polledVolume(); v != nil {
		reason := fmt.Sprintf("the cap of %v on the workspace is polled: what is written between two looks,"+
			" or to files that are deleted and still open, is over it", v.Cap)
		remedy := "run without a workspace: the scratch has a limit that the kernel enforces"
		if v.CapGap.Reason != "" {
			reason += "; " + v.CapGap.Reason
		}
		if v.CapGap.Remedy != "" {
			remedy = v.CapGap.Remedy + "; or " + remedy
		}
		iso.Lack(ControlDisk, Polled, reason, remedy)
	}
	return iso
}

// image names the image of the sandbox's root; nil for a root without one.
func (c *container) image() *ImageRef {
	if c.spec.Root.From == (ImageRef{}) {
		return nil
	}
	from := c.spec.Root.From
	return &from
}

func (c *container) info() Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Info{ID: c.id, State: c.state, Created: c.created, Labels: c.spec.Labels, Isolation: c.isolation(), Limits: c.spec.Limits}
}

// List returns every sandbox, oldest first.
func (m *Manager) List() []Info {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.containers))
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *container) int { return a.created.Compare(b.created) })
	infos := make([]Info, len(all))
	for i, c := range all {
		infos[i] = c.info()
	}
	return infos
}

// Close deletes the remaining sandboxes and refuses new ones. Close may be called twice.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	ids := slices.Collect(maps.Keys(m.containers))
	m.mu.Unlock()
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { errs[i] = m.Delete(context.Background(), id) })
	}
	wg.Wait()
	m.creating.Wait()
	return errors.Join(errs...)
}

package helper

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// phase is an init and the programs that it has started.
type phase struct {
	name  string
	init  *spawn.Init
	tasks int // guarded by server.mu
	began marks

	once    sync.Once
	read    uint64
	written uint64
	problem string
}

// program is a started program.
type program struct {
	*spawn.Program
	phase *phase

	watch   *seccomp.RefusalCounter
	told    chan struct{} // closed when all kinds of refusals were reported
	unknown string
	seen    containerproto.Started
	finish  sync.Once
}

// maxTries bounds how often a program is started again because its phase has just ended.
const maxTries = 16

// exec starts a program and answers.
func (s *server) exec(id uint32, e *containerproto.Exec) {
	p, err := s.start(id, e)
	if err != nil {
		_ = s.conn.Send(containerproto.KindFailed, id, initproto.Encode(failed(err))[initproto.HeaderSize:])
		return
	}
	in := s.conn.Inlet(containerproto.Stream(id, 0))
	if s.conn.Send(containerproto.KindStarted, id, containerproto.Message(&p.seen)) != nil {
		return // the supervisor has ended, and this process ends as well
	}
	go copyInput(p, in)
	go func() {
		copyOutput(p, s.conn.Outlet(containerproto.Stream(id, 1)))
		_ = in.Close()
		p.Close()
	}()
	go s.reportRefusals(id, p)
	go func() {
		var x containerproto.Exited
		x.Code, x.Signal = p.Wait()
		x.Took, _ = p.Took()
		x.Lost, x.NoRoutes = p.Lost(), p.NoRoutes()
		_ = s.conn.Send(containerproto.KindExited, id, containerproto.Message(&x))
	}()
}

// failed returns the stage in which the start of a program has failed, as the init reports it where possible.
func failed(err error) *initproto.Failed {
	var e *spawn.Error
	if errors.As(err, &e) {
		return &initproto.Failed{Stage: e.Stage, Detail: e.Detail, Errno: uint32(e.Errno)}
	}
	return &initproto.Failed{Stage: initproto.StageProtocol, Detail: err.Error(), Errno: uint32(errnoOf(err))}
}

func (s *server) start(id uint32, e *containerproto.Exec) (*program, error) {
	for tries := 1; ; tries++ {
		p, err := s.startOnce(id, e)
		// The last program of the phase ended, and the init with it, just before this one started.
		if errors.Is(err, spawn.ErrGone) && tries < maxTries {
			continue
		}
		return p, err
	}
}

func (s *server) startOnce(id uint32, e *containerproto.Exec) (*program, error) {
	s.mu.Lock()
	filter, err := s.filter(e.Policy)
	var ph *phase
	if err == nil {
		ph, err = s.enterPhaseLocked(e.Phase)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	m := e.Exec
	m.ID, m.Seccomp = uint64(id)+1, filter // 0 is the setup's
	for n := range m.Rlimits {             // more than the engine's limits would need a capability that no process has here
		l := &m.Rlimits[n]
		var own unix.Rlimit
		if unix.Getrlimit(int(l.Resource), &own) == nil {
			l.Max = min(l.Max, own.Max)
			l.Soft = min(l.Soft, l.Max)
		}
	}
	if len(m.Paths) == 0 && len(m.Args) > 0 {
		m.Paths = spawn.Candidates(m.Args[0], searchPath(m.Env))
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var examiner spawn.Examiner
	look := &measurement{rlimits: m.Rlimits}
	if e.Policy.Notify { // else the process would not wait for the measurement
		examiner = look
	}
	started, err := ph.init.Run(ctx, &m, nil, nil, examiner)
	if err != nil {
		if errors.Is(err, spawn.ErrGone) {
			<-ph.init.Done() // its socket has ended; now all users of the phase know
		}
		if s.leavePhase(ph) {
			s.endPhase(ph)
		}
		return nil, err
	}
	p := &program{Program: started, phase: ph, told: make(chan struct{})}
	if started.Examined() {
		p.seen = containerproto.Started{Measured: look.seen}
	}
	if e.Policy.Notify {
		p.countRefusals(e.Policy)
	}
	s.mu.Lock()
	s.programs[id] = p
	s.mu.Unlock()
	return p, nil
}

// countRefusals counts refused calls.
func (p *program) countRefusals(policy seccomp.Policy) {
	err := seccomp.Notifiable()
	if err == nil {
		err = errors.New("the kernel returned no listener for the filter")
		if l := p.TakeListener(); l != nil {
			p.watch, err = seccomp.NewRefusalCounter(l, policy)
		}
	}
	if err != nil {
		p.unknown = err.Error()
	}
}

// reportRefusals sends each kind of refusal when it occurs for the first time.
func (s *server) reportRefusals(id uint32, p *program) {
	defer close(p.told)
	if p.watch == nil {
		return
	}
	for r := range p.watch.First() {
		_ = s.conn.Send(containerproto.KindRefusal, id, containerproto.Message(&r))
	}
}

func searchPath(env []string) string {
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			return p
		}
	}
	return ""
}

// copyInput copies input to a program, until either side ends.
func copyInput(p *program, in *containerproto.Inlet) {
	stdin := p.Stdin()
	_, err := io.Copy(stdin, in)
	if err == nil {
		_ = stdin.Close() // the end of the input
	}
	_ = in.Close()
}

// copyOutput copies the output of a program, in the order of its writes, until the program closes it or the backend wants no more.
func copyOutput(p *program, to *containerproto.Outlet) {
	buf := make([]byte, containerproto.MaxData)
	for {
		stream, n, err := p.ReadOutput(buf[containerproto.OutputHeader:])
		if n > 0 {
			containerproto.PutOutputHeader(buf, stream, n)
			if _, err := to.Write(buf[:containerproto.OutputHeader+n]); err != nil {
				break
			}
		}
		if err != nil { // the end, which is EIO for a terminal
			break
		}
	}
	p.CloseOutput() // a program that goes on writing gets SIGPIPE
	_ = to.Close()
}

// enterPhaseLocked finds the phase of a program, or makes it.
func (s *server) enterPhaseLocked(name string) (*phase, error) {
	if p := s.phases[name]; p != nil {
		select {
		case <-p.init.Done():
		default:
			p.tasks++
			return p, nil
		}
	}
	i := s.spare
	s.spare = nil
	if i == nil {
		var err error
		if i, err = s.newInit(context.Background()); err != nil {
			return nil, err
		}
	}
	if len(s.phases) == 0 { // the counters are of this phase alone
		s.counts.reserveTasks(s.setup.ReservedTasks, i)
	}
	p := &phase{name: name, init: i, tasks: 1, began: s.counts.mark()}
	s.phases[name] = p
	return p, nil
}

// leavePhase removes a program from its phase and reports whether it was the last.
func (s *server) leavePhase(p *phase) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.tasks--
	return p.tasks == 0
}

// killPhase ends a phase at once. If it is the only one in the container, the kernel kills it in one step, which no fork escapes;
// otherwise its init does.
func (s *server) killPhase(p *phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killLocked(p)
}

func (s *server) killLocked(p *phase) {
	alone := true
	for _, other := range s.phases {
		alone = alone && (other == p)
	}
	if alone && s.spare == nil {
		_ = unix.Kill(-1, unix.SIGKILL) // all processes of the container but this one; ESRCH: there is none
	} else {
		p.init.HangUp()
	}
}

// endTimeout bounds the wait for the processes of a killed phase.
const endTimeout = 2 * time.Second

// endPhase ends a phase and reaps its processes. It may be called twice.
func (s *server) endPhase(p *phase) {
	p.once.Do(func() {
		s.killPhase(p)
		look := func(pid int) {
			var sum unix.Rusage // of the init, and of all that it has reaped
			if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, &sum) == nil {
				p.read, p.written = uint64(sum.Inblock)*512, uint64(sum.Oublock)*512
			}
		}
		if !p.init.Reap(endTimeout, look) {
			p.init.Kill()
			p.problem = "a process of the sandbox does not end: it sleeps in the kernel and takes no signal"
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = p.began
		if s.phases[p.name] == p {
			delete(s.phases, p.name)
		}
		if len(s.phases) == 0 && s.spare == nil {
			reapOrphans()
		}
	})
}

// reapOrphans reaps processes whose init ended before them. No init runs, so none is reaped by mistake.
func reapOrphans() {
	for deadline := time.Now().Add(endTimeout); time.Now().Before(deadline); {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		if err == unix.EINTR || pid > 0 {
			continue
		}
		if err != nil {
			return // no process is left
		}
		time.Sleep(time.Millisecond) // killed, and not ended yet
	}
}

// finish ends the other processes of a phase, if the program was its last, and sends what was used.
func (s *server) finish(id uint32) {
	p := s.program(id)
	if p == nil {
		_ = s.conn.Send(containerproto.KindFinished, id, containerproto.Message(&containerproto.Finished{Problem: "no such program"}))
		return
	}
	p.finish.Do(func() {
		p.CloseInput()
		f := containerproto.Finished{Unknown: p.unknown}
		last := s.leavePhase(p.phase)
		if last {
			s.endPhase(p.phase)
			f.Problem = p.phase.problem
		}
		if p.watch != nil {
			p.watch.Close()
			<-p.told
			f.Refusals, f.Saturated = p.watch.Refusals()
		}
		f.Counters = s.counts.since(p.phase.began, nil)
		f.Counters.IORead, f.Counters.IOWrite = p.phase.read, p.phase.written
		s.mu.Lock()
		delete(s.programs, id)
		s.mu.Unlock()
		_ = s.conn.Send(containerproto.KindFinished, id, containerproto.Message(&f))
	})
}

// sample is what the container has used since the start of the oldest running phase.
func (s *server) sample() *containerproto.Counters {
	s.mu.Lock()
	since := s.ended // if no phase runs, the request is late and means the phase that ended last
	found := false
	var inits []*spawn.Init
	for _, p := range s.phases {
		inits = append(inits, p.init)
		if !found || p.began.cpuUser+p.began.cpuSystem < since.cpuUser+since.cpuSystem {
			since, found = p.began, true
		}
	}
	s.mu.Unlock()
	c := s.counts.since(since, inits)
	return &c
}

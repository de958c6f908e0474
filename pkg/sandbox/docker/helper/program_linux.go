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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
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

// program is one that was started.
type program struct {
	*spawn.Program
	phase *phase

	watch   *seccomp.RefusalCounter
	told    chan struct{} // closed when all kinds of refusals were told of
	unknown string
	seen    wire.Started
	finish  sync.Once
}

// maxTries bounds how often a program may come too late for its phase.
const maxTries = 16

// exec starts a program and answers.
func (s *server) exec(id uint32, e *wire.Exec) {
	p, err := s.start(id, e)
	if err != nil {
		_ = s.conn.Send(wire.KindFailed, id, failed(err).Encode()[initproto.HeaderSize:])
		return
	}
	in := s.conn.Inlet(wire.Stream(id, 0))
	if s.conn.Send(wire.KindStarted, id, wire.Message(&p.seen)) != nil {
		return // the supervisor is gone: so are we
	}
	go feed(p, in)
	var pumps sync.WaitGroup
	pumps.Go(func() { drain(p.Stdout(), s.conn.Outlet(wire.Stream(id, 1))) })
	if out := p.Stderr(); out != nil {
		pumps.Go(func() { drain(out, s.conn.Outlet(wire.Stream(id, 2))) })
	}
	go func() {
		pumps.Wait()
		_ = in.Close()
		p.Close()
	}()
	go s.tell(id, p)
	go func() {
		var x wire.Exited
		x.Code, x.Signal = p.Wait()
		x.Took, _ = p.Took()
		x.Lost = p.Lost()
		_ = s.conn.Send(wire.KindExited, id, wire.Message(&x))
	}()
}

// failed says where starting a program has failed, in the init's words where they are its.
func failed(err error) *initproto.Failed {
	var e *spawn.Error
	if errors.As(err, &e) {
		return &initproto.Failed{Stage: e.Stage, Detail: e.Detail, Errno: uint32(e.Errno)}
	}
	return &initproto.Failed{Stage: initproto.StageProtocol, Detail: err.Error(), Errno: uint32(errnoOf(err))}
}

func (s *server) start(id uint32, e *wire.Exec) (*program, error) {
	for tries := 1; ; tries++ {
		p, err := s.startOnce(id, e)
		// The last of its programs ended, and the init with it, just when this one came.
		if errors.Is(err, spawn.ErrGone) && tries < maxTries {
			continue
		}
		return p, err
	}
}

func (s *server) startOnce(id uint32, e *wire.Exec) (*program, error) {
	s.mu.Lock()
	filter, err := s.filter(e.Policy)
	var ph *phase
	if err == nil {
		ph, err = s.enterLocked(e.Phase)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	m := e.Exec
	m.ID, m.Seccomp = uint64(id)+1, filter // 0 is the setup's
	for n := range m.Rlimits {             // more than the engine has given takes a capability that nobody here has
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
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	var examiner spawn.Examiner
	look := &look{rlimits: m.Rlimits}
	if e.Policy.Notify { // else nothing would hold the process
		examiner = look
	}
	started, err := ph.init.Run(ctx, &m, nil, nil, examiner)
	if err != nil {
		if errors.Is(err, spawn.ErrGone) {
			<-ph.init.Done() // its socket has ended; now everybody knows
		}
		if s.leave(ph) {
			s.end(ph)
		}
		return nil, err
	}
	p := &program{Program: started, phase: ph, told: make(chan struct{})}
	if started.Examined() {
		p.seen = wire.Started{Measured: look.seen}
	}
	if e.Policy.Notify {
		p.listen(e.Policy)
	}
	s.mu.Lock()
	s.programs[id] = p
	s.mu.Unlock()
	return p, nil
}

// listen counts refused calls.
func (p *program) listen(policy seccomp.Policy) {
	err := seccomp.Notifiable()
	if err == nil {
		err = errors.New("the kernel gave no listener to their filter")
		if l := p.TakeListener(); l != nil {
			p.watch, err = seccomp.NewRefusalCounter(l, policy)
		}
	}
	if err != nil {
		p.unknown = err.Error()
	}
}

// tell passes each kind of refusal on when it is first seen.
func (s *server) tell(id uint32, p *program) {
	defer close(p.told)
	if p.watch == nil {
		return
	}
	for r := range p.watch.First() {
		_ = s.conn.Send(wire.KindRefusal, id, wire.Message(&r))
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

// feed carries input to a program, until either has had enough.
func feed(p *program, in *wire.Inlet) {
	stdin := p.Stdin()
	_, err := io.Copy(stdin, in)
	if err == nil {
		_ = stdin.Close() // the end of the input
	}
	_ = in.Close()
}

// drain carries output away, until the program has no more or nobody wants it.
func drain(from io.ReadCloser, to *wire.Outlet) {
	buf := make([]byte, wire.MaxData)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				break
			}
		}
		if err != nil { // the end; EIO is how a terminal says it
			break
		}
	}
	_ = from.Close() // a program that goes on writing is told
	_ = to.Close()
}

// enterLocked finds the phase a program belongs to, or makes it.
func (s *server) enterLocked(name string) (*phase, error) {
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
	if len(s.phases) == 0 { // nobody else is counted
		s.counts.load(s.setup.Ballast, i)
	}
	p := &phase{name: name, init: i, tasks: 1, began: s.counts.mark()}
	s.phases[name] = p
	return p, nil
}

// leave gives up a program's place and reports whether it was the last.
func (s *server) leave(p *phase) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.tasks--
	return p.tasks == 0
}

// kill ends a phase at once. Alone in the container it is ended by the kernel in one step, which no fork outruns; beside
// others its init sees to it.
func (s *server) kill(p *phase) {
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
		_ = unix.Kill(-1, unix.SIGKILL) // everybody in the container but us; ESRCH: there is nobody
	} else {
		p.init.HangUp()
	}
}

// endPatience is how long the kernel may take to bury a phase that was killed.
const endPatience = 2 * time.Second

// end ends what is left of a phase and buries it. Idempotent.
func (s *server) end(p *phase) {
	p.once.Do(func() {
		s.kill(p)
		look := func(pid int) {
			var sum unix.Rusage // the init's own, and that of all it has buried
			if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, &sum) == nil {
				p.read, p.written = uint64(sum.Inblock)*512, uint64(sum.Oublock)*512
			}
		}
		if !p.init.Reap(endPatience, look) {
			p.init.Kill()
			p.problem = "a process of the sandbox is in the kernel where no signal reaches it"
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = p.began
		if s.phases[p.name] == p {
			delete(s.phases, p.name)
		}
		if len(s.phases) == 0 && s.spare == nil {
			buryStrays()
		}
	})
}

// buryStrays takes leave of what came to us when its init had gone before it. No init is alive, so none is taken by mistake.
func buryStrays() {
	for deadline := time.Now().Add(endPatience); time.Now().Before(deadline); {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		if err == unix.EINTR || pid > 0 {
			continue
		}
		if err != nil {
			return // nobody is left
		}
		time.Sleep(time.Millisecond) // killed, and not gone yet
	}
}

// finish ends what a program has left running, if it was the last of its phase, and says what was used.
func (s *server) finish(id uint32) {
	p := s.program(id)
	if p == nil {
		_ = s.conn.Send(wire.KindFinished, id, wire.Message(&wire.Finished{Problem: "there is no such program"}))
		return
	}
	p.finish.Do(func() {
		p.CloseInput()
		f := wire.Finished{Unknown: p.unknown}
		last := s.leave(p.phase)
		if last {
			s.end(p.phase)
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
		_ = s.conn.Send(wire.KindFinished, id, wire.Message(&f))
	})
}

// sample is what the container uses now, since the oldest phase that lives began.
func (s *server) sample() *wire.Counters {
	s.mu.Lock()
	since := s.ended // where nothing runs, who asks is late, and means what has just ended
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

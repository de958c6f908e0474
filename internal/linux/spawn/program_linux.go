package spawn

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
)

// Program is one program an init runs, with the supervisor's ends of its pipes or its terminal.
type Program struct {
	running
	init  *Init
	id    uint64
	stdin *os.File // nil with a terminal
	out   *outputs // nil with a terminal

	once         sync.Once
	code, signal int
	lost         bool
	took         time.Duration
	noRoutes     uint64
	maxRSS       uint64
}

// ErrNoTerminal is the error of Resize for a program without a terminal.
var ErrNoTerminal = errors.New("the program has no terminal")

// Examiner inspects processes that wait between the filter and the exec of their program.
type Examiner interface {
	// Prepare is called while the init starts the process, for values that can be read without it.
	Prepare()
	// Examine inspects the process, and does not answer the probe. An error ends the process, and is the error of the
	// start.
	Examine(*seccomp.Probe) error
}

// Run executes a program. m has everything but the descriptors, which Run makes: pipes unless a terminal is requested
// (one for stdout and stderr if m.Merged is set; a socket for standard input if m.Socket is set), and the given cgroups to join or, where
// the kernel can, the one to start in (nil is none). With an examiner, the examiner inspects the process before the exec, if the kernel has a
// listener for its filter: see Examined. The caller closes the Program.
func (i *Init) Run(ctx context.Context, m *initproto.Exec, cgroups []*os.File, intoCgroup *os.File, examiner Examiner) (*Program, error) {
	p := &Program{init: i, id: m.ID}
	var fds []int
	m.Stdio = [3]int{-1, -1, -1}
	if !m.Terminal {
		theirs, err := p.openPipes(m.Socket)
		defer closeFDs(theirs)
		if err != nil {
			p.Close()
			return nil, err
		}
		fds = append(fds, theirs...)
		if m.Stdio = [3]int{0, 1, 2}; m.Merged {
			m.Stdio[2] = m.Stdio[1] // the pipe of stderr ends as soon as theirs is closed
		}
	}
	for _, f := range cgroups {
		m.Cgroups = append(m.Cgroups, len(fds))
		fds = append(fds, int(f.Fd()))
	}
	m.IntoCgroup = -1
	if intoCgroup != nil {
		m.IntoCgroup = len(fds)
		fds = append(fds, int(intoCgroup.Fd()))
	}
	var err error
	if p.running, err = i.exec(ctx, m, fds, examiner); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// RunOnTerminal executes a program on a terminal whose master this process has: m.Relay names the process at the other
// end. The Program owns the master from here on.
func (i *Init) RunOnTerminal(ctx context.Context, m *initproto.Exec, master *os.File) (*Program, error) {
	m.Stdio, m.IntoCgroup = [3]int{-1, -1, -1}, -1
	r, err := i.exec(ctx, m, nil, nil)
	if err != nil {
		_ = master.Close()
		return nil, err
	}
	r.master = master
	return &Program{running: r, init: i, id: m.ID}, nil
}

// openPipes makes the three pipes, or a socket in place of the first, and returns the program's ends. Only the supervisor's ends are
// non-blocking: a program with a non-blocking stdout would lose output.
func (p *Program) openPipes(socket bool) (theirs []int, err error) {
	var ours [3]int
	for n := range ours {
		var fd [2]int
		if n == 0 && socket {
			fd, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		} else {
			err = unix.Pipe2(fd[:], unix.O_CLOEXEC)
		}
		if err != nil {
			closeFDs(ours[:n])
			return theirs, err
		}
		ours[n] = fd[0]
		other := fd[1]
		if n == 0 {
			ours[n], other = fd[1], fd[0]
		}
		theirs = append(theirs, other)
	}
	if p.out, err = newOutputs(ours[1], ours[2]); err == nil {
		err = unix.SetNonblock(ours[0], true)
	}
	p.stdin = os.NewFile(uintptr(ours[0]), "stdin")
	for _, fd := range theirs {
		if err == nil {
			// The program has another user id, and opens /dev/stdin and /dev/stdout by their names: no other process can
			// reach them.
			err = unix.Fchmod(fd, 0o666)
		}
	}
	return theirs, err
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Close closes the pipes, the terminal and the listener. It may be called twice.
func (p *Program) Close() {
	closeFiles([]*os.File{p.stdin, p.listener}) // nil is allowed
	p.CloseOutput()
}

// TakeListener returns the descriptor by which the kernel reports refused system calls, non-blocking; the caller owns
// it. It returns nil if the program's filter does not notify, or this kernel can not.
func (p *Program) TakeListener() *os.File {
	f := p.listener
	p.listener = nil
	return f
}

// Examined reports whether the process was inspected before the exec.
func (p *Program) Examined() bool { return p.examined }

// CloseInput ends the program's input, and a write to it that is in progress.
func (p *Program) CloseInput() {
	closeFiles([]*os.File{p.stdin}) // nil with a terminal
}

// Stdin is the standard input of the program; with a terminal, its typed input.
func (p *Program) Stdin() io.WriteCloser {
	if p.master != nil {
		return typist{p.master}
	}
	return p.stdin
}

// Socket is this process's end of the socket that is the program's standard input. The kernel discards descriptors that the program sends.
func (p *Program) Socket() io.ReadWriteCloser { return p.stdin }

// StopAtEmpty makes ReadOutput return ErrNoOutput, now and from now on, when all output that was written has been read; false makes it
// wait again.
func (p *Program) StopAtEmpty(stop bool) {
	if p.out != nil {
		p.out.stopAtEmpty(stop)
	}
}

// AwaitEmpty waits until ReadOutput has read all output that was written so far, but no longer than that.
func (p *Program) AwaitEmpty(atMost time.Duration) {
	for end := time.Now().Add(atMost); p.out != nil && p.out.unread() && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

// typist writes to a terminal; its end of input is a keystroke, because closing would hang up.
type typist struct{ *os.File }

const endOfInput = 4 // Ctrl-D

func (t typist) Close() error {
	_, err := t.Write([]byte{endOfInput})
	return err
}

// ReadOutput reads from stdout (stream 0) or stderr (1): from the one that has the oldest unread data. On a terminal, and
// merged, all output is stdout. It returns an error when both have ended. Only one goroutine may read.
func (p *Program) ReadOutput(b []byte) (stream, n int, err error) {
	if p.master != nil {
		n, err = p.master.Read(b) // at its end EIO
		return 0, n, err
	}
	return p.out.read(b)
}

// CloseOutput ends ReadOutput; a program that goes on writing gets SIGPIPE or, on a terminal, SIGHUP. It may be called
// twice.
func (p *Program) CloseOutput() {
	closeFiles([]*os.File{p.master}) // nil is allowed
	if p.out != nil {
		p.out.close()
	}
}

// Signal reaches the program, or all programs of its init.
func (p *Program) Signal(sig syscall.Signal, everyone bool) error {
	return p.init.Signal(&initproto.Signal{ID: p.id, All: everyone, Num: uint32(sig)})
}

// ErrNoHandler is the error of SignalHandler for a program without a handler.
var ErrNoHandler = errors.New("the program has no handler for the signal")

// SignalHandler reaches the program if it has a handler for the signal, and if the kernel says so. A program that another one has replaced
// has none of its handlers. The init itself sees no /proc of another user.
func (p *Program) SignalHandler(sig syscall.Signal) error {
	tasks := "/proc/" + strconv.Itoa(cmp.Or(p.init.containerPID, p.init.pid)) + "/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return ErrNoHandler
	}
	for _, thread := range threads {
		children, _ := os.ReadFile(tasks + "/" + thread.Name() + "/children")
		for child := range strings.FieldsSeq(string(children)) {
			status, _ := os.ReadFile("/proc/" + child + "/status")
			pids := strings.Fields(statusField(status, "NSpid"))
			if len(pids) == 0 || pids[len(pids)-1] != strconv.Itoa(p.pid) {
				continue
			}
			caught, err := strconv.ParseUint(statusField(status, "SigCgt"), 16, 64)
			if err != nil || sig < 1 || sig > 64 || caught>>(sig-1)&1 == 0 {
				return ErrNoHandler
			}
			return p.Signal(sig, false)
		}
	}
	return ErrNoHandler
}

// statusField returns the value of a field of /proc/PID/status.
func statusField(status []byte, name string) string {
	_, rest, _ := strings.Cut(string(status), "\n"+name+":\t")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// Resize sets the size of the terminal.
func (p *Program) Resize(rows, cols uint16) error {
	if p.master == nil {
		return ErrNoTerminal
	}
	raw, err := p.master.SyscallConn()
	if err != nil {
		return err
	}
	var ioctlErr error
	err = raw.Control(func(fd uintptr) {
		ioctlErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	return errors.Join(err, ioctlErr)
}

// Wait blocks until the program has ended: by itself with a code, or by a signal. If the init ended first, the program
// ended with it, and the signal is SIGKILL.
func (p *Program) Wait() (code, signal int) {
	p.once.Do(func() {
		ended, ok := <-p.ended
		ws := unix.WaitStatus(ended.status)
		p.noRoutes, p.maxRSS = ended.noRoutes, ended.maxRSS
		if ok && ended.at > p.began {
			p.took = time.Duration(ended.at - p.began)
		}
		switch {
		case !ok:
			p.signal, p.lost = int(unix.SIGKILL), true
		case ws.Signaled():
			p.signal = int(ws.Signal())
		default:
			p.code = ws.ExitStatus()
		}
	})
	return p.code, p.signal
}

// Lost reports that the init ended first, so that the program's own exit is not known.
func (p *Program) Lost() bool {
	p.Wait()
	return p.lost
}

// Took is how long the program ran, from its exec to its end; false if its end was not reported.
func (p *Program) Took() (time.Duration, bool) {
	p.Wait()
	return p.took, p.took > 0
}

// NoRoutes is how many connections and packets of the init's programs had no route until the program's end.
func (p *Program) NoRoutes() uint64 {
	p.Wait()
	return p.noRoutes
}

// MaxRSS is the highest resident memory of one of the init's processes until the program's end; 0 if it is not known.
func (p *Program) MaxRSS() uint64 {
	p.Wait()
	return p.maxRSS
}

// Bounds of a search. A name can not be longer, nor can a directory; of a longer PATH only the first directories are
// searched.
const (
	maxName       = 255
	maxPath       = 4096
	maxCandidates = 128
)

// Candidates are the files that a program's name may refer to, in the order of execvp.
func Candidates(name, search string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	if len(name) > maxName {
		return []string{"./" + name} // the exec reports the error
	}
	var list []string
	for dir := range strings.SplitSeq(search, ":") {
		file := "./" + name
		if dir != "" && dir != "." {
			file = path.Join(dir, name)
		}
		if len(file) >= maxPath || slices.Contains(list, file) {
			continue
		}
		if list = append(list, file); len(list) == maxCandidates {
			break
		}
	}
	return list
}

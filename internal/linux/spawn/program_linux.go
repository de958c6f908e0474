package spawn

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
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
	pipes [3]*os.File // stdin, stdout, stderr; nil with a terminal

	once         sync.Once
	code, signal int
	lost         bool
	took         time.Duration
}

// ErrNoTerminal is the error of resizing what is not there.
var ErrNoTerminal = errors.New("the program has no terminal")

// Examiner looks at processes that wait between their last wall and their program.
type Examiner interface {
	// Prepare is called while the init starts the process, for what can be read without it.
	Prepare()
	// Examine looks at the process, and does not answer the probe. An error ends the process, and is the error of the start.
	Examine(*seccomp.Probe) error
}

// Run executes a program. m names everything but the descriptors, which Run makes: pipes unless a
// terminal is asked for, and the given cgroups to join or, where the kernel lets it, the one to be born in (nil is none).
// With an examiner, the program is not executed before its process was looked at, if the kernel has a listener for its filter: see
// Examined. The caller closes the Program.
func (i *Init) Run(ctx context.Context, m *initproto.Exec, cgroups []*os.File, intoCgroup *os.File, examiner Examiner) (*Program, error) {
	p := &Program{init: i, id: m.ID}
	var fds []int
	m.Stdio = [3]int{-1, -1, -1}
	if !m.Terminal {
		theirs, err := p.openPipes()
		defer closeFDs(theirs)
		if err != nil {
			p.Close()
			return nil, err
		}
		fds = append(fds, theirs...)
		m.Stdio = [3]int{0, 1, 2}
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

// RunOnTerminal executes a program on a terminal whose master is ours: m.Relay says who has the other end. The master is the Program's to
// close from here on.
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

// openPipes makes the three pipes and returns the program's ends. Only our own ends are
// non-blocking: a program that finds its stdout so would lose output.
func (p *Program) openPipes() (theirs []int, err error) {
	for n, name := range [...]string{"stdin", "stdout", "stderr"} {
		var fd [2]int
		if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
			return theirs, err
		}
		ours, other := fd[0], fd[1]
		if n == 0 {
			ours, other = fd[1], fd[0]
		}
		theirs = append(theirs, other)
		// The program is another user, and opens /dev/stdin and /dev/stdout by their names: no other process can reach them.
		if err := unix.Fchmod(other, 0o666); err != nil {
			_ = unix.Close(ours)
			return theirs, err
		}
		if err := unix.SetNonblock(ours, true); err != nil {
			_ = unix.Close(ours)
			return theirs, err
		}
		p.pipes[n] = os.NewFile(uintptr(ours), name)
	}
	return theirs, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Close lets go of the pipes, the terminal and the listener. Twice is fine.
func (p *Program) Close() {
	for _, f := range [...]*os.File{p.pipes[0], p.pipes[1], p.pipes[2], p.master, p.listener} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// TakeListener returns what the kernel tells of refused system calls through, non-blocking and the caller's from here
// on; nil if the program's filter does not notify, or this kernel can not.
func (p *Program) TakeListener() *os.File {
	f := p.listener
	p.listener = nil
	return f
}

// Examined reports whether the process was looked at before it was executed.
func (p *Program) Examined() bool { return p.examined }

// CloseInput ends the program's input, and any write to it that is under way.
func (p *Program) CloseInput() {
	if p.pipes[0] != nil {
		_ = p.pipes[0].Close()
	}
}

// Stdin is where the program reads from; with a terminal, what is typed.
func (p *Program) Stdin() io.WriteCloser {
	if p.master != nil {
		return typist{p.master}
	}
	return p.pipes[0]
}

// typist writes to a terminal; its end of input is a keystroke, because closing would hang up.
type typist struct{ *os.File }

const endOfInput = 4 // Ctrl-D

func (t typist) Close() error {
	_, err := t.Write([]byte{endOfInput})
	return err
}

// Stdout is what the program prints; with a terminal, the terminal.
func (p *Program) Stdout() io.ReadCloser {
	if p.master != nil {
		return p.master
	}
	return p.pipes[1]
}

// Stderr is nil with a terminal.
func (p *Program) Stderr() io.ReadCloser {
	if p.master != nil {
		return nil
	}
	return p.pipes[2]
}

// Signal reaches the program, or everything its init holds.
func (p *Program) Signal(sig syscall.Signal, everyone bool) error {
	return p.init.Signal(initproto.Signal{ID: p.id, All: everyone, Num: uint32(sig)})
}

// Resize tells the terminal its size.
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

// Wait blocks until the program has ended: by itself with a code, or by a signal. When the init
// went first it took the program along, and the signal is SIGKILL.
func (p *Program) Wait() (code, signal int) {
	p.once.Do(func() {
		ended, ok := <-p.ended
		ws := unix.WaitStatus(ended.status)
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

// Lost: the init ended first, and how the program ended is not known.
func (p *Program) Lost() bool {
	p.Wait()
	return p.lost
}

// Took is how long the program ran, from its execution to its end; false when its end was not seen.
func (p *Program) Took() (time.Duration, bool) {
	p.Wait()
	return p.took, p.took > 0
}

// Bounds of a search. A name can not be longer, nor can a directory; and who has more of them in PATH than
// this looks through the first ones.
const (
	maxName       = 255
	maxPath       = 4096
	maxCandidates = 128
)

// Candidates are the files a program's name may mean, as execvp looks for them.
func Candidates(name, search string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	if len(name) > maxName {
		return []string{"./" + name} // the kernel says what is wrong with it
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

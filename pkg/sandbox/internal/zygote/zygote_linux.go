package zygote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
)

// Zygote is an interpreter that is forked from. It owns the process and the supervisor's ends of its descriptors.
type Zygote struct {
	// Mounts is the zygote's mount namespace. A fork shows the files that it was loaded from as long as the namespace
	// exists.
	Mounts *os.File

	pid     int
	pidfd   int // the watcher's
	control *os.File
	life    *os.File
	stderr  *os.File

	done    chan struct{}
	closing sync.Once

	mu      sync.Mutex
	printed []byte
}

// maxRequest is larger than any request.
const maxRequest = 4 << 20

// ErrGone is the error of a zygote that ended.
var ErrGone = errors.New("the warm interpreter is gone")

// Failure is the error of a fork. No code of the program has run.
type Failure struct {
	Stage, Detail string
	Errno         syscall.Errno
}

func (f *Failure) Error() string {
	if f.Errno == 0 {
		return fmt.Sprintf("fork: %s (stage %s)", f.Detail, f.Stage)
	}
	return fmt.Sprintf("fork: %s: %s (stage %s)", f.Detail, f.Errno.Error(), f.Stage)
}

// Child is a started program.
type Child struct {
	PID      uint32   // in the sandbox
	At       uint64   // nanoseconds of the monotonic clock
	Listener *os.File // of its filter, or nil; the caller's
}

// PID is the zygote's process id, until it is Done.
func (z *Zygote) PID() int { return z.pid }

// Done is closed when the zygote has ended.
func (z *Zygote) Done() <-chan struct{} { return z.done }

// Close ends the zygote; its forks continue. It returns when the zygote is gone, and may be called twice.
func (z *Zygote) Close() {
	z.Kill()
	<-z.done
}

// Kill ends the zygote, even one that does not answer, and does not wait. It may be called twice.
func (z *Zygote) Kill() {
	z.closing.Do(func() {
		_ = z.life.Close() // the kernel kills it
		_ = z.control.Close()
	})
}

func (z *Zygote) closeFiles() {
	for _, f := range []*os.File{z.control, z.life, z.stderr} {
		_ = f.Close() // Close of nil is allowed
	}
}

// watch waits for the zygote's end, and reads its output. Only watch reaps the process.
func (z *Zygote) watch() {
	ended := os.NewFile(uintptr(z.pidfd), "zygote")
	var printing sync.WaitGroup
	printing.Go(func() {
		buf := make([]byte, 512)
		for {
			n, err := z.stderr.Read(buf)
			z.mu.Lock()
			z.printed = append(z.printed, buf[:min(n, maxSaid-len(z.printed))]...)
			z.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	go func() {
		if raw, err := ended.SyscallConn(); err == nil {
			_ = raw.Read(func(fd uintptr) bool {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(fds, 0)
				return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
			})
		}
		spawn.Reap(z.pid)
		_ = ended.Close()
		// A waiting child of the zygote ends with it; a working one may take a moment, and prints nothing.
		_ = z.stderr.SetReadDeadline(time.Now().Add(lastOutputTimeout))
		printing.Wait()
		z.closeFiles()
		close(z.done)
	}()
}

// lastOutputTimeout is how long the output of a dead zygote may take to arrive.
const lastOutputTimeout = 100 * time.Millisecond

// said is the output of the zygote.
func (z *Zygote) said() string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return strings.TrimSpace(string(z.printed))
}

// waitForReady waits for the driver's first message.
func (z *Zygote) waitForReady(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = z.control.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	m, err := receive(z.control)
	m.close()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF):
		return ErrGone
	case err != nil:
		return err
	case string(m.body) != readyMessage:
		return fmt.Errorf("the driver says %q", m.body)
	}
	return nil
}

// Fork is a process that was forked into a sandbox and waits there for its program. Its owner closes it.
type Fork struct {
	PID     int // of the process that waits, as this process sees it; 0 is unknown
	answers *os.File
}

// Fork forks a process, and returns when the process waits.
func (z *Zygote) Fork(ctx context.Context, p *Place) (_ *Fork, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	answers, err := pollable(pair[0], "fork")
	if err != nil {
		_ = unix.Close(pair[1])
		return nil, err
	}
	f := &Fork{answers: answers}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// One message has all arguments and variables of a program.
	_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, maxRequest)
	body, fds := p.encode()
	if err = send(answers, body, fds); err == nil {
		_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1) // for the first answer only: what is sent with it needs an address
		err = z.ask(pair[1], p.PIDNS, p.UserNS, p.Init)
	}
	_ = unix.Close(pair[1])
	if err != nil {
		return nil, err
	}
	answer, err := f.answer(ctx)
	_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 0)
	if err != nil || string(answer.body) == waitsMessage {
		answer.close()
		f.PID = answer.sender
		return f, err
	}
	_, err = parseAnswer(answer)
	return nil, err
}

// waitsMessage is the message of a forked process that waits.
const waitsMessage = "waits"

// Start turns the process into the program, and returns after its start. After an error, no code of the program has run
// or will run.
func (f *Fork) Start(ctx context.Context, r *Request) (Child, error) {
	body, fds := r.encode()
	if err := send(f.answers, body, fds); err != nil {
		return Child{}, err
	}
	answer, err := f.answer(ctx)
	if err != nil {
		return Child{}, err
	}
	return parseAnswer(answer)
}

// Alive reports whether the process waits, before it is started.
func (f *Fork) Alive() (alive bool) {
	raw, err := f.answers.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		alive = n == 0 && err == nil || errors.Is(err, unix.EINTR)
	})
	return alive && err == nil
}

// Close ends a process that has not started. It may be called twice.
func (f *Fork) Close() { _ = f.answers.Close() }

// answer waits for a message of the process. After the deadline the process can not start any more; if it has, answer
// returns that.
func (f *Fork) answer(ctx context.Context) (m message, err error) {
	stop := context.AfterFunc(ctx, func() { _ = f.answers.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	m, err = receive(f.answers)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if m, err = readLastMessage(f.answers); err != nil {
			return message{}, &Failure{Stage: "fork", Detail: "no answer in time"}
		}
	}
	if err != nil {
		return message{}, errors.Join(ErrGone, err)
	}
	return m, nil
}

// readLastMessage shuts a socket down and returns a message that came before.
func readLastMessage(answers *os.File) (m message, err error) {
	raw, err := answers.SyscallConn()
	if err != nil {
		return m, err
	}
	rawErr := raw.Control(func(fd uintptr) {
		if err = unix.Shutdown(int(fd), unix.SHUT_RD); err == nil {
			m, err = receiveFrom(int(fd))
		}
	})
	return m, errors.Join(rawErr, err)
}

// parseAnswer parses a driver's answer.
func parseAnswer(m message) (c Child, err error) {
	if len(m.files) > 0 {
		c.Listener, m.files = m.files[0], m.files[1:]
	}
	m.close()
	answer := m.body
	if _, err := fmt.Sscanf(string(answer), "began %d %d", &c.PID, &c.At); err == nil && c.PID > 1 {
		return c, nil
	}
	if c.Listener != nil {
		_ = c.Listener.Close()
	}
	f := &Failure{Stage: "protocol", Detail: fmt.Sprintf("the driver says %q", answer)}
	if rest, ok := bytes.CutPrefix(answer, []byte("failed ")); ok {
		var errno int
		stage, rest, _ := bytes.Cut(rest, []byte(" "))
		number, detail, _ := bytes.Cut(rest, []byte(" "))
		if _, err := fmt.Sscan(string(number), &errno); err == nil {
			*f = Failure{Stage: string(stage), Detail: string(detail), Errno: syscall.Errno(errno)}
		}
	}
	return Child{}, f
}

// ask makes the zygote fork a process that takes a request. It does not wait: an overloaded zygote is of no use.
func (z *Zygote) ask(fds ...int) error {
	select {
	case <-z.done:
		return ErrGone
	default:
	}
	return send(z.control, []byte(forkMessage), fds)
}

// forkMessage is the order to fork.
const forkMessage = "fork"

// send does not block. The error of a socket whose other end is gone wraps ErrGone.
func send(f *os.File, body []byte, fds []int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	rawErr := raw.Control(func(fd uintptr) {
		for {
			if err = unix.Sendmsg(int(fd), body, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	if err = errors.Join(rawErr, err); err != nil {
		err = fmt.Errorf("send request: %w", err)
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrClosed) {
		err = errors.Join(ErrGone, err)
	}
	return err
}

// message is a message from a socket.
type message struct {
	body   []byte
	files  []*os.File
	sender int // its pid, if the socket has SO_PASSCRED
}

func (m *message) close() {
	for _, f := range m.files {
		_ = f.Close()
	}
}

// receive waits for a message.
func receive(f *os.File) (m message, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return m, err
	}
	rawErr := raw.Read(func(fd uintptr) bool {
		m, err = receiveFrom(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	})
	return m, errors.Join(rawErr, err)
}

func receiveFrom(fd int) (m message, err error) {
	buf, oob := make([]byte, 4<<10), make([]byte, unix.CmsgSpace(4*4)+unix.CmsgSpace(unix.SizeofUcred))
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		// A process that ended without reading everything may have sent a message before: the message comes after that
		// error, which comes once.
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNRESET) {
			continue
		}
		if err != nil {
			return m, err
		}
		if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
			for i := range messages {
				if sender, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
					m.sender = int(sender.Pid)
				}
				if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
					for _, fd := range fds {
						_ = unix.SetNonblock(fd, true)
						m.files = append(m.files, os.NewFile(uintptr(fd), "listener"))
					}
				}
			}
		}
		if n == 0 {
			return m, io.EOF
		}
		m.body = buf[:n]
		return m, nil
	}
}

package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// settings of a server that one psql uses, and that is thrown away.
var settings = []string{
	"listen_addresses=", "unix_socket_permissions=0700",
	"fsync=off", "synchronous_commit=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0",
	"autovacuum=off", "max_logical_replication_workers=0", "max_worker_processes=4", "max_connections=20",
	"shared_buffers=16MB", "huge_pages=off", "dynamic_shared_memory_type=posix", "jit=off",
	"lc_messages=C", "timezone=UTC",
	// serverLog reads the log: the SQLSTATE of each error is first in its line.
	"logging_collector=off", "log_destination=stderr", "log_min_messages=error", "log_min_error_statement=panic",
	"log_error_verbosity=terse", "log_line_prefix=%e ",
}

// startTime bounds the start of the server; a busy machine is slow.
const startTime = time.Minute

// Run executes the scripts and returns nil, ErrFailed, ErrSyntax, or the error that kept it from executing them. It blocks
// until the server has stopped.
func Run(o Options) error {
	server, dir, err := startCopy(o)
	if err != nil {
		return err
	}
	if o.Await != nil {
		if o.Files, err = o.Await(); err != nil {
			server.stop()
			return err
		}
	}
	r := &recorder{}
	for _, name := range o.Files {
		text, _ := os.ReadFile(name) // psql reports the error
		r.scripts += string(text)
	}
	status, err := r.run(o, dir)
	server.stop()
	if err == nil && o.Tables != "" {
		err = r.tables.WriteFile(o.Tables)
	}
	switch {
	case err != nil:
		return err
	case status == 0:
		return nil
	case status == 3 && server.log.state == syntaxState && r.completed == 0:
		return ErrSyntax
	}
	return ErrFailed
}

// startCopy starts a server on a copy of the template, and returns the directory of its socket.
func startCopy(o Options) (_ *server, dir string, err error) {
	if _, err := os.Stat(filepath.Join(o.Template, mark)); err != nil {
		return nil, "", fmt.Errorf("template cluster: %w", err)
	}
	if dir, err = os.MkdirTemp("", "postgres-"); err != nil {
		return nil, "", err
	}
	cluster := filepath.Join(dir, "data")
	if err := os.CopyFS(cluster, os.DirFS(o.Template)); err != nil {
		return nil, "", fmt.Errorf("copy template cluster: %w", err)
	}
	if err := os.Chmod(cluster, 0o700); err != nil { // the server requires this mode
		return nil, "", err
	}
	s, err := start(o.Bin, cluster, dir)
	return s, dir, err
}

// socketName is the name of a server's socket in its directory, for the default port.
const socketName = ".s.PGSQL.5432"

// run executes the scripts with the recorder between psql and the server, and returns psql's exit status.
func (r *recorder) run(o Options, dir string) (int, error) {
	between := filepath.Join(dir, "psql")
	if err := os.Mkdir(between, 0o700); err != nil {
		return 0, err
	}
	l, err := net.Listen("unix", filepath.Join(between, socketName))
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.serve(l, filepath.Join(dir, socketName))
	}()
	status, err := psql(o, between)
	_ = l.Close() // psql has ended
	<-ended
	return status, err
}

// psqlCommand returns the command of psql, for the server with a socket in a directory.
func psqlCommand(o Options, socket string, args ...string) *exec.Cmd {
	all := []string{"--no-psqlrc", "--pset", "pager=off", "--host", socket, "--username", User, "--dbname", User}
	cmd := exec.Command(filepath.Join(o.Bin, "psql"), append(all, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.In, o.Out, o.Err
	cmd.Env = append(os.Environ(), "PGCLIENTENCODING=UTF8", "LC_MESSAGES=C")
	return cmd
}

// psql executes the scripts in one session and returns its exit status.
func psql(o Options, socket string) (int, error) {
	cmd := psqlCommand(o, socket, append([]string{"--set", "ON_ERROR_STOP=1"}, o.scripts()...)...)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return 0, fmt.Errorf("psql: %w", err)
	}
	return cmd.ProcessState.ExitCode(), nil
}

// server is a running server.
type server struct {
	cmd    *exec.Cmd
	log    serverLog
	exited chan struct{} // closed when it has ended and its log is read
}

// start returns when the server accepts connections.
func start(bin, cluster, socket string) (*server, error) {
	args := []string{"-D", cluster, "-k", socket}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	s := &server{cmd: exec.Command(filepath.Join(bin, "postgres"), args...), exited: make(chan struct{})}
	s.cmd.Stderr = &s.log
	changes, err := watchDir(cluster)
	if err != nil {
		return nil, err
	}
	defer changes.Close()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	go func() {
		_ = s.cmd.Wait() // the log has the reason
		close(s.exited)
		_ = changes.SetReadDeadline(time.Now()) // ends the wait for changes
	}()
	if err := changes.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		return nil, err
	}
	select {
	case <-s.exited: // before the deadline above was set
		return nil, s.failure()
	default:
	}
	buffer := make([]byte, 4096)
	for !ready(cluster) {
		if _, err := changes.Read(buffer); err == nil {
			continue
		}
		s.stop()
		return nil, s.failure()
	}
	return s, nil
}

func (s *server) failure() error {
	text := strings.TrimSpace(string(s.log.tail))
	if text == "" {
		text = s.cmd.ProcessState.String()
	}
	if strings.Contains(text, "shared memory") && strings.Contains(text, "Operation not permitted") {
		return fmt.Errorf("start server: the sandbox refuses shared memory, because a sandbox of the tier namespace can not limit it; "+
			"PostgreSQL needs the tier container: sandbox-run doctor names what it takes here (%s)", text)
	}
	return fmt.Errorf("start server: %s", text)
}

// watchDir returns a file that becomes readable at every change in a directory.
func watchDir(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// ready reads the server's state: the eighth line of its lock file.
func ready(cluster string) bool {
	text, err := os.ReadFile(filepath.Join(cluster, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"
}

// stop ends the server at once: no process reads what it has not written. It may be called twice.
func (s *server) stop() {
	select {
	case <-s.exited:
		return
	default:
	}
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-s.exited:
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
}

// serverLog keeps the end of the log, and the SQLSTATE of the last error in it.
type serverLog struct {
	tail  []byte
	state string
	line  []byte // the incomplete last line
}

func (l *serverLog) Write(p []byte) (int, error) {
	const most = 4096
	l.tail = append(l.tail, p...)
	if len(l.tail) > most {
		l.tail = append([]byte(nil), l.tail[len(l.tail)-most:]...)
	}
	for rest := p; len(rest) > 0; {
		piece, after, ended := bytes.Cut(rest, []byte("\n"))
		l.line = append(l.line, piece[:min(len(piece), 64-len(l.line))]...)
		if ended {
			if state, level, ok := bytes.Cut(l.line, []byte(" ")); ok && len(state) == 5 && bytes.HasPrefix(level, []byte("ERROR:")) {
				l.state = string(state)
			}
			l.line = l.line[:0]
		}
		rest = after
	}
	return len(p), nil
}

var _ io.Writer = (*serverLog)(nil)

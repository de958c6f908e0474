package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// settings of a server that nobody but one psql uses, and that is thrown away.
var settings = []string{
	"listen_addresses=", "unix_socket_permissions=0700",
	"fsync=off", "synchronous_commit=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0",
	"autovacuum=off", "max_logical_replication_workers=0", "max_worker_processes=4", "max_connections=20",
	"shared_buffers=16MB", "huge_pages=off", "dynamic_shared_memory_type=posix", "jit=off",
	"lc_messages=C", "timezone=UTC",
	// The log is ours to read: it has the SQLSTATE of each error, first in its line.
	"logging_collector=off", "log_destination=stderr", "log_min_messages=error", "log_min_error_statement=panic",
	"log_error_verbosity=terse", "log_line_prefix=%e ",
}

// startTime is the most that starting the server may take; a busy machine is slow.
const startTime = time.Minute

// Run executes the scripts and returns nil, ErrFailed, ErrSyntax, or what kept it from executing them.
func Run(o Options) error {
	if _, err := os.Stat(filepath.Join(o.Template, mark)); err != nil {
		return fmt.Errorf("template cluster: %w", err)
	}
	dir, err := os.MkdirTemp("", "postgres-")
	if err != nil {
		return err
	}
	cluster := filepath.Join(dir, "data")
	if err := os.CopyFS(cluster, os.DirFS(o.Template)); err != nil {
		return fmt.Errorf("copy template cluster: %w", err)
	}
	if err := os.Chmod(cluster, 0o700); err != nil { // the server insists
		return err
	}
	server, err := start(o.Bin, cluster, dir)
	if err != nil {
		return err
	}
	if o.Await != nil {
		if o.Files, err = o.Await(); err != nil {
			server.stop()
			return err
		}
	}
	status, err := psql(o, dir)
	server.stop()
	switch {
	case err != nil:
		return err
	case status == 0:
		return nil
	case status == 3 && server.log.state == syntaxState:
		return ErrSyntax
	}
	return ErrFailed
}

// psql executes the scripts in one session and returns its exit status.
func psql(o Options, socket string) (int, error) {
	args := []string{"--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--pset", "pager=off", "--host", socket, "--username", User, "--dbname", User}
	cmd := exec.Command(filepath.Join(o.Bin, "psql"), append(args, o.scripts()...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.In, o.Out, o.Err
	cmd.Env = append(os.Environ(), "PGCLIENTENCODING=UTF8", "LC_MESSAGES=C")
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return 0, fmt.Errorf("psql: %w", err)
	}
	return cmd.ProcessState.ExitCode(), nil
}

// server is a running one.
type server struct {
	cmd    *exec.Cmd
	log    serverLog
	exited chan struct{} // closed when it is gone and its log is read
}

// start returns when the server takes connections.
func start(bin, cluster, socket string) (*server, error) {
	args := []string{"-D", cluster, "-k", socket}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	s := &server{cmd: exec.Command(filepath.Join(bin, "postgres"), args...), exited: make(chan struct{})}
	s.cmd.Stderr = &s.log
	changes, err := watch(cluster)
	if err != nil {
		return nil, err
	}
	defer changes.Close()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	go func() {
		_ = s.cmd.Wait() // what it has to say is in the log
		close(s.exited)
		_ = changes.SetReadDeadline(time.Now()) // whoever waits for changes waits in vain
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
		return fmt.Errorf("PostgreSQL needs shared memory, which a sandbox of the tier namespace refuses because nothing would limit it; "+
			"sandbox-run doctor says what the tier container needs here (%s)", text)
	}
	return fmt.Errorf("the server did not start: %s", text)
}

// watch tells of every change in a directory, by becoming readable.
func watch(dir string) (*os.File, error) {
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

// ready reads what the server says of itself: the eighth line of its lock file.
func ready(cluster string) bool {
	text, err := os.ReadFile(filepath.Join(cluster, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"
}

// stop ends the server in a hurry: nobody will read what it has not written. May be called twice.
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
	line  []byte // the beginning of the one that is being written
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

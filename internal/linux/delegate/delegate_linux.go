package delegate

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The errors of Obtain, wrapped; any other error is the system's.
var (
	ErrNoManager = errors.New("no systemd user manager can be reached")
	ErrRefused   = errors.New("the systemd user manager refused")
	ErrTimeout   = errors.New("the systemd user manager did not answer in time")
	ErrLayout    = errors.New("systemd delegates to users on pure cgroup v2 only")
)

const (
	timeout = 2 * time.Second
	glance  = 10 * time.Millisecond // between reads of /proc/self/cgroup
)

// controllers are requested for the scope. The manager delegates those of them that it has itself.
var controllers = []string{"cpu", "memory", "pids"}

// Obtain moves the calling process, with all its threads, into a new scope of the user's service manager, below which it
// may make groups with controllers. It blocks for milliseconds, and two seconds at most. Child processes are not moved. It
// fails with ErrNoManager, ErrRefused, ErrTimeout or ErrLayout.
func Obtain(ctx context.Context) error {
	if _, err := ownGroup(); err != nil {
		return err
	}
	end := deadline(ctx)
	var tried []error
	for _, a := range addresses(os.Getenv, os.Geteuid()) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		c, err := dial(a, end)
		if err != nil {
			tried = append(tried, fmt.Errorf("%v: %w", a, err))
			continue
		}
		scope, err := scopeName()
		if err == nil {
			err = c.startScope(ctx, a.bus, scope, ownGroup)
		}
		c.close()
		if err != nil {
			return fmt.Errorf("scope %s: %w", scope, err)
		}
		return nil
	}
	for _, err := range tried {
		if errors.Is(err, ErrRefused) {
			return err
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return wrapTimeout(err)
		}
	}
	return fmt.Errorf("%w: %w", ErrNoManager, tried[0])
}

// scopeName is a name that no other unit has.
func scopeName() (string, error) {
	var random [4]byte
	if _, err := unix.Getrandom(random[:], 0); err != nil {
		return "", err
	}
	return "sandbox-run-" + strconv.Itoa(os.Getpid()) + "-" + hex.EncodeToString(random[:]) + ".scope", nil
}

// ownGroup is the v2 group that this process is in.
func ownGroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(b))
	group, ok := strings.CutPrefix(text, "0::")
	if !ok || strings.Contains(group, "\n") {
		return "", fmt.Errorf("%w, and this machine has v1 controllers", ErrLayout)
	}
	return group, nil
}

const (
	busName     = "org.freedesktop.DBus"
	managerName = "org.freedesktop.systemd1"
	managerPath = "/org/freedesktop/systemd1"
	managerFace = "org.freedesktop.systemd1.Manager"
)

// startScope requests the scope and waits until this process is in it, as where reports.
func (c *conn) startScope(ctx context.Context, bus bool, scope string, where func() (string, error)) error {
	const startSerial = 3
	start := startCall(scope)
	var out []byte
	if bus {
		start.destination = managerName
		out = append(out, call{destination: busName, path: "/org/freedesktop/DBus", iface: busName, member: "Hello"}.encode(1)...)
		match := call{destination: busName, path: "/org/freedesktop/DBus", iface: busName, member: "AddMatch", signature: "s"}
		match.body.string("type='signal',interface='" + managerFace + "',member='JobRemoved',path='" + managerPath + "'")
		out = append(out, match.encode(2)...)
	}
	if err := c.write(append(out, start.encode(startSerial)...)); err != nil {
		return wrapTimeout(err)
	}
	answered := false
	job := ""
	for {
		then := c.deadline
		if soon := time.Now().Add(glance); answered && soon.Before(then) {
			then = soon
		}
		m, err := c.receive(then)
		switch {
		case err == nil && m.kind == typeError && m.replySerial <= startSerial:
			text := ""
			if strings.HasPrefix(m.signature, "s") {
				text = m.body.string()
			}
			return fmt.Errorf("%w: %s: %s", ErrRefused, m.errorName, text)
		case err == nil && m.kind == typeReturn && m.replySerial == startSerial:
			answered = true
			job = m.body.string()
		case err == nil && m.kind == typeSignal && m.iface == managerFace && m.member == "JobRemoved" && m.signature == "uoss":
			_, which, unit, result := m.body.uint32(), m.body.string(), m.body.string(), m.body.string()
			if result != "done" && unit == scope && (job == "" || which == job) {
				return fmt.Errorf("%w: the job ended as %q", ErrRefused, result)
			}
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(c.deadline): // the end of one glance, not of the deadline
		case err != nil:
			return wrapTimeout(err)
		}
		if cause := context.Cause(ctx); cause != nil {
			return wrapTimeout(cause)
		}
		// The group of this process decides: the signal may be late, or missing.
		if now, err := where(); err != nil || path.Base(now) == scope {
			return err
		}
	}
}

// wrapTimeout adds ErrTimeout to an expired deadline and ErrRefused to a closed connection.
func wrapTimeout(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("%w: it closed the connection: %w", ErrRefused, err)
	}
	return err
}

// startCall is StartTransientUnit(name s, mode s, properties a(sv), aux a(sa(sv))).
func startCall(scope string) call {
	c := call{path: managerPath, iface: managerFace, member: "StartTransientUnit", signature: "ssa(sv)a(sa(sv))"}
	e := &c.body
	e.string(scope)
	e.string("fail")
	property := func(name, signature string, value func()) {
		e.align(8)
		e.string(name)
		e.signature(signature)
		value()
	}
	e.array(8, func() {
		property("Description", "s", func() { e.string("sandbox-run, process " + strconv.Itoa(os.Getpid())) })
		// Without this a failed scope would stay until `systemctl reset-failed`.
		property("CollectMode", "s", func() { e.string("inactive-or-failed") })
		// 0 is the sender, as the kernel reports it: a pid of this process would mean another one in another pid namespace.
		property("PIDs", "au", func() { e.array(4, func() { e.uint32(0) }) })
		// This implies Delegate, which alone would switch on all controllers.
		property("DelegateControllers", "as", func() {
			e.array(4, func() {
				for _, name := range controllers {
					e.string(name)
				}
			})
		})
	})
	e.array(8, func() {})
	return c
}

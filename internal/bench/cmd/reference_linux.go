package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/bench"
)

// referenceArgs is the reference command: `bwrap …`.
var referenceArgs = strings.Fields("--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 " +
	"--unshare-all --proc /proc --dev /dev --tmpfs /tmp true")

// program is a command that starts in the cheapest way of Go: fork and exec with shared memory, without goroutines and without pipes that
// the caller does not request.
type program struct {
	path string
	args []string // with the name
	env  []string // in addition to the minimal one
	null *os.File
}

func (s *environment) program(path string, args ...string) *program {
	name := path[strings.LastIndexByte(path, '/')+1:]
	return &program{path: path, args: append([]string{name}, args...), null: s.null}
}

// String returns the command line.
func (p *program) String() string { return strings.Join(p.args, " ") }

var plainEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LANG=C.UTF-8"}

// start runs the program with a standard output.
func (p *program) start(stdout *os.File, env ...string) (int, error) {
	return syscall.ForkExec(p.path, p.args, &syscall.ProcAttr{
		Env:   slices.Concat(plainEnv, p.env, env),
		Files: []uintptr{p.null.Fd(), stdout.Fd(), p.null.Fd()},
	})
}

// run runs the program, and fails unless it exits with 0.
func (p *program) run() error {
	pid, err := p.start(p.null)
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return p.await(pid)
}

func (p *program) await(pid int) error {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for %s: %w", p.path, err)
		}
		if !status.Exited() || status.ExitStatus() != 0 {
			return fmt.Errorf("%s: ended with status %#x", p, uint32(status))
		}
		return nil
	}
}

// sample measures one run of the program. bwrap returns before its sandbox has ended. sample waits for the orphans after the measured
// time, so that they do not disturb the next run and their CPU time counts.
func (p *program) sample() (bench.Sample, error) { return timed(p.run, reapOrphans) }

// reapOrphans waits for the orphans of bwrap. Other children belong to the library.
func reapOrphans() error {
	pids, err := children()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if word(fmt.Sprintf("/proc/%d/comm", pid), 0) != "bwrap" {
			continue
		}
		for {
			_, err := unix.Wait4(pid, nil, 0, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	return nil
}

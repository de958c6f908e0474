package attack

import (
	"os"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/driver"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/pool"
)

// lent is a backend that a pool does not close: the caller owns it.
type lent struct{ sandbox.Backend }

func (lent) Close() error { return nil }

// lentForker is the same of one that forks.
type lentForker struct {
	lent
	sandbox.Forker
}

const (
	pythonPath     = "/usr/bin/python3"
	launcherInside = "/opt/sandbox-attack.py"
	// launcher executes the attacker, with the isolation of the fork that runs it.
	launcher = "import os, sys\nos.execv(sys.argv[1], sys.argv[1:])\n"
)

// warmStarts carries out the attacks on isolation in pooled sandboxes: by programs that are started in them, and by warm forks of Python.
func warmStarts(t *trial) {
	if !t.isolated() || !hasProgram(pythonPath) {
		t.skipped = "no sandbox is made ready ahead here, or there is no " + pythonPath
		return
	}
	var below sandbox.Backend = lent{t.o.Backend}
	forker, forks := t.o.Backend.(sandbox.Forker)
	if forks {
		below = lentForker{lent{t.o.Backend}, forker}
	}
	p := pool.New(below, pool.Options{Sandboxes: 2, PerShape: 2})
	m := sandbox.NewManager(p, sandbox.Options{})
	t.later(func() {
		if err := p.Close(); err != nil {
			t.fault("close the pool: %v", err)
		}
	})
	t.later(func() {
		if err := m.Close(); err != nil {
			t.fault("close: %v", err)
		}
	})
	script := t.file(t.dir()+"/launcher.py", launcher, 0o644)
	waits := sandbox.Process{Args: []string{pythonPath, launcherInside}, Warm: driver.Python("python")}
	// A sandbox with volumes is never pooled.
	spec := t.spec(func(s *sandbox.Spec) {
		s.Volumes = nil
		s.Root.Add = []sandbox.Mount{{Source: t.o.Executable, Target: attackerInside}, {Source: script, Target: launcherInside}}
		s.Ahead = []sandbox.Process{waits}
	})
	full, err := m.Complete(spec)
	if err == nil {
		if forks = forks && forker.Forks(&full, &full.Ahead[0]) == nil; !forks { // only the sandbox is prepared
			spec.Ahead = []sandbox.Process{{Args: waits.Args}}
			full, err = m.Complete(spec)
		}
	}
	if err == nil {
		err = p.Warm(t.ctx, &full)
	}
	if err != nil {
		t.abort("no pooled sandbox: %v", err)
	}
	run := func(process sandbox.Process) *sandbox.Result {
		id, err := m.Create(t.ctx, spec)
		if err != nil {
			t.abort("no sandbox: %v", err)
		}
		res, err := m.Run(t.ctx, id, process, sandbox.IO{})
		if err != nil {
			t.abort("run in a pooled sandbox: %v", err)
		}
		if err := m.Delete(t.ctx, id); err != nil {
			t.fault("delete: %v", err)
		}
		return res
	}
	t.attackIsolation(" in a pooled sandbox", func(verb string, args ...string) *sandbox.Result {
		return run(sandbox.Process{Args: hostile.Args(attackerInside, t.mark, verb, args...)})
	})
	if forks {
		warm := p.Stats().Warm
		n := uint64(0)
		t.attackIsolation(" of a warm fork", func(verb string, args ...string) *sandbox.Result {
			n++
			q := waits
			q.Args = append(q.Args[:2:2], hostile.Args(attackerInside, t.mark, verb, args...)...)
			return run(q)
		})
		id, err := m.Create(t.ctx, spec)
		t.must(err)
		q := waits
		q.Args = append(q.Args[:2:2], hostile.Args(attackerInside, t.mark, "sleep", "1m")...)
		pid, end := t.backgroundIn(m, id, q, sandbox.IO{})
		t.ownKeyring(pid, " of a warm fork")
		end()
		t.control(p.Stats().Warm >= warm+n, "every attacker was a warm fork", "some were started cold")
	} else {
		t.note("this backend forks no interpreters")
	}
	t.control(p.Stats().Hits > 0, "sandboxes were pooled", "none was")
}

// attackIsolation carries out the attacks on the isolation that every program has, for one way to run attackers.
func (t *trial) attackIsolation(where string, attack func(verb string, args ...string) *sandbox.Result) {
	for _, threat := range []string{"S1", "S4", "S5", "S6"} {
		t.callsOf(threat, where, func(args ...string) *sandbox.Result { return attack("calls", args...) })
	}
	said := func(verb string, args ...string) answers {
		res := attack(verb, args...)
		if !res.Success() {
			t.abort("the attacker %s%s ended with the verdict %s: %.300q", verb, where, res.Verdict, res.Stderr.Bytes())
		}
		return hostile.Parse(res.Stdout.Bytes())
	}
	status := said("status")
	host := t.outside("status")
	for name, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1"} {
		t.judge(status.of(name).Detail == want, name+where, status.of(name).Detail, "host: "+host.of(name).Detail)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		t.judge(strings.Trim(status.of(set).Detail, "0") == "", set+where, status.of(set).Detail, "host: "+host.of(set).Detail)
	}
	if os.Geteuid() == 0 {
		t.judge(status.of("Groups").Detail == "", "supplementary groups"+where, status.of("Groups").Detail, "")
	}
	t.sealedMounts(where, said)
	t.coveredFiles(where, said)
	t.landlockedFiles(where, said)
	t.landlockedNetwork(where, said)
}

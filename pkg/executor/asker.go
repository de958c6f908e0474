package executor

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// asker runs programs of an image, to be told what they are: in one sandbox, which is made when the first is asked.
type asker struct {
	manager *sandbox.Manager
	spec    sandbox.Spec
	begin   func() (done func()) // told that it takes a while

	once sync.Once
	id   string
	err  error
	done func()
}

// askLimits are what a program may use to say what it is.
func askLimits(m sandbox.Machine) sandbox.Limits {
	l, _ := sandbox.Limits{Wall: 20 * time.Second, Memory: 512 * sandbox.MiB, Processes: 256, CPUs: float64(m.CPUs), Output: 64 * sandbox.KiB}.Clamp(m)
	return l
}

func (a *asker) ask(ctx context.Context, args ...string) (toolchain.Answer, error) {
	a.once.Do(func() {
		if a.begin != nil {
			a.done = a.begin()
		}
		a.id, a.err = a.manager.Create(ctx, a.spec)
	})
	if a.err != nil {
		return toolchain.Answer{}, a.err
	}
	r, err := a.manager.Run(ctx, a.id, sandbox.Process{Args: args}, sandbox.IO{})
	if err != nil {
		return toolchain.Answer{}, err
	}
	said := toolchain.Answer{Stdout: string(r.Stdout.Bytes()), Stderr: string(r.Stderr.Bytes()), Exit: r.Exit.Code}
	if !r.Success() && (r.Verdict != sandbox.VerdictNonzeroExit || said.Exit == 0) {
		said.Exit = sandbox.CLICode(r.Verdict, r.Exit)
		said.Stderr = strings.TrimSpace(failure(r).Error()) + "\n" + said.Stderr
	}
	return said, ctx.Err()
}

// close removes the sandbox. What can not be removed, the manager's Close finds and reports.
func (a *asker) close(ctx context.Context) {
	if a.id != "" {
		_ = a.manager.Delete(context.WithoutCancel(ctx), a.id)
	}
	if a.done != nil {
		a.done()
	}
}

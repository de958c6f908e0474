package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The init of a following phase exists when the phase starts, and is gone if it was not needed.
func TestFollowed(t *testing.T) {
	b := &watched{Backend: newBackend(t, Options{})}
	m := sandbox.NewManager(b, sandbox.Options{})
	defer func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}()
	ctx := context.Background()
	run := func(t *testing.T, id, phase string, followed bool, args ...string) *sandbox.Result {
		t.Helper()
		res, err := m.Run(ctx, id, sandbox.Process{Phase: phase, Args: args, Followed: followed}, sandbox.IO{})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	t.Run("used", func(t *testing.T) {
		id, err := m.Create(ctx, sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		run(t, id, "compile", true, "sh", "-c", "echo made > /workspace/x; sleep 0.2")
		i := b.last
		spare := i.Spare()
		if spare == nil {
			t.Fatal("no init was made ready")
		}
		if res := run(t, id, "run", false, "cat", "/workspace/x"); string(res.Stdout.Bytes()) != "made\n" {
			t.Errorf("%q %q", res.Stdout.Bytes(), res.Stderr.Bytes())
		}
		if err := m.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	})
	t.Run("not used", func(t *testing.T) {
		for range 5 {
			id, err := m.Create(ctx, sandbox.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			run(t, id, "compile", true, "true")
			if err := m.Delete(ctx, id); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("killed", func(t *testing.T) {
		id, err := m.Create(ctx, sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		run(t, id, "compile", true, "sleep", "0.2")
		i := b.last
		i.Spare().Init.Kill()
		time.Sleep(20 * time.Millisecond)
		if res := run(t, id, "run", false, "true"); !res.Success() {
			t.Error(res.Verdict)
		}
		if err := m.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	})
	t.Run("side by side", func(t *testing.T) {
		m := sandbox.NewManager(b.Backend, sandbox.Options{})
		defer m.Close()
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				id, err := m.Create(ctx, sandbox.Spec{})
				if err != nil {
					t.Error(err)
					return
				}
				for k := range 4 {
					res, err := m.Run(ctx, id, sandbox.Process{Phase: fmt.Sprintf("p%d", k), Args: []string{"echo", fmt.Sprint(n)}, Followed: true},
						sandbox.IO{})
					if err != nil || string(res.Stdout.Bytes()) != fmt.Sprintln(n) {
						t.Error(res, err)
					}
				}
				if err := m.Delete(ctx, id); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	if left := groupsOf(b.Backend); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if left := inits(); len(left) > 1 { // one is the spare init
		t.Errorf("inits are left: %v", left)
	}
}

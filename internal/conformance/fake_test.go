package conformance

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// The fake passes the cases that need no kernel, so that upper layers may use it.
func TestFakeConforms(t *testing.T) {
	f := NewFake(nil)
	Run(t, func(*testing.T) sandbox.Backend { return f }, Expectations{Tier: sandbox.TierContainer, Probe: "probe", Has: []Expectation{Files}})
	if f.Alive() != 0 {
		t.Errorf("%d instances live on", f.Alive())
	}
}

func TestFakeStateMachine(t *testing.T) {
	m := sandbox.NewManager(NewFake(nil), sandbox.Options{})
	defer m.Close()
	spec := sandbox.Spec{Limits: sandbox.Limits{Grace: time.Millisecond}}
	rapid.Check(t, StateMachine(m, spec, sandbox.Process{Args: []string{"probe", "exit", "0"}},
		sandbox.Process{Args: []string{"probe", "stubborn"}}))
}

func TestFakePretends(t *testing.T) {
	f := NewFake(map[string]Script{"mine": func(p *FakeProcess) sandbox.Exit { return sandbox.Exit{Code: 3} }})
	m := sandbox.NewManager(f, sandbox.Options{})
	defer m.Close()
	ctx := context.Background()
	f.FailCreate(errors.New("no"))
	if _, err := m.Create(ctx, sandbox.Spec{}); err == nil || err.Error() != "no" {
		t.Error(err)
	}
	f.FailCreate(nil)
	id, err := m.Create(ctx, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"mine"}}, sandbox.IO{}); err != nil || res.Exit.Code != 3 {
		t.Errorf("%+v, %v", res, err)
	}
	if err := f.Close(); err == nil {
		t.Error("Close does not report an instance that is left")
	}
	f.Leave(sandbox.Residue{Kind: "cgroup", Name: "x"})
	for _, dry := range []bool{true, false} {
		if r, err := f.Collect(ctx, dry); err != nil || len(r) != 1 || r[0].Removed == dry {
			t.Errorf("%+v, %v", r, err)
		}
	}
	weak := sandbox.NewIsolation("fake")
	weak.Tier = sandbox.TierProcess
	f2 := NewFake(nil)
	f2.Pretend(weak)
	if _, err := sandbox.NewManager(f2, sandbox.Options{}).Create(ctx, sandbox.Spec{}); !errors.Is(err, sandbox.ErrRefused) {
		t.Error(err)
	}
}

package serve

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestCeilings(t *testing.T) {
	machine := sandbox.Machine{CPUs: 4, Memory: 8 * sandbox.GiB}
	c := new(ceilings)
	s := &operator.Settings{Max: sandbox.Limits{Memory: sandbox.GiB, CPUTime: 10 * time.Second, Wall: 20 * time.Second},
		MaxCompile: sandbox.Limits{Memory: sandbox.GiB}}
	if err := c.set(s, machine); err != nil {
		t.Fatal(err)
	}
	key := api.KeyLimits{Limits: sandbox.Limits{Memory: 256 * sandbox.MiB, Processes: 5000}}
	for _, test := range []struct {
		name string
		ask  executor.Request
		key  api.KeyLimits
		says string // of the refusal; empty: it is fine
	}{
		{name: "nothing"},
		{name: "just that", ask: executor.Request{Limits: sandbox.Limits{Memory: sandbox.GiB, Wall: 20 * time.Second,
			CPUTime: 10 * time.Second}}},
		{name: "memory", ask: executor.Request{Limits: sandbox.Limits{Memory: sandbox.GiB + 1}}, says: "memory: 1 GiB is above 1 GiB"},
		{name: "time", ask: executor.Request{Limits: sandbox.Limits{Wall: 21 * time.Second}}, says: "timeout: 21s is above 20s"},
		{name: "CPU time", ask: executor.Request{Limits: sandbox.Limits{CPUTime: time.Minute}}, says: "cpu_time"},
		{name: "the default of a ceiling", ask: executor.Request{Limits: sandbox.Limits{Processes: 1001}}, says: "pids: 1001 is above 1000"},
		{name: "compiling", ask: executor.Request{CompileLimits: sandbox.Limits{Memory: 2 * sandbox.GiB}},
			says: "compile_memory: 2 GiB is above 1 GiB"},
		{name: "a key", ask: executor.Request{Limits: sandbox.Limits{Memory: 257 * sandbox.MiB}}, key: key, says: "257 MiB is above 256 MiB"},
		{name: "a key with more than the server", ask: executor.Request{Limits: sandbox.Limits{Processes: 1001}}, key: key, says: "above 1000"},
		{name: "as many files as may be", ask: executor.Request{Files: make([]executor.File, 2000), Inputs: make([]executor.File, 3000)}},
		{name: "files", ask: executor.Request{Files: make([]executor.File, 2001), Inputs: make([]executor.File, 3000)},
			says: "files: 5001 files"},
		{name: "cores have none", ask: executor.Request{Limits: sandbox.Limits{CPUs: 4}}},
	} {
		err := c.Check(&test.ask, test.key)
		refused := new(wire.Problem)
		if test.says == "" && err != nil || test.says != "" && (!errors.As(err, &refused) || refused.Status != http.StatusForbidden ||
			!strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.says)
		}
	}
	// Defaults above a ceiling are lowered, others stay.
	var open executor.Request
	if err := c.Check(&open, key); err != nil {
		t.Fatal(err)
	}
	run, compile := sandbox.DefaultLimits(), sandbox.Limits{Wall: time.Minute, Memory: 2 * sandbox.GiB}
	want := run
	want.Wall, want.CPUTime, want.Memory = 20*time.Second, 10*time.Second, 256*sandbox.MiB
	open.Lower(&run, &compile)
	if run != want || compile.Memory != sandbox.GiB {
		t.Errorf("%+v, want %+v; %+v", run, want, compile)
	}
	// A ceiling beyond the machine is refused, and the previous ceilings stay.
	if err := c.set(&operator.Settings{Max: sandbox.Limits{Memory: 9 * sandbox.GiB}}, machine); !errors.Is(err, sandbox.ErrInvalid) ||
		!strings.Contains(err.Error(), "max-memory") {
		t.Error(err)
	}
	if err := c.Check(&executor.Request{Limits: sandbox.Limits{Memory: 2 * sandbox.GiB}}, api.KeyLimits{}); err == nil {
		t.Error(err)
	}
}

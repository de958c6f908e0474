package api

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ones are limits that are all the same small number.
func ones(n int) (l sandbox.Limits) {
	v := reflect.ValueOf(&l).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Float64:
			f.SetFloat(float64(n))
		case reflect.Uint64:
			f.SetUint(uint64(n))
		default:
			f.SetInt(int64(n))
		}
	}
	return l
}

// Every limit there is has a ceiling, which is named when it is passed.
func TestEveryLimitHasACeiling(t *testing.T) {
	set := CeilingSet{Run: ones(10), Compile: ones(10)}
	n := reflect.TypeFor[sandbox.Limits]().NumField()
	for _, compile := range []bool{false, true} {
		for i := range n {
			req := executor.Request{}
			l := &req.Limits
			if compile {
				l = &req.CompileLimits
			}
			field := func() reflect.Value { return reflect.ValueOf(l).Elem().Field(i) }
			one, over := reflect.ValueOf(ones(10)).Field(i), reflect.ValueOf(ones(11)).Field(i)
			field().Set(one)
			if err := set.Check(&req, KeyLimits{}); err != nil {
				t.Errorf("%s at its ceiling: %v", reflect.TypeFor[sandbox.Limits]().Field(i).Name, err)
			}
			field().Set(over)
			var p *wire.Problem
			err := set.Check(&req, KeyLimits{})
			if !errors.As(err, &p) || p.Status != 403 || p.Code != wire.CodeCeiling || len(p.Errors) != 1 || p.Errors[0].Ceiling == "" ||
				p.Errors[0].Field == "" ||
				compile != strings.HasPrefix(p.Errors[0].Field, "compile_") {
				t.Errorf("%s above its ceiling: %+v", reflect.TypeFor[sandbox.Limits]().Field(i).Name, err)
			}
		}
	}
}

func TestCeilingNames(t *testing.T) {
	set := CeilingSet{Run: sandbox.Limits{Memory: sandbox.GiB, Wall: time.Minute, CPUs: 1.5}, Compile: sandbox.Limits{Memory: 2 * sandbox.GiB},
		Files: 2}
	req := executor.Request{
		Limits:        sandbox.Limits{Memory: 2 * sandbox.GiB, Wall: time.Hour, CPUs: 2, Disk: sandbox.TiB},
		CompileLimits: sandbox.Limits{Memory: 3 * sandbox.GiB},
		Files:         make([]executor.File, 2), Inputs: make([]executor.File, 1),
	}
	var p *wire.Problem
	if !errors.As(set.Check(&req, KeyLimits{}), &p) {
		t.Fatal("no problem")
	}
	got := map[string]string{}
	for _, e := range p.Errors {
		got[e.Field] = e.Ceiling
	}
	// disk has no ceiling
	want := map[string]string{"memory": "1GiB", "timeout": "1m0s", "cpus": "1.5", "compile_memory": "2GiB", "files": "2"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

// A default above a ceiling is lowered, and the plan's notes, which the result has, say so; the same for defaults that only the language
// knows.
func TestDefaultsAreLowered(t *testing.T) {
	set := CeilingSet{Run: sandbox.Limits{Memory: 100 * sandbox.MiB, Processes: 50, CPUTime: 7 * time.Second},
		Compile: sandbox.Limits{Wall: 5 * time.Second}}
	req := executor.Request{}
	if err := set.Check(&req, KeyLimits{}); err != nil || req.Limits != (sandbox.Limits{}) || req.CompileLimits != (sandbox.Limits{}) {
		t.Fatal(err, req.Limits)
	}
	run, compile := sandbox.DefaultLimits(), sandbox.Limits{Wall: time.Minute, Memory: sandbox.GiB}
	run.Memory = 200 * sandbox.MiB
	notes := req.Lower(&run, &compile)
	want := sandbox.DefaultLimits()
	want.Memory, want.Processes, want.CPUTime = 100*sandbox.MiB, 50, 7*time.Second
	if run != want || compile != (sandbox.Limits{Wall: 5 * time.Second, Memory: sandbox.GiB}) {
		t.Errorf("%+v %+v", run, compile)
	}
	for _, want := range []string{"pids: the default of 100 lowered to 50", "cpu_time: 7s",
		"memory: the default of 200 MiB lowered to 100 MiB", "compile_timeout: the default of 1m0s lowered to 5s"} {
		if !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
			t.Errorf("no note %q: %q", want, notes)
		}
	}
	// A language's own default that is lower stays.
	run.Memory = 64 * sandbox.MiB
	if notes := req.Lower(&run, &compile); run.Memory != 64*sandbox.MiB || len(notes) > 0 {
		t.Errorf("%+v %q", run, notes)
	}
}

// A key's ceilings are lower than everybody's, never higher.
func TestKeyLowersCeilings(t *testing.T) {
	server, key := sandbox.Limits{Memory: 10, Wall: 10, Disk: 5}, sandbox.Limits{Memory: 20, Wall: 5, Inodes: 7}
	lower(&server, &key)
	if want := (sandbox.Limits{Memory: 10, Wall: 5, Disk: 5, Inodes: 7}); server != want {
		t.Errorf("%+v", server)
	}
	// Of compiling as well, and in the server's own answers.
	for name, req := range map[string]executor.Request{"memory": {Limits: sandbox.Limits{Memory: 2}},
		"compile_memory": {CompileLimits: sandbox.Limits{Memory: 2}}} {
		var p *wire.Problem
		one := sandbox.Limits{Memory: 1}
		err := CeilingSet{Run: sandbox.Limits{Memory: 3}}.Check(&req, KeyLimits{Limits: one, CompileLimits: one})
		if !errors.As(err, &p) || len(p.Errors) != 1 || p.Errors[0].Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLimitList: a client sees its defaults and ceilings, and may ask for exactly that much.
func TestLimitList(t *testing.T) {
	w := newTestServer(t, func(o *Options) {
		o.Auth = keys{"a": {ID: "a", Limits: KeyLimits{Limits: sandbox.Limits{Memory: 100 * sandbox.MiB, CPUTime: time.Second}}}, "b": {ID: "b"}}
	})
	see := func(token string) map[string]wire.LimitInfo {
		t.Helper()
		w.token = token
		var list wire.LimitList
		decode(t, w.ask(200, "GET", wire.PathLimits, ""), &list)
		all := map[string]wire.LimitInfo{}
		for _, l := range list.Limits {
			if !wire.IsField(l.Name) || l.Description == "" {
				t.Errorf("%+v", l)
			}
			all[l.Name] = l
		}
		return all
	}
	a, b := see("a"), see("b")
	for name, want := range map[string][2]string{"memory": {"100MiB", "100MiB"}, "cpu_time": {"1s", "1s"}, "timeout": {"30s", "5m0s"}} {
		if a[name].Default != want[0] || a[name].Ceiling != want[1] {
			t.Errorf("%+v", a[name])
		}
	}
	for name, want := range map[string][2]string{"memory": {"512MiB", "2GiB"}, "cpu_time": {}, "compile_memory": {"2GiB", "4GiB"}} {
		if b[name].Default != want[0] || b[name].Ceiling != want[1] {
			t.Errorf("%+v", b[name])
		}
	}
	w.token = "a"
	w.ask(200, "POST", wire.PathRun, body("out x", `"memory":"100MiB"`))
	w.problem(403, "POST", wire.PathRun, body("out x", `"memory":"101MiB"`))
	w.problem(422, "GET", wire.PathLimits+"?x=1", "")
}

// The defaults of requests are within the default ceilings: who asks for nothing special is told nothing.
func TestDefaultSetFits(t *testing.T) {
	req := executor.Request{}
	if err := DefaultCeilings().Check(&req, KeyLimits{}); err != nil || req.Limits != (sandbox.Limits{}) ||
		req.CompileLimits != (sandbox.Limits{}) {
		t.Errorf("%v %+v", err, req.Limits)
	}
	run, compile := sandbox.DefaultLimits(), sandbox.Limits{Wall: time.Minute, Memory: 2 * sandbox.GiB}
	if notes := req.Lower(&run, &compile); len(notes) > 0 {
		t.Errorf("%q", notes)
	}
}

// TestNetworkCeiling: what a server allows of networks is data of its operator, and nothing else is ever part of a request.
func TestNetworkCeiling(t *testing.T) {
	rules := func(allow ...string) network.Policy { return network.Policy{Allow: allow} }
	set := CeilingSet{Network: network.Bounds{Ceiling: &network.Policy{Allow: []string{"*.a.example", "10.0.0.0/8:22"}}, NoPublish: true}}
	full := CeilingSet{Network: network.Bounds{Ceiling: &network.Policy{Mode: network.Full}}}
	for name, test := range map[string]struct {
		set         CeilingSet
		key         network.Mode
		run, comp   network.Policy
		field, says string
	}{
		"nothing":                {},
		"localhost":              {run: sandbox.NetworkLocalhost, comp: sandbox.NetworkLocalhost},
		"no operator":            {run: rules("a.example"), field: "network", says: "allow is above localhost"},
		"no operator, compiling": {comp: rules("a.example"), field: "compile_network", says: "allow is above localhost"},
		"published":              {run: network.Policy{Publish: []string{"80"}}, field: "network", says: "above localhost"},
		"within":                 {set: set, run: rules("x.a.example", "10.1.2.3:22"), comp: rules("x.a.example")},
		"another name":           {set: set, run: rules("a.example.org"), field: "network", says: `rule "a.example.org": more than the operator`},
		"another port":           {set: set, run: rules("10.1.2.3"), field: "network", says: "the most is allow *.a.example 10.0.0.0/8:22"},
		"compiling":              {set: set, comp: rules("b.example"), field: "compile_network", says: `rule "b.example"`},
		"full":                   {set: set, run: network.Policy{Mode: network.Full}, field: "network", says: "full is above allow"},
		"learn":                  {set: full, run: network.Policy{Mode: network.Learn}, field: "network", says: "learn is above full"},
		"port":                   {set: set, run: network.Policy{Publish: []string{"80"}}, field: "network", says: "published ports"},
		"port allowed":           {set: full, run: network.Policy{Publish: []string{"80"}}},
		"key":                    {set: full, key: network.Localhost, run: rules("a.example"), field: "network", says: "allow is above localhost"},
		"key of rules":           {set: full, key: network.Allow, run: network.Policy{Mode: network.Full}, field: "network", says: "above allow"},
		"key within":             {set: full, key: network.Allow, run: rules("a.example")},
		"key above":              {set: set, key: network.Learn, run: network.Policy{Mode: network.Full}, field: "network", says: "above allow"},
	} {
		req := executor.Request{Policy: executor.Policy{Network: test.run, CompileNetwork: test.comp}}
		err := test.set.Check(&req, KeyLimits{Network: test.key})
		var p *wire.Problem
		if test.says == "" && err != nil || test.says != "" && (!errors.As(err, &p) || p.Status != 403 || p.Code != wire.CodeCeiling ||
			len(p.Errors) != 1 || p.Errors[0].Field != test.field || !strings.Contains(p.Errors[0].Message, test.says) || p.Errors[0].Ceiling == "") {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
		if req.Policy.Bounds.Ceiling == nil {
			t.Errorf("%s: the request has no bounds", name)
		}
	}
}

// unbounded are ceilings that know nothing of networks.
type unbounded struct{}

func (unbounded) Check(*executor.Request, KeyLimits) error { return nil }

// TestEveryRequestHasBounds: whichever way a run comes, and whatever the ceilings forget, the executor gets the operator's bounds.
func TestEveryRequestHasBounds(t *testing.T) {
	most := &network.Policy{Allow: []string{"a.example"}}
	for name, test := range map[string]struct {
		ceilings Ceilings
		want     string
	}{
		"none given": {nil, "localhost"}, "careless": {unbounded{}, "localhost"},
		"set": {CeilingSet{Network: network.Bounds{Ceiling: most}}, "allow a.example"},
	} {
		got := make(chan executor.Request, 10)
		w := newTestServer(t, func(o *Options) {
			o.Policy.Ceilings, o.Executor = test.ceilings, &boundsExecutor{o.Executor, got}
		})
		check := func(way string) {
			t.Helper()
			req := <-got
			if b := req.Policy.Bounds; b.Ceiling == nil || b.Ceiling.String() != test.want {
				t.Errorf("%s, %s: %+v", name, way, b)
			}
		}
		body := `{"language":"act","code":"out x","network":"localhost"}`
		w.ask(200, "POST", wire.PathRun, body)
		check("run")
		w.ask(202, "POST", wire.PathRuns, body)
		check("async")
		f, err := w.Do(t.Context(), &Principal{ID: "p"}, &wire.Run{Language: "act", Code: "out x"}, Call{})
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		check("batch")
	}
}

// boundsExecutor tells which requests it gets.
type boundsExecutor struct {
	Executor
	got chan executor.Request
}

func (e *boundsExecutor) Execute(ctx context.Context, req executor.Request) (*executor.Result, error) {
	e.got <- req
	return e.Executor.Execute(ctx, req)
}

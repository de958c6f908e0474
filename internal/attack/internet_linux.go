package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testnet"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Variables of the suite that Run starts in a test internet: its ids, and its time.
const (
	casesVariable  = "SANDBOX_ATTACK_CASES"
	withinVariable = "SANDBOX_ATTACK_WITHIN"
)

// internetCasesOf are the ids that a suite in a test internet carries out; nil outside of one.
func internetCasesOf() []string {
	if !testnet.Inside() {
		return nil
	}
	return splitIDs(os.Getenv(casesVariable))
}

// internetWithin is the time of a suite in a test internet; 0 outside of one.
func internetWithin() time.Duration {
	if !testnet.Inside() {
		return 0
	}
	d, _ := time.ParseDuration(os.Getenv(withinVariable))
	return d
}

func splitIDs(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// needsInternet reports whether a case needs a test internet and this process is in none.
func needsInternet(id string) bool {
	return !testnet.Inside() && slices.ContainsFunc(internetCases(), func(c attackCase) bool { return c.id == id })
}

// tryInInternet returns the result of a case that needs a test internet. The first call carries out all of them, in a second suite whose
// supervisor is in one.
func (s *suite) tryInInternet(ctx context.Context, c attackCase) Result {
	if s.internet == nil {
		s.internet = map[string]Result{}
		results, why := s.runInInternet(ctx)
		for _, r := range results {
			s.internet[r.ID] = r
		}
		for _, id := range s.internetIDs() {
			if _, done := s.internet[id]; !done {
				s.internet[id] = why
			}
		}
	}
	r := s.internet[c.id]
	r.ID, r.Title = c.id, c.title
	if r.Probes == nil {
		r.Probes = []Probe{}
	}
	if r.Health.Residue == nil {
		r.Health.Residue = []string{}
	}
	return r
}

// internetIDs are the selected cases that need a test internet and apply to the backend.
func (s *suite) internetIDs() (ids []string) {
	for _, c := range internetCases() {
		if (len(s.o.Only) == 0 || slices.Contains(s.o.Only, c.id)) && notApplicable(c.id, s.iso) == "" {
			ids = append(ids, c.id)
		}
	}
	return ids
}

// runInInternet carries out the cases, and returns what the cases without a result have instead.
func (s *suite) runInInternet(ctx context.Context) (results []Result, instead Result) {
	failed := func(format string, args ...any) ([]Result, Result) {
		return results, Result{Outcome: Error, Detail: fmt.Sprintf(format, args...)}
	}
	notTried := func(why string) ([]Result, Result) {
		return nil, Result{Outcome: NotApplicable, Detail: "not tried: " + why}
	}
	if why := s.refusesRules(ctx); why != "" {
		return notTried(why)
	}
	if s.o.Internet == nil {
		return failed("no supervisor for a test internet: Options.Internet is not set")
	}
	timeout := min(max(internetTimeout, s.left()/2), s.left())
	if timeout <= 0 {
		return failed("not tried: the time for all cases is over; try again when the machine is less busy")
	}
	ctx, cancel := withProcessorTime(ctx, timeout)
	defer cancel()
	cmd := s.o.Internet()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, casesVariable+"="+strings.Join(s.internetIDs(), ","), withinVariable+"="+timeout.String())
	testnet.Wrap(s.o.Executable, cmd)
	cmd.SysProcAttr.Setpgid = true // signals of the terminal do not reach it: it ends when this suite does
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &said, time.Second
	if err := cmd.Start(); err != nil {
		if why, unavailable := testnet.Unavailable(err, ""); unavailable {
			return notTried("no network namespaces for a test internet: " + why)
		}
		return failed("start a supervisor: %v", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	kill := context.AfterFunc(ctx, func() {
		time.Sleep(hangTimeout)
		_ = cmd.Process.Kill()
	})
	err := cmd.Wait()
	stop()
	kill()
	if why, unavailable := testnet.Unavailable(err, said.String()); unavailable {
		return notTried("no network namespaces for a test internet: " + why)
	}
	// An ordinary user's test internet is in a user namespace, where subordinate ids are of no use: some machines then refuse a sandbox.
	if exit, ended := errors.AsType[*exec.ExitError](err); ended && exit.ExitCode() == exitRefused && out.Len() == 0 {
		return notTried(fmt.Sprintf("no sandbox in the user namespace of a test internet: %.200s", strings.TrimSpace(said.String())))
	}
	var r Report
	if wrong := json.Unmarshal(out.Bytes(), &r); wrong != nil {
		return failed("the supervisor in the test internet has no report: %v: %.300q", errors.Join(err, wrong), said.String())
	}
	results = r.Results
	return failed("the supervisor in the test internet has no result of this case: %v", err)
}

// exitRefused is the exit code of a command that is refused.
const exitRefused = 126

// internetTimeout is for all cases in a test internet, on an idle machine. A suite with much time gives them half of what is left.
const internetTimeout = time.Minute

// refusesRules is why the backend has no networks with rules, or "".
func (s *suite) refusesRules(ctx context.Context) string {
	t := &trial{suite: s, ctx: ctx, mark: newMark()}
	id, err := s.manager.Create(ctx, t.spec(func(s *sandbox.Spec) { s.Network = network.Policy{Allow: []string{"good.example"}} }))
	if err == nil {
		defer t.delete(id)
		_, err = s.manager.Run(ctx, id, t.process("status"), sandbox.IO{})
	}
	if errors.Is(err, sandbox.ErrUnsupported) {
		return fmt.Sprintf("networks with rules are refused: %.200s", err)
	}
	return ""
}

// attempt is one attempt to reach a server: see the attacker "reach".
type attempt struct{ network, address, what string }

func (a attempt) name() string { return a.network + " " + a.address + " " + a.what }

func web(address, host string) attempt { return attempt{"tcp", address, "http " + host} }

func flat(list []attempt) (args []string) {
	for _, a := range list {
		args = append(args, a.network, a.address, a.what)
	}
	return args
}

// networked makes a sandbox with a network.
func (t *trial) networked(p network.Policy) string {
	return t.sandbox(func(s *sandbox.Spec) { s.Network = p })
}

// isRefused reports that an attempt was answered, by a refusal: silence is none.
func isRefused(got string) bool {
	return !slices.Contains([]string{"ok", "timeout", "no answer", "error"}, got)
}

// refusedInside tries to reach servers from a sandbox; every attempt has to be refused. outside has the answers of the same attempts where
// nothing keeps them back.
func (t *trial) refusedInside(id, where string, list []attempt, outside answers) {
	said := t.inside(id, "reach", flat(list)...)
	for _, a := range list {
		got, control := said.of(a.name()), "none"
		if outside != nil {
			control = "outside: " + say(outside.of(a.name()))
		}
		t.judge(isRefused(got.Got), where+": "+a.name(), say(got), control)
	}
}

// reachedInside are controls: attempts that a policy allows.
func (t *trial) reachedInside(id, where string, list ...attempt) {
	said := t.inside(id, "reach", flat(list)...)
	for _, a := range list {
		got := said.of(a.name())
		t.control(got.OK(), where+": "+a.name(), say(got))
	}
}

// reachedOutside are the answers to attempts in the supervisor's namespace. Each of them is a control.
func (t *trial) reachedOutside(list []attempt) answers {
	said := t.outside("reach", flat(list)...)
	for _, a := range list {
		t.control(said.of(a.name()).OK(), "outside: "+a.name(), say(said.of(a.name())))
	}
	return said
}

// seen is what the servers have seen since the last call.
func (t *trial) seen() []testnet.Event {
	seen, err := testnet.Log(t.ctx)
	t.must(err)
	return seen
}

// nothingAt judges that no server of these addresses was reached.
func (t *trial) nothingAt(seen []testnet.Event, name string, addresses ...string) {
	reached := ""
	for _, e := range seen {
		if slices.ContainsFunc(addresses, e.At) {
			reached = e.Service + " " + e.Local
		}
	}
	t.judge(reached == "", name, map[bool]string{true: "nothing", false: reached}[reached == ""], "")
}

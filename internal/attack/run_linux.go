package attack

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// attackCase is one threat, and the attack that shows whether it is withstood.
type attackCase struct {
	id    string
	title string
	carry func(*trial)
}

// cases is every row of the threat list that has a case, in its order.
func cases() []attackCase {
	return slices.Concat(fileCases(), callCases(), resourceCases(), networkCases(), internetCases(), installCases(), doorCases())
}

// IDs lists the ids of all cases.
func IDs() (ids []string) {
	for _, c := range cases() {
		ids = append(ids, c.id)
	}
	return ids
}

// claimedByProcess are the cases that apply to the process backend: it has no isolation. No other case applies.
var claimedByProcess = []string{"F14", "R1", "R2", "R5", "R7", "R8", "R12", "A6", "A7"}

// notApplicable is why a case does not apply, or "". There are no other reasons.
func notApplicable(id string, iso sandbox.Isolation) string {
	switch {
	case iso.Tier == sandbox.TierProcess && !slices.Contains(claimedByProcess, id):
		return "the process backend runs on the host itself, and does not claim it"
	case iso.Backend == "docker" && ofEngine[id] != "":
		return ofEngine[id]
	case id == "S3" && runtime.GOARCH != "amd64":
		return runtime.GOARCH + " has no second table of system calls"
	}
	return ""
}

const withoutRules = "its containers have no networks with rules: a run that asks for one is refused"

// ofEngine are the cases that do not apply to a backend whose containers an engine makes; the backend's own
// tests cover what it does instead.
var ofEngine = map[string]string{
	"N2":  withoutRules,
	"N3":  withoutRules,
	"N4":  withoutRules,
	"N5":  withoutRules,
	"N6":  withoutRules,
	"N7":  withoutRules,
	"N8":  withoutRules,
	"N9":  withoutRules,
	"F3":  "roots are images, which the engine unpacks and mounts",
	"F4":  "the engine masks; roots are images",
	"F5":  "the engine mounts /proc; roots are images",
	"F6":  "the engine opens volumes by their names; what it has mounted is compared from inside, and refused if it is another file",
	"W3":  "a prepared container shows no files of the host, and so no attacker",
	"R13": "not measured: neighbours share the engine's daemon, and making as many containers as the case needs takes longer than it has",
}

// leftOpen are attempts that succeed where an engine mounts in its own way, and what holds instead, by backend;
// docs/THREAT_MODEL.md lists them. Such a case does not count as held. Every other successful attempt of the same case is a breach.
var leftOpen = map[string][]struct{ id, attempt, got, instead string }{
	"docker": {
		{"F7", "open a device of a volume", "ok", "volumes are mounted without nodev; the devices cgroup lets through no more than null, zero " +
			"and the like"},
		{"F11", "mounts of the engine on which set-uid counts", "", "no_new_privs, and an empty bounding set"},
		{"F12", "/dev is mounted read-only", "", "the engine's /dev is in memory, and only root may write to its directory: a program has no " +
			"capability"},
		{"F13", "read /var", `ok ("tmp")`, "a directory that Podman has made, and nothing of the host's"},
		{"F13", "processes of the sandbox's own supervision", "", "they can be neither read, signalled nor traced"},
		{"F15", "inodes", "ok after 4096 of 4096; verdict ok",
			"Podman's file systems in memory know no number of inodes, and isolation.missing says so; their size holds"},
		{"R11", "cgroup file systems", "", "they are read-only, and show the sandbox's own only"},
	},
	"oci": {
		{"F11", "covers of /proc on which set-uid counts", "", "they are empty and read-only; no_new_privs, and an empty bounding set"},
	},
}

// open is what holds instead of a control where an attempt is known to succeed, or "".
func (t *trial) open(attempt, got string) string {
	for _, o := range leftOpen[t.iso.Backend] {
		if o.id == t.id && o.attempt == attempt && (o.got == "" || o.got == got) {
			return o.instead
		}
	}
	return ""
}

// defaultWithin leaves time, in a minute and a half, for a last case that hangs.
const defaultWithin = 90*time.Second - hangTimeout

// engineWithin is for backends whose sandboxes another program makes, each of which takes that program's time.
const engineWithin = 10 * time.Minute

// caseTimeout is far beyond what any case needs on an idle machine.
const caseTimeout = 25 * time.Second

// hangTimeout is how long a case may take to end after its context has ended.
const hangTimeout = 10 * time.Second

// Run carries out the cases and computes the grade. It returns an error if it can not begin, or if
// ctx ends: the report then has the results until then.
func Run(ctx context.Context, o Options) (*Report, error) {
	began := time.Now()
	if o.Executable == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own executable: %w", err)
		}
		o.Executable = exe
	}
	if o.Only == nil {
		o.Only = internetCasesOf()
	}
	if o.Only == nil {
		o.Only = weakenCases()
	}
	if o.Within <= 0 {
		o.Within = internetWithin()
	}
	if o.Within <= 0 {
		o.Within = defaultWithin
		if name := o.Backend.Name(); name != "native" && name != "process" {
			o.Within = engineWithin
		}
	}
	iso := o.Backend.Probe(ctx)
	if iso.Tier == sandbox.TierNone {
		return nil, iso.Check(sandbox.TierContainer, false)
	}
	s := &suite{o: o, iso: iso, end: began.Add(o.Within), waited: waitedForCPU(), manager: sandbox.NewManager(o.Backend, sandbox.Options{})}
	r := &Report{Backend: o.Backend.Name(), Tier: iso.Tier, Isolation: iso, Results: []Result{}}
	removeStale()
	s.host = lookAtHost()
	defer s.host.close()
	for _, c := range cases() {
		if len(o.Only) > 0 && !slices.Contains(o.Only, c.id) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		if o.OnStart != nil {
			o.OnStart(c.id, c.title)
		}
		res := s.try(ctx, c)
		if ctx.Err() != nil {
			break // it was cut short: its result is not valid
		}
		r.Results = append(r.Results, res)
		if o.OnResult != nil {
			o.OnResult(res)
		}
	}
	err := s.close()
	r.grade()
	r.Seconds = seconds(time.Since(began))
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return r, err
}

// suite is one run of all cases.
type suite struct {
	o       Options
	iso     sandbox.Isolation
	manager *sandbox.Manager
	host    *host
	end     time.Time     // no case runs after it, on an idle machine
	waited  time.Duration // of tasks of this machine for a processor, before the first case

	internet map[string]Result // of the cases in a test internet, after they were carried out
}

// busyWithin bounds how much later cases may end because the machine is busy.
const busyWithin = 5 * time.Minute

// left is how much time there is for cases. Time in which tasks of this machine waited for a processor does not count.
func (s *suite) left() time.Duration {
	return time.Until(s.end.Add(min(waitedForCPU()-s.waited, busyWithin)))
}

// withProcessorTime returns a context that ends after timeout. Time in which tasks of this machine waited for a processor does not
// count, up to three times timeout: an operation that hangs is found on a busy machine, too.
func withProcessorTime(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	end, waited := time.Now().Add(timeout), waitedForCPU()
	go func() {
		for left := timeout; left > 0; left = time.Until(end.Add(min(waitedForCPU()-waited, 3*timeout))) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(left):
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// close deletes the remaining sandboxes, unless that hangs, too: then a case has reported it.
func (s *suite) close() error {
	closed := make(chan error, 1)
	go func() { closed <- s.manager.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(hangTimeout):
		return errors.New("sandboxes can not be deleted: a deletion hangs")
	}
}

// mostLate is how late a responsive host may be. A busy machine has a tenth of that.
const mostLate = 2 * time.Second

// try carries out one case, cleans up after it, and checks the host.
func (s *suite) try(ctx context.Context, c attackCase) Result {
	res := Result{ID: c.id, Title: c.title, Probes: []Probe{}, Health: Health{Residue: []string{}}}
	if why := notApplicable(c.id, s.iso); why != "" {
		res.Outcome, res.Detail = NotApplicable, why
		return res
	}
	if needsInternet(c.id) {
		return s.tryInInternet(ctx, c)
	}
	began := time.Now()
	timeout := min(caseTimeout, s.left())
	if timeout <= 0 {
		res.Outcome, res.Detail = Error, "not tried: the time for all cases is over; try again when the machine is less busy"
		return res
	}
	ctx, cancel := withProcessorTime(ctx, timeout)
	defer cancel()
	t := &trial{suite: s, ctx: ctx, id: c.id, mark: newMark()}
	s.host.canary.reset()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.guard(func() { c.carry(t) })
		t.cleanUp()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-time.After(hangTimeout):
			t.breach("an operation has not returned: the case hangs")
		}
	}
	late, residue := s.host.canary.most(), s.host.residue(t.marks()...)
	if late > mostLate {
		t.breach("the host woke up %v late meanwhile", late.Round(time.Millisecond))
	}
	for _, r := range residue {
		t.breach("left behind: %s", r)
	}
	if residue != nil {
		res.Health.Residue = residue
	}
	res.Health.Lateness = float64(late.Microseconds()) / 1000
	res.Outcome, res.Detail = t.conclude()
	t.mu.Lock()
	res.Probes = append(res.Probes, t.probes...)
	t.mu.Unlock()
	res.Seconds = seconds(time.Since(began))
	return res
}

// conclude returns the outcome and a sentence. A breach outweighs a fault: it is proven, whatever else is unknown.
func (t *trial) conclude() (Outcome, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.breaches) > 0:
		return Breached, summary(t.breaches)
	case len(t.known) > 0 && len(t.faults) == 0:
		return Known, summary(t.known)
	case t.skipped != "":
		return NotApplicable, t.skipped
	case len(t.faults) > 0:
		return Error, summary(t.faults)
	case len(t.probes) == 0:
		return Error, "nothing was tried"
	}
	detail := fmt.Sprintf("%d attempts", len(t.probes))
	if len(t.probes) == 1 {
		detail = "1 attempt"
	}
	if len(t.notes) > 0 {
		detail += "; " + strings.Join(t.notes, "; ")
	}
	return Held, detail
}

// summary is the first few of a list.
func summary(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}

func newMark() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the program instead
	return "attack-" + hex.EncodeToString(b[:])
}

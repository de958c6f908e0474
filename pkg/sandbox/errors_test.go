package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*Error{
		"native: mount proc: operation not permitted (stage rootfs); try: sandbox-run doctor": {Backend: "native", Op: "mount proc",
			Stage: "rootfs", Err: syscall.EPERM, Hint: "sandbox-run doctor"},
		"create: the manager is closed":         {Op: "create", Kind: ErrState, Err: errors.New("the manager is closed")},
		"freeze: not supported by this backend": {Op: "freeze", Kind: ErrUnsupported},
		"failed":                                {},
		`sandbox "x": no such sandbox`:          {Op: `sandbox "x"`, Kind: ErrNotFound},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	e := fmt.Errorf("outer: %w", &Error{Op: "x", Kind: ErrRefused, Err: syscall.EACCES})
	if !errors.Is(e, ErrRefused) || !errors.Is(e, syscall.EACCES) || errors.Is(e, ErrInvalid) {
		t.Error(e)
	}
	if errs := (&Error{}).Unwrap(); errs != nil {
		t.Errorf("%v", errs)
	}
}

func TestDescribe(t *testing.T) {
	if Describe(nil) != nil {
		t.Error("nil is described")
	}
	for _, c := range []struct {
		err        error
		code, hint string
	}{
		{Invalid("memory", "%d is too much", 5), "invalid", ""},
		{&Refusal{Got: Isolation{Tier: TierNamespace}}, "refused", "--require namespace, to accept less"},
		{&Error{Kind: ErrNotFound}, "not_found", ""},
		{&Error{Kind: ErrState}, "state", ""},
		{&Error{Kind: ErrUnsupported}, "unsupported", ""},
		{&Error{Kind: ErrNotStarted, Hint: "look"}, "not_started", "look"},
		{errors.New("boom"), "internal_error", ""},
		{fmt.Errorf("outer: %w", &Error{Kind: ErrRefused, Hint: "inner"}), "refused", "inner"},
	} {
		if got := Describe(c.err); got.Code != c.code || got.Hint != c.hint || got.Message != c.err.Error() {
			t.Errorf("%v: %+v", c.err, got)
		}
	}
}

func TestRefusal(t *testing.T) {
	iso := NewIsolation("native")
	iso.Tier = TierNamespace
	iso.Lack(ControlMemory, Polled, "no cgroup is delegated", "run under systemd")
	iso.Lack(ControlDisk, Absent, "no loop devices", "")
	iso.Lack(ControlSwap, Polled, "no cgroup is delegated", "run under systemd")
	iso.Lack(ControlUserNS, Enforced, "one id only", "add a range")
	err := iso.Check(TierContainer, false)
	want := `native: tier "container" is required, this machine gives "namespace"; try: --require namespace, to accept less
  memory, swap are polled: no cgroup is delegated
  disk is absent: no loop devices
  fix: run under systemd`
	if !errors.Is(err, ErrRefused) || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	err = iso.Check(TierNamespace, true)
	if !errors.Is(err, ErrRefused) ||
		!strings.HasPrefix(err.Error(), "native: --strict allows no missing control; try: leave out --strict, to accept this\n") {
		t.Errorf("%v", err)
	}
	iso.Tier = TierNone
	if err := iso.Check(TierProcess, false); err == nil || strings.Contains(err.Error(), "--require none") {
		t.Errorf("%v", err)
	}
}

func TestShellQuote(t *testing.T) {
	for want, words := range map[string][]string{
		"a b/c.py --x=1":           {"a", "b/c.py", "--x=1"},
		"'a;curl evil|sh;.py' ''":  {"a;curl evil|sh;.py", ""},
		`'it'\''s' '$(id)' 'a\nb'`: {"it's", "$(id)", `a\nb`},
	} {
		if got := ShellQuote(words...); got != want {
			t.Errorf("%q: %s instead of %s", words, got, want)
		}
	}
}

// A refusal has every part of a reason, except what is done instead.
func TestWithoutInstead(t *testing.T) {
	for reason, want := range map[string]string{
		"runc is 1.0.3; 1.1 is needed":              "runc is 1.0.3; 1.1 is needed",
		"no delegation; refused; polled instead":    "no delegation; refused",
		"no controller; looked at every 5s instead": "no controller",
		"one cause": "one cause",
	} {
		if got := withoutInstead(reason); got != want {
			t.Errorf("%q: %q instead of %q", reason, got, want)
		}
	}
}

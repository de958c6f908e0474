package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Kinds of failure a caller can act upon; test with errors.Is.
var (
	// ErrInvalid: the request is wrong (usage; exit code 2).
	ErrInvalid = errors.New("invalid request")
	// ErrRefused: the request is valid, but policy or this machine forbids it (exit code 126).
	ErrRefused = errors.New("refused by policy")
	// ErrNotFound: no sandbox has that id.
	ErrNotFound = errors.New("no such sandbox")
	// ErrState: the state of the sandbox does not allow the call.
	ErrState = errors.New("not possible in this state")
	// ErrUnsupported: the backend can not do this.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrNotStarted: the program itself could not be started (not found, not executable).
	ErrNotStarted = errors.New("program could not be started")
)

// Error describes a failure: the backend, the operation with its object, the stage, the cause and the next step. It
// renders as
//
//	native: mount proc: operation not permitted (stage rootfs); try: sandbox-run doctor
type Error struct {
	Backend string // "native"; empty when no backend was involved
	Op      string // "mount proc"
	Stage   string // "rootfs"
	Kind    error  // one of the kinds above, or nil
	Err     error  // the cause, an errno where there is one
	Hint    string // what to do next, without "try:"
}

func (e *Error) Error() string {
	var b strings.Builder
	for _, part := range []string{e.Backend, e.Op} {
		if part != "" {
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	switch {
	case e.Err != nil:
		b.WriteString(e.Err.Error())
	case e.Kind != nil:
		b.WriteString(e.Kind.Error())
	default:
		b.WriteString("failed")
	}
	if e.Stage != "" {
		fmt.Fprintf(&b, " (stage %s)", e.Stage)
	}
	if e.Hint != "" {
		b.WriteString("; try: ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns both the cause and the kind, so that errors.Is finds either.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	return errs
}

// Invalid reports a wrong field of a request, with the reason.
func Invalid(field, format string, args ...any) error {
	return &Error{Op: field, Kind: ErrInvalid, Err: fmt.Errorf(format, args...)}
}

// Errorf returns an Error of a kind without a backend: the operation with its object, the next step (empty: none), and the cause.
func Errorf(kind error, op, hint, format string, args ...any) error {
	return &Error{Op: op, Kind: kind, Err: fmt.Errorf(format, args...), Hint: hint}
}

// Refusal is the error of a sandbox that would be weaker than the caller requires.
type Refusal struct {
	Require Tier
	Strict  bool
	Got     Isolation
	Others  []string // the other backends, and why each does not serve; a line each
}

func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString(r.summary())
	b.WriteString("; try: ")
	b.WriteString(r.Hint())
	r.writeDetails(&b)
	return b.String()
}

// Detail is the text of Error without the hint.
func (r *Refusal) Detail() string {
	var b strings.Builder
	b.WriteString(r.summary())
	r.writeDetails(&b)
	return b.String()
}

// Hint is the shortest way to a run: what to change in the request.
func (r *Refusal) Hint() string {
	switch {
	case r.Got.Tier == TierNone: // no flag accepts this tier
		return "sandbox-run doctor, which names the causes"
	case r.Strict && r.Got.Tier.AtLeast(r.Require):
		return "leave out --strict, to accept this"
	}
	return fmt.Sprintf("--require %s, to accept less", r.Got.Tier)
}

func (r *Refusal) summary() string {
	if r.Strict && r.Got.Tier.AtLeast(r.Require) {
		return r.Got.Backend + ": --strict allows no missing control"
	}
	return fmt.Sprintf("%s: tier %q is required, this machine gives %q", r.Got.Backend, r.Require, r.Got.Tier)
}

// writeDetails writes a line for each cause and each remedy.
func (r *Refusal) writeDetails(b *strings.Builder) {
	for _, other := range r.Others {
		fmt.Fprintf(b, "\n  %s", other)
	}
	switch {
	case r.Got.Tier.AtLeast(r.Require):
	case r.Require == TierGVisor:
		fmt.Fprintf(b, "\n  fix: install gVisor (runsc), and use --backend oci --runtime runsc or leave out --backend")
	case r.Require == TierMicroVM:
		fmt.Fprintf(b, "\n  fix: install Kata Containers for Docker, and use --backend docker --runtime io.containerd.kata.v2")
	}
	r.explain(b)
}

// explain names the gaps and their remedies, each once.
func (r *Refusal) explain(b *strings.Builder) {
	type cause struct {
		state  ControlState
		reason string
	}
	var causes []cause
	var remedies []string
	controls := map[cause][]string{}
	for _, gap := range r.Got.Missing {
		// Of a tier that is too weak, only the controls that make it weak are listed.
		if !r.Got.Tier.AtLeast(r.Require) && (gap.State == Enforced || gap.State == Declared) {
			continue
		}
		c := cause{gap.State, withoutInstead(gap.Reason)}
		if controls[c] == nil {
			causes = append(causes, c)
		}
		controls[c] = append(controls[c], string(gap.Control))
		if gap.Remedy != "" && !slices.Contains(remedies, gap.Remedy) {
			remedies = append(remedies, gap.Remedy)
		}
	}
	for _, c := range causes {
		is := "is"
		if len(controls[c]) > 1 {
			is = "are"
		}
		fmt.Fprintf(b, "\n  %s %s %s: %s", strings.Join(controls[c], ", "), is, c.state, c.reason)
	}
	for _, remedy := range remedies {
		fmt.Fprintf(b, "\n  fix: %s", remedy)
	}
}

// withoutInstead leaves out the last part of a reason if it describes what is done instead; doctor shows it.
func withoutInstead(reason string) string {
	if i := strings.LastIndex(reason, "; "); i >= 0 && strings.Contains(reason[i:], " instead") {
		return reason[:i]
	}
	return reason
}

// Unwrap makes a Refusal an ErrRefused.
func (r *Refusal) Unwrap() error { return ErrRefused }

// ErrorInfo is an error as data, for the result's JSON.
type ErrorInfo struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Describe turns any error into its data form.
func Describe(err error) *ErrorInfo {
	if err == nil {
		return nil
	}
	info := &ErrorInfo{Code: "internal_error", Message: err.Error()}
	for _, k := range []struct {
		kind error
		code string
	}{
		{ErrInvalid, "invalid"}, {ErrRefused, "refused"}, {ErrNotFound, "not_found"},
		{ErrState, "state"}, {ErrUnsupported, "unsupported"}, {ErrNotStarted, "not_started"},
	} {
		if errors.Is(err, k.kind) {
			info.Code = k.code
			break
		}
	}
	var e *Error
	if errors.As(err, &e) {
		info.Hint = e.Hint
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		info.Hint = refusal.Hint()
	}
	return info
}

// ShellQuote writes words so that a POSIX shell reads them back: hints have names that an untrusted project chose.
func ShellQuote(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; w == "" || strings.ContainsFunc(w, isShellSpecial) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// isShellSpecial reports whether a shell may read a character as more than itself.
func isShellSpecial(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:=,+@%^…", r)
}

package executor

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strconv"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// record writes a run to the audit log. A failure of that is added to the other errors, and hides none of them.
func (x *execution) record(result *Result, failed error) error {
	log := x.e.opts.Audit
	if log == nil && !x.req.Evidence {
		return nil
	}
	code, digest, err := x.plan.code()
	if err != nil {
		return err
	}
	seen := Evidence{CodeSHA256: digest}
	if x.input != nil {
		seen.InputSHA256 = x.input.digest()
	}
	if log != nil {
		if seen.Entry, err = log.Record(x.entry(result, failed, code, seen)); err != nil {
			return err
		}
	}
	if result != nil {
		result.Evidence = &seen
	}
	return nil
}

// Evidence proves a run to a third party, beyond its result.
type Evidence struct {
	CodeSHA256  string
	InputSHA256 string     // of stdin; empty if the program did not read all of it
	Entry       audit.Link // in the audit log; zero without one
}

// Asker identifies the requester of a run, if an entry point knows more than the user of this process.
type Asker struct {
	Run string // id of the run at the entry point
	Key string // id of the API key; never its secret
}

// entry returns the run as an entry of the audit log.
func (x *execution) entry(result *Result, failed error, code []byte, seen Evidence) audit.Entry {
	var (
		command []string
		ended   *sandbox.Result
	)
	if last := len(x.plan.Phases) - 1; last >= 0 {
		command = x.plan.Phases[last].Process.Args
	}
	if result != nil {
		ended = &result.Result
	}
	entry := NewAuditEntry(x.e.opts.EntryPoint, cmp.Or(x.req.Asker.Run, x.id), command, &x.plan.Spec, ended, failed)
	if entry.Metrics != nil && len(result.Phases) > 1 {
		all := *entry.Metrics // and what the network of earlier phases reached
		all.Network = nil
		for _, p := range result.Phases {
			all.Network = append(all.Network, p.Metrics.Network...)
		}
		entry.Metrics = &all
	}
	if n := x.req.Policy.CompileNetwork.Complete(); n.HasLoopback() {
		entry.Policy.CompileNetwork = n
	}
	entry.Who.Key = x.req.Asker.Key
	entry.Language, entry.Version = x.plan.Language, x.plan.Version
	entry.Code, entry.CodeSHA256, entry.InputSHA256 = string(code), seen.CodeSHA256, seen.InputSHA256
	return entry
}

// NewAuditEntry returns the entry of a run for the audit log: the request and the outcome. r is nil for a run without a result.
func NewAuditEntry(
	entryPoint audit.EntryPoint, id string, command []string, s *sandbox.Spec, r *sandbox.Result, failed error,
) audit.Entry {
	entry := audit.Entry{
		Kind: audit.KindRun, Run: id, Who: audit.Me(entryPoint), Command: command,
		Policy: audit.Policy{Network: s.Network, Require: s.Require, Limits: &s.Limits},
	}
	entry.Policy.Image, entry.Policy.ImageDigest = s.Root.From.Reference, cmp.Or(s.Root.From.Digest, s.Root.From.ID)
	entry.Policy.Network = entry.Policy.Network.Complete()
	entry.Policy.Require = cmp.Or(entry.Policy.Require, sandbox.TierContainer)
	if r != nil {
		entry.Verdict, entry.ExitCode, entry.Metrics = r.Verdict, r.ExitCode(), &r.Metrics
		entry.ProgramExitCode = r.ProgramExitCode()
		for _, v := range refusals(r.Violations) {
			entry.Refused = append(entry.Refused, v.Detail)
		}
		entry.Policy.Tier, entry.Policy.Backend, entry.Policy.Limits = r.Isolation.Tier, r.Isolation.Backend, &r.Limits
	}
	if failed != nil {
		entry.Error, entry.Verdict, entry.ExitCode = failed.Error(), FailureVerdict(failed), FailureCode(failed)
	}
	return entry
}

// conclude writes the run to the audit log, and adds a failure of that to the result or to the error.
func (x *execution) conclude(result *Result, failed error) (*Result, error) {
	err := x.record(result, failed)
	switch {
	case err == nil:
	case result != nil:
		result.Notes = append(result.Notes, AuditNote+err.Error())
	default:
		failed = errors.Join(failed, err)
	}
	return result, failed
}

// AuditNote is the prefix of the note on a run that is missing in the audit log.
const AuditNote = "not in the audit log: "

// code returns the program and its digest: of one file that of its content, of several files that of their paths, lengths and
// contents. It returns the program itself only if it is one file in memory.
func (p *Plan) code() (code []byte, digest string, err error) {
	files := p.Files[:p.program]
	if len(files) == 1 && files[0].Open == nil {
		return files[0].Data, audit.Digest(files[0].Data), nil
	}
	h := sha256.New()
	for _, f := range files {
		if err := digestContent(f, func(sum string) {
			_, _ = io.WriteString(h, strconv.Quote(f.Path)+" "+hex.EncodeToString([]byte(sum))+"\n")
		}); err != nil {
			return nil, "", err
		}
	}
	return nil, hex.EncodeToString(h.Sum(nil)), nil
}

// inputDigest is a program's input with the digest of what the program has read.
type inputDigest struct {
	from io.Reader

	mu    sync.Mutex
	hash  hash.Hash
	whole bool // the program has read all of it
}

func newInputDigest(from io.Reader) *inputDigest { return &inputDigest{from: from, hash: sha256.New()} }

func (w *inputDigest) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.hash.Write(p[:n])
	w.whole = w.whole || errors.Is(err, io.EOF)
	return n, err
}

// digest is empty if the program did not read all of the input.
func (w *inputDigest) digest() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.whole {
		return ""
	}
	return hex.EncodeToString(w.hash.Sum(nil))
}

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

// record writes a run to the audit log. What keeps it from being there is said beside what happened, and does not hide it.
func (x *execution) record(result *Result, failed error) error {
	log := x.e.opts.Audit
	if log == nil {
		return nil
	}
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
	entry := auditEntry(x.e.opts.Door, x.id, command, &x.plan.Spec, ended, failed)
	entry.Language, entry.Version = x.plan.Language, x.plan.Version
	code, digest, err := x.plan.code()
	if err != nil {
		return err
	}
	entry.Code, entry.CodeSHA256 = string(code), digest
	if x.input != nil {
		entry.InputSHA256 = x.input.digest()
	}
	return log.Append(entry)
}

// auditEntry is what is written down of any run: what was asked for, and what became of it.
func auditEntry(door audit.Door, id string, command []string, s *sandbox.Spec, r *sandbox.Result, failed error) audit.Entry {
	entry := audit.Entry{
		Kind: audit.KindRun, Run: id, Who: audit.Me(door), Command: command,
		Policy: audit.Policy{Network: s.Network, Require: s.Require, Limits: &s.Limits},
	}
	entry.Policy.Image, entry.Policy.ImageDigest = s.Root.From.Reference, cmp.Or(s.Root.From.Digest, s.Root.From.ID)
	pick(&entry.Policy.Network, sandbox.NetworkNone)
	pick(&entry.Policy.Require, sandbox.TierContainer)
	if r != nil {
		entry.Verdict, entry.ExitCode, entry.Metrics = r.Verdict, r.Exit.Code, &r.Metrics
		entry.Policy.Tier, entry.Policy.Backend, entry.Policy.Limits = r.Isolation.Tier, r.Isolation.Backend, &r.Limits
	}
	if failed != nil {
		entry.Error = failed.Error()
	}
	return entry
}

// conclude writes the run down and adds to its result, or to our failure, what went wrong with that.
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

// AuditNote begins the note on a run that is not in the audit log.
const AuditNote = "not in the audit log: "

// code is the program with its digest: of one file the content's own, of several that of their paths, lengths and contents. The
// program itself is only given where it is one file that is in memory.
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

// witnessed is a program's input with a digest of what it was.
type witnessed struct {
	from io.Reader

	mu    sync.Mutex
	hash  hash.Hash
	whole bool // it was read to its end
}

func newWitnessed(from io.Reader) *witnessed { return &witnessed{from: from, hash: sha256.New()} }

func (w *witnessed) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.hash.Write(p[:n])
	w.whole = w.whole || errors.Is(err, io.EOF)
	return n, err
}

// digest is empty where nobody has seen the whole.
func (w *witnessed) digest() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.whole {
		return ""
	}
	return hex.EncodeToString(w.hash.Sum(nil))
}

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

// Evidence is what proves a run to a third party, beyond its result.
type Evidence struct {
	CodeSHA256  string
	InputSHA256 string     // of stdin; empty where it was not read to its end
	Entry       audit.Link // of the audit log; the zero value where there is none
}

// Asker is who asked for a run, where a door knows more than this process's user.
type Asker struct {
	Run string // the door's own id of the run
	Key string // id of the key that was shown; never the key
}

// entry is the run as the audit log has it.
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
	entry.Who.Key = x.req.Asker.Key
	entry.Language, entry.Version = x.plan.Language, x.plan.Version
	entry.Code, entry.CodeSHA256, entry.InputSHA256 = string(code), seen.CodeSHA256, seen.InputSHA256
	return entry
}

// NewAuditEntry describes a run for the audit log: what was asked for, and what became of it. r is nil where there is no result.
func NewAuditEntry(door audit.EntryPoint, id string, command []string, s *sandbox.Spec, r *sandbox.Result, failed error) audit.Entry {
	entry := audit.Entry{
		Kind: audit.KindRun, Run: id, Who: audit.Me(door), Command: command,
		Policy: audit.Policy{Network: s.Network, Require: s.Require, Limits: &s.Limits},
	}
	entry.Policy.Image, entry.Policy.ImageDigest = s.Root.From.Reference, cmp.Or(s.Root.From.Digest, s.Root.From.ID)
	entry.Policy.Network = cmp.Or(entry.Policy.Network, sandbox.NetworkNone)
	entry.Policy.Require = cmp.Or(entry.Policy.Require, sandbox.TierContainer)
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

// digest is empty where the input was not read to its end.
func (w *witnessed) digest() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.whole {
		return ""
	}
	return hex.EncodeToString(w.hash.Sum(nil))
}

package receipt

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Statement is what a receipt says. Its JSON names are a promise; digests are SHA-256 in hexadecimal.
type Statement struct {
	Run    string    `json:"run"`
	Time   time.Time `json:"time"`   // when it was signed, right after the run
	Server string    `json:"server"` // id of the key it is signed with

	RequestSHA256 string `json:"request_sha256"` // of the request's body, byte for byte
	CodeSHA256    string `json:"code_sha256"`    // of the program: one file's content; several as the audit log has it
	StdinSHA256   string `json:"stdin_sha256,omitempty"`

	Outcome

	// Audit is the run's own entry in the server's audit log: its hash covers every entry before it.
	Audit *audit.Link `json:"audit,omitempty"`
}

// Outcome is the part of a statement that stands in the result itself.
type Outcome struct {
	Language        string            `json:"language"`
	LanguageVersion string            `json:"language_version"`
	Verdict         sandbox.Verdict   `json:"verdict"`
	ExitCode        int               `json:"exit_code"`
	Signal          string            `json:"signal,omitempty"`
	StdoutSHA256    string            `json:"stdout_sha256"`
	StderrSHA256    string            `json:"stderr_sha256"`
	StdoutTruncated bool              `json:"stdout_truncated,omitempty"` // the digest is of what was kept
	StderrTruncated bool              `json:"stderr_truncated,omitempty"`
	Files           []File            `json:"files"`
	FilesLeftOut    int               `json:"files_left_out,omitempty"` // only in the digest of the whole: a receipt travels in a header
	Isolation       sandbox.Isolation `json:"isolation"`
	ResultSHA256    string            `json:"result_sha256"` // of the whole result's canonical JSON, without the receipt in it
}

// File is one file that was brought back.
type File struct {
	Path   string `json:"path"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

// maxFiles is how many files a statement names.
const maxFiles = 16

// Where documents that carry a receipt have it, and the result it is of.
const (
	memberReceipt = "receipt"
	memberResult  = "result"
)

// Read says what a result's JSON says; a receipt in it does not count.
func Read(result []byte) (Outcome, error) { return ReadJSON(sandbox.NewJSON(result)) }

// ReadJSON is Read for a result whose output may be large: it is not held in memory.
func ReadJSON(result *sandbox.JSON) (Outcome, error) {
	o, err := read(result.Outline())
	if err != nil {
		return Outcome{}, &sandbox.Error{Op: "result", Kind: sandbox.ErrInvalid, Err: err}
	}
	return o, nil
}

func read(result []byte, large []sandbox.LargeOutput) (o Outcome, err error) {
	c, err := Canonical(result) // what is read from here on can be read in one way only
	if err != nil {
		return o, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(c, &members); err != nil {
		return o, err
	}
	delete(members, memberReceipt)
	if c, err = json.Marshal(members); err != nil {
		return o, err
	}
	var doc struct {
		sandbox.Document
		Language string `json:"language"`
		Version  string `json:"language_version"`
		Files    []struct {
			Path     string `json:"path"`
			Content  string `json:"content"`
			Encoding string `json:"encoding"`
			Reason   string `json:"not_taken"`
		} `json:"files"`
	}
	if err := json.Unmarshal(c, &doc); err != nil {
		return o, err
	}
	if doc.Verdict == "" {
		return o, errors.New("there is no verdict in it")
	}
	o = Outcome{
		Language: doc.Language, LanguageVersion: doc.Version, Verdict: doc.Verdict, ExitCode: doc.ExitCode, Signal: doc.Signal,
		StdoutTruncated: doc.StdoutTruncated, StderrTruncated: doc.StderrTruncated, Isolation: doc.Isolation, Files: []File{},
	}
	if o.StdoutSHA256, err = digestOutput(doc.Stdout, doc.StdoutEncoding, large); err != nil {
		return o, fmt.Errorf("stdout: %w", err)
	}
	if o.StderrSHA256, err = digestOutput(doc.Stderr, doc.StderrEncoding, large); err != nil {
		return o, fmt.Errorf("stderr: %w", err)
	}
	for _, f := range doc.Files {
		if f.Reason != "" {
			continue // it was not brought back; that it was not is in the digest of the whole
		}
		sum, size, err := digestText(f.Content, f.Encoding)
		if err != nil {
			return o, fmt.Errorf("file %q: %w", f.Path, err)
		}
		if len(o.Files) == maxFiles {
			o.FilesLeftOut++
			continue
		}
		o.Files = append(o.Files, File{Path: f.Path, Size: size, SHA256: sum})
	}
	if c, err = Canonical(c); err != nil {
		return o, err
	}
	o.ResultSHA256, err = digestAround(c, large)
	return o, err
}

// digestOutput is digestText for what may be large.
func digestOutput(text, encoding string, large []sandbox.LargeOutput) (string, error) {
	for i := range large {
		if large[i].Mark == text {
			h := sha256.New()
			_, err := large[i].WriteTo(h)
			return hex.EncodeToString(h.Sum(nil)), err
		}
	}
	sum, _, err := digestText(text, encoding)
	return sum, err
}

// digestAround is the digest of a canonical document with large outputs in place of their marks, of which each comes once.
func digestAround(c []byte, large []sandbox.LargeOutput) (string, error) {
	h := sha256.New()
	for range large {
		at, next := len(c), 0
		for i := range large {
			if found := bytes.Index(c, []byte(large[i].Mark)); found >= 0 && found < at {
				at, next = found, i
			}
		}
		h.Write(c[:at])
		if err := large[next].EncodeWith(h, func(text string) ([]byte, error) { return appendScalar(nil, text) }); err != nil {
			return "", err
		}
		c = c[at+len(large[next].Mark):]
	}
	h.Write(c)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// digestText is the digest of the bytes that stand in a result as text or as base64.
func digestText(text, encoding string) (sum string, size int, err error) {
	data := []byte(text)
	switch encoding {
	case "":
	case "base64":
		if data, err = base64.StdEncoding.Strict().DecodeString(text); err != nil {
			return "", 0, err
		}
	default:
		return "", 0, fmt.Errorf("unknown encoding %q", encoding)
	}
	return Digest(data), len(data), nil
}

// ErrDiffers is what Matches and MatchesRequest wrap: the receipt is genuine, and is about something else.
var ErrDiffers = errors.New("differs from what was signed")

// Matches reports whether this is the result that was signed, and if not, everything that differs.
func (s *Statement) Matches(result []byte) error {
	got, err := Read(result)
	if err != nil {
		return err
	}
	var errs []error
	differs := func(what string, equal bool) {
		if !equal {
			errs = append(errs, fmt.Errorf("%s %w", what, ErrDiffers))
		}
	}
	want := s.Outcome
	differs("verdict", got.Verdict == want.Verdict)
	differs("exit_code", got.ExitCode == want.ExitCode && got.Signal == want.Signal)
	differs("language", got.Language == want.Language && got.LanguageVersion == want.LanguageVersion)
	differs("stdout", got.StdoutSHA256 == want.StdoutSHA256 && got.StdoutTruncated == want.StdoutTruncated)
	differs("stderr", got.StderrSHA256 == want.StderrSHA256 && got.StderrTruncated == want.StderrTruncated)
	differs("files", slices.Equal(got.Files, want.Files) && got.FilesLeftOut == want.FilesLeftOut)
	a, errA := json.Marshal(got.Isolation)
	b, errB := json.Marshal(want.Isolation)
	differs("isolation", errA == nil && errB == nil && string(a) == string(b))
	if len(errs) == 0 {
		differs("something else in the result", got.ResultSHA256 == want.ResultSHA256)
	}
	return errors.Join(errs...)
}

// MatchesRequest reports whether this is the body of the request whose result was signed.
func (s *Statement) MatchesRequest(body []byte) error {
	if Digest(body) != s.RequestSHA256 {
		return fmt.Errorf("request %w", ErrDiffers)
	}
	return nil
}

// MatchesLog reports whether a log has the entry that the receipt names.
func (s *Statement) MatchesLog(log *audit.Log) error {
	if s.Audit == nil {
		return errors.New("receipt: it names no entry of an audit log: the server had none")
	}
	for e, err := range log.Query(audit.Filter{}) {
		var line *audit.LineError
		switch {
		case errors.As(err, &line): // Verify's business
		case err != nil:
			return err
		case e.Seq == s.Audit.Seq && e.Hash == s.Audit.Hash && e.Run == s.Run:
			return nil
		case e.Seq == s.Audit.Seq:
			return fmt.Errorf("entry %d of the audit log %w", e.Seq, ErrDiffers)
		}
	}
	return fmt.Errorf("receipt: entry %d is not in %s: it was removed, or this is another log", s.Audit.Seq, log.Path())
}

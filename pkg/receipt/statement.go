package receipt

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Statement is the content of a receipt. Its JSON names are a promise to users; digests are SHA-256 in hexadecimal.
type Statement struct {
	Run    string    `json:"run"`
	Time   time.Time `json:"time"`   // when it was signed, right after the run
	Server string    `json:"server"` // id of the key it is signed with

	RequestSHA256 string `json:"request_sha256"` // of the request's body, byte for byte
	CodeSHA256    string `json:"code_sha256"`    // of the program: one file's content; several as the audit log has it
	StdinSHA256   string `json:"stdin_sha256,omitempty"`

	Outcome

	// Audit is the run's entry in the server's audit log: its hash covers every entry before it.
	Audit *audit.Link `json:"audit,omitempty"`
}

// Outcome is the part of a statement that can be read from the result.
type Outcome struct {
	Language        string            `json:"language"`
	LanguageVersion string            `json:"language_version"`
	Verdict         sandbox.Verdict   `json:"verdict"`
	ExitCode        int               `json:"exit_code"`
	ProgramExitCode *int              `json:"program_exit_code"`
	Signal          string            `json:"signal,omitempty"`
	StdoutSHA256    string            `json:"stdout_sha256"`
	StderrSHA256    string            `json:"stderr_sha256"`
	StdoutTruncated bool              `json:"stdout_truncated,omitempty"` // the digest is of what was kept
	StderrTruncated bool              `json:"stderr_truncated,omitempty"`
	Files           []File            `json:"files"`
	FilesLeftOut    int               `json:"files_left_out,omitempty"` // covered only by ResultSHA256: a receipt must fit into a header
	Isolation       sandbox.Isolation `json:"isolation"`
	Network         *Network          `json:"network,omitempty"` // nil: nothing was reached or refused
	ResultSHA256    string            `json:"result_sha256"`     // of the canonical JSON of the whole result without its receipt
}

// File is one file that was copied out.
type File struct {
	Path   string `json:"path"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

// Network is what the programs of a run reached, in all phases, and what was refused to them.
type Network struct {
	Destinations []string `json:"destinations"` // HOST:PORT/PROTOCOL
	Refused      []string `json:"refused"`      // a sentence each
	LeftOut      int      `json:"left_out,omitempty"`
}

// maxFiles bounds the files that a statement lists, and each list of its network.
const maxFiles = 16

// add adds a line to a list, unless the list has it or is full.
func (n *Network) add(list *[]string, line string) {
	switch {
	case slices.Contains(*list, line):
	case len(*list) == maxFiles:
		n.LeftOut++
	default:
		*list = append(*list, line)
	}
}

// The names under which documents have a receipt and its result.
const (
	memberReceipt = "receipt"
	memberResult  = "result"
)

// Read returns the outcome that a result's JSON describes. It ignores a receipt in the result.
func Read(result []byte) (Outcome, error) { return ReadJSON(sandbox.NewJSON(result)) }

// ReadJSON is Read for a result whose output may be large; it does not load the output into memory.
func ReadJSON(result *sandbox.JSON) (Outcome, error) {
	o, err := read(result.Outline())
	if err != nil {
		return Outcome{}, &sandbox.Error{Op: "result", Kind: sandbox.ErrInvalid, Err: err}
	}
	return o, nil
}

func read(result []byte, large []sandbox.LargeOutput) (o Outcome, err error) {
	c, err := Canonical(result) // from here on the document is unambiguous
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
		Phases   []struct {
			Metrics struct {
				Network []struct {
					Host     string `json:"host"`
					Port     uint16 `json:"port"`
					Protocol string `json:"protocol"`
				} `json:"network"`
			} `json:"metrics"`
		} `json:"phases"`
		Files []struct {
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
		return o, errors.New("it has no verdict")
	}
	o = Outcome{
		Language: doc.Language, LanguageVersion: doc.Version, Verdict: doc.Verdict, ExitCode: doc.ExitCode,
		ProgramExitCode: doc.ProgramExitCode, Signal: doc.Signal,
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
			continue // not copied out; ResultSHA256 covers that fact
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
	n := &Network{Destinations: []string{}, Refused: []string{}}
	for _, p := range doc.Phases {
		for _, d := range p.Metrics.Network {
			n.add(&n.Destinations, net.JoinHostPort(d.Host, strconv.Itoa(int(d.Port)))+"/"+d.Protocol)
		}
	}
	for _, v := range doc.Violations {
		if v.Kind == sandbox.ViolationNetwork && v.Name != "" {
			n.add(&n.Refused, v.Detail)
		}
	}
	if len(n.Destinations)+len(n.Refused) > 0 {
		o.Network = n
	}
	if c, err = Canonical(c); err != nil {
		return o, err
	}
	o.ResultSHA256, err = digestAround(c, large)
	return o, err
}

// digestOutput returns the digest of an output, which may be a mark for a large one.
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

// digestAround returns the digest of a canonical document with large outputs in place of their marks. Each mark occurs once.
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

// digestText returns the digest of bytes that a result has as text or as base64.
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
	return audit.Digest(data), len(data), nil
}

// ErrDiffers is the error that Matches, MatchesRequest and MatchesLog wrap: the receipt is genuine, but describes something else.
var ErrDiffers = errors.New("differs from what was signed")

// Matches returns nil if result is the signed one. Otherwise the error lists every field that differs, each wrapping ErrDiffers.
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
	differs("exit_code", got.ExitCode == want.ExitCode && got.Signal == want.Signal &&
		equalCodes(got.ProgramExitCode, want.ProgramExitCode))
	differs("language", got.Language == want.Language && got.LanguageVersion == want.LanguageVersion)
	differs("stdout", got.StdoutSHA256 == want.StdoutSHA256 && got.StdoutTruncated == want.StdoutTruncated)
	differs("stderr", got.StderrSHA256 == want.StderrSHA256 && got.StderrTruncated == want.StderrTruncated)
	differs("files", slices.Equal(got.Files, want.Files) && got.FilesLeftOut == want.FilesLeftOut)
	differs("network", reflect.DeepEqual(got.Network, want.Network))
	a, errA := json.Marshal(got.Isolation)
	b, errB := json.Marshal(want.Isolation)
	differs("isolation", errA == nil && errB == nil && string(a) == string(b))
	if len(errs) == 0 {
		differs("another field of the result", got.ResultSHA256 == want.ResultSHA256)
	}
	return errors.Join(errs...)
}

func equalCodes(a, b *int) bool { return a == b || a != nil && b != nil && *a == *b }

// MatchesRequest returns nil if body is that of the request whose result was signed, and an error that wraps ErrDiffers otherwise.
func (s *Statement) MatchesRequest(body []byte) error {
	if audit.Digest(body) != s.RequestSHA256 {
		return fmt.Errorf("request %w", ErrDiffers)
	}
	return nil
}

// MatchesLog returns nil if log has the entry that the receipt names. It reads the log up to that entry.
func (s *Statement) MatchesLog(log *audit.Log) error {
	if s.Audit == nil {
		return errors.New("receipt: it names no audit entry, because the server has no audit log")
	}
	for e, err := range log.Query(audit.Filter{}) {
		var line *audit.LineError
		switch {
		case errors.As(err, &line): // audit.Log.Verify reports such lines
		case err != nil:
			return err
		case e.Seq == s.Audit.Seq && e.Hash == s.Audit.Hash && e.Run == s.Run:
			return nil
		case e.Seq == s.Audit.Seq:
			return fmt.Errorf("entry %d of the audit log %w", e.Seq, ErrDiffers)
		}
	}
	return fmt.Errorf("receipt: entry %d is not in %s; the entry was removed, or the receipt is for another log", s.Audit.Seq, log.Path())
}

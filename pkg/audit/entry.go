package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Kind is the kind of an entry.
type Kind string

// The kinds of entry.
const (
	KindRun      Kind = "run"
	KindRepaired Kind = "repaired" // the log found damage and continued after it
	KindPruned   Kind = "pruned"   // the oldest entries were removed

	KindRefused       Kind = "refused"        // a server refused a request; Reason is the cause
	KindKey           Kind = "key"            // a key was created or revoked; Reason is which of the two
	KindSession       Kind = "session"        // a session was created or has ended; Reason is which of the two, Run its id
	KindServerStarted Kind = "server_started" // a server began to accept requests
	KindServerStopped Kind = "server_stopped" // a server ended in order; a killed one leaves no such entry
)

// EntryPoint is the entry point through which a run was requested.
type EntryPoint string

// The entry points.
const (
	EntryCLI     EntryPoint = "cli"
	EntryLibrary EntryPoint = "library"
	EntryAPI     EntryPoint = "api"
)

// Kinds returns all kinds of entries.
func Kinds() []Kind {
	return []Kind{KindRun, KindRefused, KindKey, KindSession, KindServerStarted, KindServerStopped, KindRepaired, KindPruned}
}

// EntryPoints returns all entry points.
func EntryPoints() []EntryPoint { return []EntryPoint{EntryCLI, EntryLibrary, EntryAPI} }

// Entry is one line of the log. Its JSON names are a promise to users. Append sets Seq, Prev and Hash, and a Kind or Time that is
// zero.
type Entry struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	Run  string    `json:"run,omitempty"` // id of the run
	Who  Who       `json:"who"`

	Language string   `json:"language,omitempty"`
	Version  string   `json:"language_version,omitempty"`
	Command  []string `json:"command,omitempty"`

	CodeSHA256   string `json:"code_sha256,omitempty"`
	InputSHA256  string `json:"input_sha256,omitempty"` // of stdin, where it was known beforehand
	Code         string `json:"code,omitempty"`         // only with Options.KeepCode
	CodeEncoding string `json:"code_encoding,omitempty"`
	CodeOmitted  string `json:"code_omitted,omitempty"` // why Code is empty in spite of Options.KeepCode

	Policy   Policy          `json:"policy"`
	Verdict  sandbox.Verdict `json:"verdict,omitempty"`
	ExitCode int             `json:"exit_code"` // of the command, as in the result
	// ProgramExitCode is the program's own exit code; nil if a signal ended the program or if there was none.
	ProgramExitCode *int             `json:"program_exit_code"`
	Reason          string           `json:"reason,omitempty"` // one word; for entries that are not runs
	Count           uint64           `json:"count,omitempty"`  // number of events that this entry stands for
	Error           string           `json:"error,omitempty"`  // the server's or the sandbox's own failure, where there was no run
	Metrics         *monitor.Metrics `json:"metrics,omitempty"`
	// Refused describes the names and connections that the network's rules refused.
	Refused []string `json:"refused,omitempty"`

	Repaired *Repaired `json:"repaired,omitempty"`
	Pruned   *Pruned   `json:"pruned,omitempty"`

	Prev string `json:"prev"`
	Hash string `json:"hash,omitempty"`

	raw []byte // as it stands in the log
}

// Line returns the entry's text in the log: one line of JSON, plain ASCII, without its newline. It is nil for an entry that was not
// read by Query or Tail.
func (e Entry) Line() []byte { return e.raw }

// Who identifies the user, process and key that made the request.
type Who struct {
	UID        int        `json:"uid"`
	User       string     `json:"user,omitempty"`
	PID        int        `json:"pid"`
	EntryPoint EntryPoint `json:"door,omitempty"`
	Key        string     `json:"key,omitempty"` // id of the API key that was shown; never the key
}

// Policy is the isolation that was requested and the one that was reached.
type Policy struct {
	Network        network.Policy `json:"network,omitzero"`
	CompileNetwork network.Policy `json:"compile_network,omitzero"` // where a compiler had one
	Require        sandbox.Tier   `json:"require,omitempty"`
	Tier           sandbox.Tier   `json:"tier,omitempty"`
	Backend        string         `json:"backend,omitempty"`
	// Image is the reference of the run's image; ImageDigest is the digest of its manifest.
	Image       string          `json:"image,omitempty"`
	ImageDigest string          `json:"image_digest,omitempty"`
	Limits      *sandbox.Limits `json:"limits,omitempty"`
}

// Repaired is the damage that a writer found before it continued. Several fields may be set.
type Repaired struct {
	// Torn are the lines at the end that are no entries, because their writer was killed. They stay in the file.
	Torn []Torn `json:"torn,omitempty"`
	// MissingFrom and MissingTo are the first and last entry that the head records and the log lacks.
	MissingFrom uint64 `json:"missing_from,omitempty"`
	MissingTo   uint64 `json:"missing_to,omitempty"`
	// Head is what was wrong with the head file; entries before this one may be missing without a trace.
	Head string `json:"head,omitempty"`
}

// Torn identifies the bytes of a line that is no entry.
type Torn struct {
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// maxTorn bounds the torn lines that one entry reports: a killed writer leaves one.
const maxTorn = 16

func tornLine(text []byte) Torn { return Torn{Bytes: len(text), SHA256: Digest(text)} }

// lineStart is the start of every line.
const lineStart = `{"seq":`

// beginsLikeAnEntry reports whether a killed writer can have left this text.
func beginsLikeAnEntry(text []byte) bool {
	n := min(len(text), len(lineStart))
	return string(text[:n]) == lineStart[:n]
}

// Digest returns the hexadecimal SHA-256 of content, as entries have it.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Me returns this process and its user, with that entry point.
func Me(entry EntryPoint) Who {
	return Who{UID: os.Getuid(), User: userName(), PID: os.Getpid(), EntryPoint: entry}
}

// userName looks the name up once; a user without a name is no error.
var userName = sync.OnceValue(func() string {
	u, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		return ""
	}
	return u.Username
})

// The bounds on fields whose content a client chooses, so that a line never exceeds maxLine.
const (
	maxWord    = 256
	maxText    = 2048
	maxCommand = 4096 // also of each list of a network's rules
	maxRefused = 32 << 10
	maxCode    = 256 << 10
	maxLine    = 2 << 20 // maxCode, each byte written as \u00xx, and the rest
)

// clip shortens text and marks the cut with an ellipsis.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func clipAll(args []string, most int) []string {
	var kept []string
	for i, a := range args {
		if most -= len(a) + 1; most < 0 {
			return append(kept, clip(a, max(most+len(a), 0)), fmt.Sprintf("… (%d more)", len(args)-i-1))
		}
		kept = append(kept, a)
	}
	return kept
}

// bounded returns the entry with every field cut to its bound, and without its code unless keepCode is set.
func (e Entry) bounded(keepCode bool) Entry {
	for _, field := range []*string{
		&e.Run, &e.Who.User, (*string)(&e.Who.EntryPoint), &e.Who.Key, &e.Reason, &e.Language, &e.Version, &e.CodeSHA256, &e.InputSHA256,
		(*string)(&e.Policy.Network.Mode), (*string)(&e.Policy.CompileNetwork.Mode), (*string)(&e.Policy.Require),
		(*string)(&e.Policy.Tier), &e.Policy.Backend, &e.Policy.Image, &e.Policy.ImageDigest, (*string)(&e.Verdict),
	} {
		*field = clip(*field, maxWord)
	}
	e.Error = clip(e.Error, maxText)
	e.Command, e.Refused = clipAll(e.Command, maxCommand), clipAll(e.Refused, maxRefused)
	for _, n := range []*network.Policy{&e.Policy.Network, &e.Policy.CompileNetwork} {
		n.Allow, n.Deny = clipAll(n.Allow, maxCommand), clipAll(n.Deny, maxCommand)
		n.Registries, n.Publish = clipAll(n.Registries, maxCommand), clipAll(n.Publish, maxCommand)
	}
	code := e.Code
	e.Code, e.CodeEncoding, e.CodeOmitted = "", "", ""
	switch {
	case !keepCode || code == "":
	case len(code) > maxCode:
		e.CodeOmitted = fmt.Sprintf("%d bytes; the most is %d", len(code), maxCode)
	case utf8.ValidString(code):
		e.Code = code
	default:
		e.Code, e.CodeEncoding = base64.StdEncoding.EncodeToString([]byte(code)), "base64"
	}
	return e
}

// hashField and hashEnd enclose the hash at the end of every line. The hash covers all bytes before hashField.
const (
	hashField = `,"hash":"`
	hashEnd   = `"}`
	hashLen   = 2 * sha256.Size
)

// line encodes the entry, sets its hash and ends it with a newline. The line is plain ASCII: no text in it can break the line, move a
// cursor or reorder what a terminal shows.
func (e *Entry) line() ([]byte, error) {
	e.Hash = "" // the hash covers the line without this field
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil {
		return nil, fmt.Errorf("encode the entry: %w", err)
	}
	line := escapeNonASCII(bytes.TrimSuffix(text.Bytes(), []byte("}\n")))
	e.Hash = Digest(line)
	line = append(line, hashField+e.Hash+hashEnd+"\n"...)
	if len(line) > maxLine {
		return nil, fmt.Errorf("encode the entry: %d bytes; the most is %d", len(line), maxLine)
	}
	return line, nil
}

// escapeNonASCII writes DEL and all characters beyond ASCII as escapes. In JSON they occur only within strings.
func escapeNonASCII(text []byte) []byte {
	out := make([]byte, 0, len(text)+256)
	for _, r := range string(text) {
		switch {
		case r < 0x7f:
			out = append(out, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// Causes for which a line is refused.
var (
	errNoEntry = errors.New("not an entry of an audit log")
	errHash    = errors.New("the content does not match the hash")
)

// link holds the fields of a line that the chain needs.
type link struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"`
	Prev     string    `json:"prev"`
	Repaired *Repaired `json:"repaired"`
	Pruned   *Pruned   `json:"pruned"`
	Hash     string    `json:"hash"`
}

// parseLink reads a line without its newline. With errHash, link holds the fields that the line claims.
func parseLink(line []byte) (link, error) {
	var l link
	tail := len(hashField) + hashLen + len(hashEnd)
	if len(line) <= tail || len(line) > maxLine {
		return l, errNoEntry
	}
	body, end := line[:len(line)-tail], string(line[len(line)-tail:])
	if !strings.HasPrefix(end, hashField) || !strings.HasSuffix(end, hashEnd) {
		return l, errNoEntry
	}
	if err := json.Unmarshal(line, &l); err != nil || l.Seq == 0 || len(l.Prev) != hashLen {
		return l, errNoEntry
	}
	if l.Hash != end[len(hashField):len(hashField)+hashLen] {
		return l, errNoEntry // a second hash under another spelling of its name
	}
	if Digest(body) != l.Hash {
		return l, errHash
	}
	return l, nil
}

// ParseEntry reads one line of a log, with or without its newline, and checks its hash. It does not check the entry's place in the
// chain; Verify does.
func ParseEntry(line []byte) (Entry, error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if _, err := parseLink(line); err != nil {
		return Entry{}, err
	}
	var e Entry
	if err := json.Unmarshal(line, &e); err != nil {
		return Entry{}, fmt.Errorf("%w: %w", errNoEntry, err)
	}
	return e, nil
}

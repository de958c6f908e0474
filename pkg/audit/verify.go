package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// FaultKind is the kind of damage that Verify found.
type FaultKind string

// The kinds of fault.
const (
	FaultEdited     FaultKind = "edited"     // an entry does not match its hash, or the Prev of the next entry
	FaultInserted   FaultKind = "inserted"   // a number occurs twice
	FaultDeleted    FaultKind = "deleted"    // numbers are missing
	FaultReordered  FaultKind = "reordered"  // an entry is after a later one
	FaultTruncated  FaultKind = "truncated"  // the newest entries are missing
	FaultUnreadable FaultKind = "unreadable" // a line is no entry, and no writer reported it as torn
	FaultHead       FaultKind = "head"       // the head file is missing, invalid, or belongs to another log
)

// Fault is a place where the chain is broken.
type Fault struct {
	Kind FaultKind `json:"kind"`
	File string    `json:"file"`
	Line int       `json:"line,omitempty"` // from 1; absent for a fault without a line
	Seq  uint64    `json:"seq,omitempty"`
	What string    `json:"what"`

	missing uint64 // of FaultDeleted: the last missing number
}

// Note is damage that a crash explains.
type Note struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	Seq  uint64 `json:"seq,omitempty"`
	What string `json:"what"`
}

// Report is the result of Verify.
type Report struct {
	OK      bool      `json:"ok"`
	Files   []string  `json:"files"`
	Entries uint64    `json:"entries"`
	First   uint64    `json:"first_seq"`
	Last    uint64    `json:"last_seq"`
	Newest  time.Time `json:"newest,omitzero"`
	// Hash is that of the newest entry. A copy of it kept elsewhere proves all entries of today.
	Hash   string  `json:"hash,omitempty"`
	Faults []Fault `json:"faults"`
	Notes  []Note  `json:"notes"`
	// More counts faults beyond the first thousand.
	More int `json:"more_faults,omitempty"`
}

const maxFaults = 1000

// Verify reads the whole log, rotated files included, and reports every place where the chain is broken: entries that were changed,
// removed, added or moved. Torn lines that a writer repaired are notes. The error means that a part could not be read; the report then
// covers the rest. A log that does not exist is an error.
func (l *Log) Verify() (Report, error) {
	v := &verifier{report: Report{Files: []string{}, Faults: []Fault{}, Notes: []Note{}}}
	s, err := l.snapshot()
	if err != nil {
		return v.report, l.failed(err)
	}
	defer s.close()
	if len(s.pieces) == 0 && s.head == (head{}) && (s.headErr == nil || errors.Is(s.headErr, errHeadMissing)) {
		return v.report, &sandbox.Error{
			Op: "audit verify", Kind: sandbox.ErrNotFound, Err: &fs.PathError{Op: "open", Path: l.Path(), Err: fs.ErrNotExist},
			Hint: "--audit-log FILE; the first run makes the log",
		}
	}
	v.head = s.head
	for _, p := range s.pieces {
		v.file = filepath.Join(l.dir, p.name)
		v.report.Files = append(v.report.Files, v.file)
		s.each(p, 0, func(no int, text []byte) bool {
			v.line(no, text)
			return true
		})
	}
	v.finish(filepath.Join(l.dir, l.headName()), s.headErr)
	v.report.OK = len(v.report.Faults) == 0 && s.err == nil
	if s.err != nil {
		return v.report, l.failed(s.err)
	}
	return v.report, nil
}

// verifier checks the chain line by line.
type verifier struct {
	report Report
	head   head
	file   string // being read

	last    link      // the entry with the highest number so far
	hashes  []string  // hashes that the next entry's Prev may have: several where its number occurs twice
	atHead  string    // hash of the log's entry with the head's number
	strange []strange // lines since the last entry that are no entries
	first   link      // the first entry of the log
	pruned  link      // the last entry of kind pruned
}

// strange is a line that is no entry. A killed writer may have left it.
type strange struct {
	Torn
	file string
	line int
	torn bool // it begins like an entry
}

func (v *verifier) fault(f Fault) {
	if f.File == "" {
		f.File = v.file
	}
	if len(v.report.Faults) == maxFaults {
		v.report.More++
		return
	}
	v.report.Faults = append(v.report.Faults, f)
}

func (v *verifier) note(no int, seq uint64, format string, args ...any) {
	if len(v.report.Notes) < maxFaults {
		v.report.Notes = append(v.report.Notes, Note{File: v.file, Line: no, Seq: seq, What: fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) line(no int, text []byte) {
	e, err := parseLink(text)
	if errors.Is(err, errNoEntry) {
		if len(v.strange) == maxTorn {
			v.giveUp(v.strange[0])
			v.strange = slices.Delete(v.strange, 0, 1)
		}
		v.strange = append(v.strange, strange{Torn: tornLine(text), file: v.file, line: no, torn: beginsLikeAnEntry(text)})
		return
	}
	v.acceptStrange(e, no)
	v.report.Entries++
	if v.report.First == 0 {
		v.report.First, v.first = e.Seq, e
	}
	if e.Pruned != nil {
		v.pruned = e
	}
	if err != nil {
		v.fault(Fault{Kind: FaultEdited, Line: no, Seq: e.Seq, What: errHash.Error()})
	}
	if e.Seq == v.head.Seq && v.atHead != v.head.Hash {
		v.atHead = e.Hash
	}
	v.place(e, no)
	if r := e.Repaired; r != nil {
		v.repaired(*r, e, no)
	}
}

// place compares an entry's number and Prev with the entries before it.
func (v *verifier) place(e link, no int) {
	if e.Seq <= v.last.Seq {
		v.misplaced(e, no)
		return
	}
	switch want := v.last.Seq + 1; {
	case e.Seq > want && e.Repaired != nil && e.Repaired.MissingFrom == want && e.Repaired.MissingTo == e.Seq-1:
		// This entry reports the gap itself; repaired makes it a fault.
	case e.Seq > want:
		what := fmt.Sprintf("entries %d to %d are missing before it", want, e.Seq-1)
		if e.Seq-1 == want {
			what = fmt.Sprintf("entry %d is missing before it", want)
		}
		if v.last.Seq == 0 {
			what += ": the log has lost its beginning"
		}
		v.fault(Fault{Kind: FaultDeleted, Line: no, Seq: want, missing: e.Seq - 1, What: what})
	case v.last.Seq == 0 && e.Prev != strings.Repeat("0", hashLen):
		v.fault(Fault{Kind: FaultDeleted, Line: no, Seq: e.Seq, What: "it is numbered as the first entry, but refers to one before it"})
	case v.last.Seq > 0 && !slices.Contains(v.hashes, e.Prev):
		v.fault(Fault{Kind: FaultEdited, Line: no, Seq: v.last.Seq,
			What: fmt.Sprintf("entry %d refers to another entry %d than the one in the log", e.Seq, v.last.Seq)})
	}
	v.last, v.hashes = e, append(v.hashes[:0], e.Hash)
	v.report.Newest = e.Time
}

// misplaced reports an entry whose number is not above all numbers before it.
func (v *verifier) misplaced(e link, no int) {
	gap := slices.IndexFunc(v.report.Faults, func(f Fault) bool {
		return f.Kind == FaultDeleted && f.Seq <= e.Seq && e.Seq <= f.missing
	})
	if gap < 0 {
		v.fault(Fault{Kind: FaultInserted, Line: no, Seq: e.Seq,
			What: fmt.Sprintf("entry %d occurs twice; sandbox-run did not write one of the two", e.Seq)})
		if e.Seq == v.last.Seq {
			v.hashes = append(v.hashes, e.Hash) // the next entry may follow either of the two
		}
		return
	}
	// The entry was reported as missing: shrink that gap and report the order instead.
	f := v.report.Faults[gap]
	v.report.Faults = slices.Delete(v.report.Faults, gap, gap+1)
	for _, rest := range []Fault{{Seq: f.Seq, missing: e.Seq - 1}, {Seq: e.Seq + 1, missing: f.missing}} {
		if rest.Seq <= rest.missing {
			rest.Kind, rest.File, rest.Line = FaultDeleted, f.File, f.Line
			rest.What = fmt.Sprintf("entries %d to %d are missing before it", rest.Seq, rest.missing)
			v.fault(rest)
		}
	}
	v.fault(Fault{Kind: FaultReordered, Line: no, Seq: e.Seq, What: fmt.Sprintf("entry %d is after entry %d", e.Seq, v.last.Seq)})
}

// repaired reports the damage that a writer found and a crash does not explain. It stays a fault forever.
func (v *verifier) repaired(r Repaired, e link, no int) {
	when := e.Time.Format(time.RFC3339)
	if r.MissingTo > 0 {
		v.fault(Fault{Kind: FaultTruncated, Line: no, Seq: r.MissingFrom,
			What: fmt.Sprintf("entries %d to %d were missing when a writer checked at %s", r.MissingFrom, r.MissingTo, when)})
	}
	if r.Head != "" {
		v.fault(Fault{Kind: FaultHead, Line: no, Seq: e.Seq,
			What: fmt.Sprintf("a writer checked the head at %s: %s; entries before this one may have been removed from the end", when, r.Head)})
	}
}

// acceptStrange makes notes of lines that are no entries, if the entry after them reports them as torn.
func (v *verifier) acceptStrange(e link, no int) {
	for _, s := range v.strange {
		if e.Repaired != nil && s.torn && slices.Contains(e.Repaired.Torn, s.Torn) {
			v.note(s.line, 0, "a torn line of %d bytes: its writer was killed; line %d reports it", s.Bytes, no)
			continue
		}
		v.giveUp(s)
	}
	v.strange = v.strange[:0]
}

// forgivePruned makes a note of a missing beginning that an unchanged entry of kind pruned covers.
func (v *verifier) forgivePruned() {
	p := v.pruned.Pruned
	lost := slices.IndexFunc(v.report.Faults, func(f Fault) bool { return f.Kind == FaultDeleted && f.Seq == 1 && f.missing == v.first.Seq-1 })
	edited := slices.ContainsFunc(v.report.Faults, func(f Fault) bool { return f.Kind == FaultEdited && f.Seq == v.pruned.Seq })
	if p == nil || lost < 0 || edited || v.first.Seq-1 > p.To || v.first.Seq-1 == p.To && v.first.Prev != p.Hash {
		return
	}
	f := v.report.Faults[lost]
	v.report.Faults = slices.Delete(v.report.Faults, lost, lost+1)
	v.report.Notes = slices.Insert(v.report.Notes, 0, Note{File: f.File, Line: f.Line, Seq: v.first.Seq,
		What: fmt.Sprintf("entries 1 to %d were pruned, as entry %d says, %s", f.missing, v.pruned.Seq, v.pruned.Time.Format(time.RFC3339))})
}

func (v *verifier) giveUp(s strange) {
	v.fault(Fault{Kind: FaultUnreadable, File: s.file, Line: s.line, What: fmt.Sprintf("its %d bytes are not an entry", s.Bytes)})
}

// finish compares the end of the log with the head.
func (v *verifier) finish(headFile string, headErr error) {
	r := &v.report
	r.Last, r.Hash = v.last.Seq, v.last.Hash
	v.forgivePruned()
	for _, s := range v.strange {
		// Only torn lines at the very end can be without a report: the next writer adds it.
		if s.torn && s.file == r.Files[len(r.Files)-1] {
			v.note(s.line, 0, "a torn line of %d bytes: its writer was killed; the next writer reports it", s.Bytes)
			continue
		}
		v.giveUp(s)
	}
	fault := func(kind FaultKind, seq uint64, format string, args ...any) {
		v.fault(Fault{Kind: kind, File: headFile, Seq: seq, What: fmt.Sprintf(format, args...)})
	}
	switch behind := v.last.Seq - v.head.Seq; {
	case headErr != nil && r.Entries == 0 && len(r.Files) == 0: // there is no log
	case headErr != nil:
		fault(FaultHead, 0, "%v: missing newest entries can not be detected", headErr)
	case v.head.Seq > v.last.Seq && v.last.Seq+1 == v.head.Seq:
		fault(FaultTruncated, v.head.Seq, "entry %d was written and is missing from the end", v.head.Seq)
	case v.head.Seq > v.last.Seq:
		fault(FaultTruncated, v.last.Seq+1, "entries %d to %d were written and are missing from the end", v.last.Seq+1, v.head.Seq)
	case v.head.Seq > 0 && v.atHead != v.head.Hash:
		fault(FaultHead, v.head.Seq, "the head's entry %d differs from the log's", v.head.Seq)
	case behind > 1:
		fault(FaultHead, v.head.Seq, "the head lacks entries %d to %d", v.head.Seq+1, v.last.Seq)
	case behind == 1:
		v.note(0, v.last.Seq, "the head lacks the newest entry: its writer was killed; the next writer updates it")
	}
	order := func(f Fault) int { // files in their order, the head last
		if i := slices.Index(r.Files, f.File); i >= 0 {
			return i
		}
		return len(r.Files)
	}
	slices.SortStableFunc(r.Faults, func(a, b Fault) int { return cmp.Or(order(a)-order(b), a.Line-b.Line) })
}

package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// store is the directory with the accepted runs:
//
//	ID.q      accepted: a record with the request; it is run, after a restart too
//	ID.r      the same, started: after a crash it is reported as lost
//	ID.d      finished: a record, then the events if they were in memory
//	ID.e0 …   events in files
//	lock      locked by the server that uses the directory
//
// A file gets its name when it is complete and on disk (written, synced, renamed), so an acknowledged run survives a crash.
type store struct {
	dir     *userdir.Dir
	lock    *os.File
	durable bool // it outlives the server, so files are synced
}

// record is the stored state of a run.
type record struct {
	ID        string            `json:"id"`
	Principal Principal         `json:"principal"`
	Accepted  time.Time         `json:"accepted"`
	Started   *time.Time        `json:"started,omitempty"`
	Ended     *time.Time        `json:"ended,omitempty"`
	State     wire.RunState     `json:"state"`
	Language  string            `json:"language,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Verdict   string            `json:"verdict,omitempty"`
	Problem   *wire.Problem     `json:"problem,omitempty"`
	Receipt   json.RawMessage   `json:"receipt,omitempty"`
	Digest    string            `json:"request_sha256"`
	Key       string            `json:"idempotency_key,omitempty"`
	Segments  []segmentRecord   `json:"segments,omitempty"`
	Outputs   [][2]int64        `json:"outputs,omitempty"` // offset and length of large outputs in the result
	Request   json.RawMessage   `json:"request,omitempty"` // until the run ends
}

func (c *record) info() wire.RunInfo {
	return wire.RunInfo{
		ID: c.ID, State: c.State, Language: c.Language, Labels: c.Labels, Accepted: c.Accepted, Started: c.Started, Ended: c.Ended,
		Verdict: c.Verdict, Error: c.Problem, Receipt: c.Receipt,
	}
}

// segmentRecord is a segment of a journal. A segment without a file follows the record itself.
type segmentRecord struct {
	First uint64 `json:"first"`
	Count uint64 `json:"count"`
	Size  int64  `json:"size"`
	File  string `json:"file,omitempty"`
}

const (
	suffixQueued  = ".q"
	suffixRunning = ".r"
	suffixDone    = ".d"
	temporary     = userdir.Temporary
	lockName      = "lock"
)

func openStore(path string, durable bool) (*store, error) {
	dir, err := userdir.OpenDir(path, userdir.Write)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, durable: durable}
	if s.lock, err = dir.Open(lockName, userdir.Write); err == nil {
		err = userdir.Lock(s.lock, false, 0)
	}
	if errors.Is(err, userdir.ErrBusy) {
		err = fmt.Errorf("another server uses %s: %w; give this one a directory of its own", path, err)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *store) close() {
	if s.lock != nil {
		_ = s.lock.Close()
	}
	_ = s.dir.Close()
}

// accept stores a run that is to be run.
func (s *store) accept(r *record) error {
	return s.write(r.ID+suffixQueued, wire.AppendJSON(nil, r), nil, s.durable)
}

func (s *store) write(name string, head, events []byte, sync bool) error {
	return s.dir.Replace(name, sync, func(w io.Writer) error {
		_, err := w.Write(head)
		_, failed := w.Write(events)
		return errors.Join(err, failed)
	})
}

// begin marks a run as started. A power cut may lose the mark: then it is run again.
func (s *store) begin(id string) error { return s.dir.Rename(id+suffixQueued, id+suffixRunning) }

// finish stores the outcome of a run with its closed journal.
func (s *store) finish(r *record, j *journal, sync bool) error {
	memory, segments, err := j.finalSegments(sync)
	if err != nil {
		return err
	}
	r.Segments = nil
	for _, seg := range segments {
		r.Segments = append(r.Segments, segmentRecord{seg.first, seg.count, seg.size, seg.file})
	}
	head := wire.AppendJSON(nil, r)
	if err := s.write(r.ID+suffixDone, head, memory, sync); err != nil {
		return err
	}
	if memory != nil {
		j.setFile(r.ID+suffixDone, int64(len(head)))
	}
	_ = s.dir.Remove(r.ID + suffixQueued)
	_ = s.dir.Remove(r.ID + suffixRunning)
	return nil
}

// forget removes a run's record. Its journal removes its own files.
func (s *store) forget(id string) {
	for _, suffix := range []string{suffixDone, suffixQueued, suffixRunning} {
		_ = s.dir.Remove(id + suffix)
	}
}

// found is a stored run of an earlier server.
type found struct {
	record
	journal *journal // nil for a queued run
}

// load returns the stored runs, the oldest first. Files that can not be read are renamed, not removed, and reported in problems.
func (s *store) load() (runs []found, problems []error) {
	names, err := s.dir.Names()
	if err != nil {
		return nil, []error{err}
	}
	slices.Sort(names)
	all := map[string]bool{}
	for _, n := range names {
		all[n] = true
	}
	for _, n := range names {
		id, suffix := strings.TrimSuffix(n, filepath.Ext(n)), filepath.Ext(n)
		switch {
		case suffix == temporary, suffix == ".tmp": // a version before this one had another suffix
			_ = s.dir.Remove(n)
		case suffix == suffixDone, suffix == suffixRunning && !all[id+suffixDone],
			suffix == suffixQueued && !all[id+suffixDone] && !all[id+suffixRunning]:
			f, err := s.read(id, suffix, all)
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", n, err))
				_ = s.dir.Rename(n, n+".unreadable")
				continue
			}
			runs = append(runs, f)
		case suffix == suffixRunning, suffix == suffixQueued:
			_ = s.dir.Remove(n) // finish wrote the outcome and crashed before it removed this file
		}
	}
	slices.SortFunc(runs, func(a, b found) int { return a.Accepted.Compare(b.Accepted) })
	s.removeStraySegments(names, runs)
	return runs, problems
}

// removeStraySegments removes segments without a run.
func (s *store) removeStraySegments(names []string, runs []found) {
	known := map[string]bool{}
	for _, r := range runs {
		known[r.ID] = true
	}
	for _, n := range names {
		if id, ext, ok := strings.Cut(n, ".e"); ok && !known[id] && strings.Trim(ext, "0123456789") == "" {
			_ = s.dir.Remove(n)
		}
	}
}

func (s *store) read(id, suffix string, all map[string]bool) (found, error) {
	f := found{}
	file, err := s.dir.Open(id+suffix, userdir.Read)
	if err != nil {
		return f, err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	head, err := in.ReadBytes('\n')
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(head, &f.record); err != nil {
		return f, err
	}
	if f.ID != id {
		return f, fmt.Errorf("the file has the record of run %s", f.ID)
	}
	switch suffix {
	case suffixQueued:
		f.State = wire.StateQueued
		return f, nil
	case suffixRunning:
		f.State = wire.StateLost
		f.journal = openJournal(s.dir, id, s.findSegments(id, all))
		return f, nil
	}
	var segments []*segment
	for _, r := range f.Segments {
		seg := &segment{first: r.First, count: r.Count, size: r.Size, file: r.File}
		if seg.file == "" {
			seg.file, seg.base = id+suffixDone, int64(len(head))
		}
		segments = append(segments, seg)
	}
	f.journal = openJournal(s.dir, id, segments)
	return f, nil
}

// findSegments returns the segments of a lost run, as far as their lines are complete and consecutive.
func (s *store) findSegments(id string, all map[string]bool) (segments []*segment) {
	var numbers []int
	for n := range all {
		if text, ok := strings.CutPrefix(n, id+".e"); ok {
			if number, err := strconv.Atoi(text); err == nil {
				numbers = append(numbers, number)
			}
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		seg, err := s.countLines(segmentName(id, n))
		if err != nil || seg.count == 0 {
			break
		}
		if len(segments) > 0 && segments[len(segments)-1].end() != seg.first {
			break
		}
		segments = append(segments, seg)
	}
	return segments
}

// countLines counts the lines of a segment.
func (s *store) countLines(name string) (*segment, error) {
	f, err := s.dir.Open(name, userdir.Read)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seg := &segment{file: name}
	in := bufio.NewReaderSize(f, chunk)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return seg, nil // drop an incomplete last line
		}
		if err != nil {
			return nil, err
		}
		if seg.count == 0 {
			if seg.first, err = seqOf(line); err != nil {
				return nil, err
			}
		}
		seg.count++
		seg.size += int64(len(line))
	}
}

// seqOf returns the event number of a line.
func seqOf(line []byte) (uint64, error) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"seq":`))
	digits, _, cut := bytes.Cut(rest, []byte(","))
	if !ok || !cut {
		return 0, errors.New("the line is no event")
	}
	return strconv.ParseUint(string(digits), 10, 64)
}

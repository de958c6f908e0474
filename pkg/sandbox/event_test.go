package sandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Output returns a copy of the kept part of a stream.
func (r *recorder) Output(i int) Output { return r.output(i, false) }

// For any writes in any pieces, the recorder keeps the head and the tail, the live reader gets everything, and the
// spilled file is the whole.
func TestRecorder(t *testing.T) { rapid.Check(t, recorderKeeps) }

func FuzzRecorder(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(rapid.MakeFuzz(recorderKeeps))
}

func recorderKeeps(t *rapid.T) {
	keep := rapid.IntRange(1, 64).Draw(t, "keep")
	dir, err := os.MkdirTemp("", "recorder-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var spill *Spill
	limit := 0
	if rapid.Bool().Draw(t, "spill") {
		limit = rapid.IntRange(1, 400).Draw(t, "limit")
		spill = &Spill{Dir: dir, Limit: Size(limit)}
	}
	var live []Event
	full := 0
	r := newRecorder(Size(keep), func(ev Event) { ev.Data = slices.Clone(ev.Data); live = append(live, ev) }, spill, nil, func() { full++ })
	var all [2][]byte
	dropped := false
	for i := range rapid.IntRange(0, 40).Draw(t, "writes") {
		if rapid.IntRange(0, 9).Draw(t, "other") == 0 {
			r.Emit(Event{Kind: EventMetric}, rapid.Bool().Draw(t, "wait"))
			continue
		}
		stream := rapid.IntRange(0, 1).Draw(t, "stream")
		data := bytes.Repeat([]byte{byte('a' + i%26)}, rapid.IntRange(0, 40).Draw(t, "length"))
		for j := range data {
			data[j] += byte(j % 3)
		}
		all[stream] = append(all[stream], data...)
		dropped = dropped || len(all[stream]) > keep
		r.Write(stream, data)
		clear(data) // the recorder must not have kept the slice
	}
	if full > 1 || (full == 1) != dropped {
		t.Fatalf("told of %d overflows, dropped %v", full, dropped)
	}
	var heard [2][]byte
	for i, ev := range live {
		if ev.Seq != uint64(i+1) {
			t.Fatalf("event %d has number %d", i+1, ev.Seq)
		}
		if s := slices.Index(streamKinds[:], ev.Kind); s >= 0 {
			if ev.Offset != uint64(len(heard[s])) {
				t.Fatalf("offset %d, want %d", ev.Offset, len(heard[s]))
			}
			heard[s] = append(heard[s], ev.Data...)
		}
	}
	head := (keep + 1) / 2
	for s := range all {
		if !bytes.Equal(heard[s], all[s]) {
			t.Fatalf("live %q, written %q", heard[s], all[s])
		}
		out := r.Output(s)
		wantHead, wantTail := all[s][:min(head, len(all[s]))], []byte(nil)
		if rest := all[s][len(wantHead):]; len(rest) > 0 {
			wantTail = rest[max(0, len(rest)-(keep-head)):]
		}
		if !bytes.Equal(out.Head, wantHead) || !bytes.Equal(out.Tail, wantTail) || out.Total != uint64(len(all[s])) ||
			out.Dropped != uint64(len(all[s])-len(wantHead)-len(wantTail)) || out.Truncated() != (len(all[s]) > keep) {
			t.Fatalf("kept %+v of %q", out, all[s])
		}
		if !bytes.Equal(out.Bytes(), append(slices.Clone(wantHead), wantTail...)) {
			t.Fatalf("bytes %q", out.Bytes())
		}
	}
	cut := spill != nil && slices.ContainsFunc(all[:], func(b []byte) bool { return len(b) > max(keep, limit) })
	if err := r.Close(); cut != (err != nil) {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.Write(0, []byte("late"))
	r.Emit(Event{Kind: EventPhase}, true)
	for s := range all {
		file := r.Output(s).File
		if (file != "") != (spill != nil && len(all[s]) > keep) {
			t.Fatalf("spilled to %q", file)
		}
		if file == "" {
			continue
		}
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, all[s][:min(limit, len(all[s]))]) {
			t.Fatalf("spilled %q of %q (%v)", got, all[s], err)
		}
	}
}

func TestRecorderSpillFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "stdout"), []byte("another user's"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRecorder(4, nil, &Spill{Dir: dir}, nil, nil)
	r.Write(0, []byte("0123456789"))
	r.Write(1, []byte("0123456789"))
	if out := r.Output(0); out.File != "" || string(out.Bytes()) != "0189" {
		t.Errorf("%+v", out)
	}
	if err := r.Close(); err == nil {
		t.Error("the spill file was not made, and Close returns no error")
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "stdout")); string(b) != "another user's" {
		t.Errorf("overwritten: %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "stderr")); string(b) != "0123456789" {
		t.Errorf("stderr: %q", b)
	}
	if st, err := os.Stat(filepath.Join(dir, "stderr")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// A reader that is busy misses samples and nothing else.
func TestRecorderSkipsSamples(t *testing.T) {
	inside, release := make(chan struct{}), make(chan struct{})
	var kinds []EventKind
	r := newRecorder(100, func(ev Event) {
		kinds = append(kinds, ev.Kind)
		if ev.Kind == EventStdout {
			close(inside)
			<-release
		}
	}, nil, nil, nil)
	done := make(chan struct{})
	go func() { defer close(done); r.Write(0, []byte("x")) }()
	<-inside
	if !r.busy() {
		t.Error("not busy")
	}
	r.Emit(Event{Kind: EventMetric}, false) // must not block
	if got := r.Output(0); string(got.Bytes()) != "x" {
		t.Errorf("what is kept can not be read while a reader blocks: %q", got.Bytes())
	}
	close(release)
	<-done
	r.Emit(Event{Kind: EventMetric}, false)
	if !slices.Equal(kinds, []EventKind{EventStdout, EventMetric}) || r.busy() {
		t.Errorf("%q", kinds)
	}
}

// A program that can reach the directory of kept output may put a link in its place, or in a file's: neither is followed (F7).
func TestRecorderSpillFollowsNoLink(t *testing.T) {
	base := t.TempDir()
	dir, outside := filepath.Join(base, "kept"), filepath.Join(base, "outside")
	for _, d := range []string{dir, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(outside, "stderr"), filepath.Join(dir, "stderr")); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	r := newRecorder(4, nil, &Spill{Dir: dir}, nil, nil)
	if err := os.Rename(dir, filepath.Join(base, "moved")); err != nil {
		t.Skip("a directory that is open can not be moved here: ", err)
	}
	if err := os.Symlink(outside, dir); err != nil {
		t.Fatal(err)
	}
	for stream := range 2 {
		r.Write(stream, []byte("much longer than four bytes"))
	}
	if err := r.Close(); err == nil {
		t.Error("a file that could not be made is not reported")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("written elsewhere: %v, %v", left, err)
	}
	if text, err := os.ReadFile(filepath.Join(base, "moved", "stdout")); err != nil || string(text) != "much longer than four bytes" {
		t.Errorf("%q, %v", text, err)
	}
}

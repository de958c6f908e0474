package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// FuzzEncode: appendEvent writes the same bytes as encoding/json.
func FuzzEncode(f *testing.F) {
	for _, seed := range []string{"", "plain", "<&>\"\\/", "\x00\x01\b\f\n\r\t\x1f\x7f", "\u2028\u2029\u202a", "\xe2\x80", "ä😀", "\xff\xfe",
		"\xe2\x80\xa8x"} {
		f.Add([]byte(seed), uint64(0), "run")
	}
	f.Fuzz(func(t *testing.T, data []byte, offset uint64, phase string) {
		ev := sandbox.Event{Seq: offset ^ 7, Time: time.Unix(int64(offset%1e9), int64(offset%1e9)), Kind: sandbox.EventStdout, Offset: offset,
			Data: data, Phase: strings.ToValidUTF8(phase, "")}
		if got, want := appendEvent(nil, &ev), wire.AppendJSON(nil, ev.Document()); !bytes.Equal(got, want) {
			t.Fatalf("%s instead of %s", got, want)
		}
		if got := kindOf(appendEvent(nil, &ev)); got != "stdout" {
			t.Fatalf("%q", got)
		}
	})
}

// The last line equals the encoded event of the executor, and resultAt finds the result in it.
func TestResultLine(t *testing.T) {
	r := &executor.Result{Language: "x"}
	at := time.Now()
	doc, err := r.Encode()
	must(t, err)
	var line bytes.Buffer
	l := newResultLine(9, at, doc)
	if n, err := l.WriteTo(&line); err != nil || n != l.size() {
		t.Errorf("%d bytes of %d, %v", n, l.size(), err)
	}
	got := line.Bytes()
	want := wire.AppendJSON(nil, executor.Event{Event: sandbox.Event{Seq: 9, Time: at, Kind: executor.EventResult}, Result: r})
	if !bytes.Equal(got, want) {
		t.Errorf("%s instead of %s", got, want)
	}
	text, err := json.Marshal(r)
	must(t, err)
	if from := resultAt(got); string(got[from:]) != string(text)+resultEnd {
		t.Errorf("%s", got[from:])
	}
	if resultAt([]byte(`{"seq":1,"time":"x","kind":"stdout","data":",\"kind\":\"result\",\"result\":{}"}`+"\n")) >= 0 {
		t.Error("output is no result")
	}
}

// FuzzQuery: every query for events gives a number or a problem.
func FuzzQuery(f *testing.F) {
	f.Add("from=1", "")
	f.Add("from=18446744073709551615", "9223372036854775807")
	f.Add("from=%", "-1")
	f.Fuzz(func(t *testing.T, query, last string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.RawQuery = query
		r.Header["Last-Event-Id"] = []string{last}
		if _, err := readFrom(r); err != nil {
			var p *wire.Problem
			if !errors.As(err, &p) || p.Status != 422 && p.Status != 400 {
				t.Fatal(err)
			}
		}
		_, _, _ = readCursor(query)
		_, _ = Negotiate(&http.Request{Header: http.Header{"Accept": {query, last}}}, wire.TypeJSON, wire.TypeSSE)
	})
}

// TestJournal: readers get the lines unchanged, from any line on, in memory and in files, during and after writing.
func TestJournal(t *testing.T) {
	dir, err := userdir.OpenDir(filepath.Join(t.TempDir(), "j"), userdir.Write)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for _, k := range []Keep{{Memory: 1 << 20, Events: 1 << 30}, {Memory: 1, Events: 1 << 30}, {Memory: 2000, Events: 40_000}} {
		j := newJournal(dir, NewID(), &k)
		var all [][]byte
		for n := 1; n <= 500; n++ {
			line := appendEvent(nil, &sandbox.Event{Seq: uint64(n), Kind: sandbox.EventStdout,
				Data: bytes.Repeat([]byte("x"), random.IntN(200)*random.IntN(2))})
			if n == 250 {
				line = appendEvent(nil, &sandbox.Event{Seq: uint64(n), Kind: sandbox.EventStdout, Data: bytes.Repeat([]byte("y"), 3*chunk)})
			}
			if n < 500 {
				all = append(all, line)
				j.append(t.Context(), line)
			}
		}
		must(t, j.close(func(seq uint64) *resultLine {
			l := newResultLine(seq, time.Now(), sandbox.NewJSON([]byte(`{"z":"`+strings.Repeat("z", 2*chunk)+`"}`)))
			var b bytes.Buffer
			_, _ = l.WriteTo(&b)
			all = append(all, b.Bytes())
			return l
		}))
		if _, next := j.kept(); next != 500 {
			t.Errorf("the last line shows before the end: %d", next)
		}
		j.end()
		first, next := j.kept()
		if next != 501 || k.Events > 1<<20 && first != 1 || k.Events == 40_000 && first == 1 {
			t.Fatalf("%d to %d are kept", first, next)
		}
		for from := uint64(0); from <= 502; from++ {
			r := j.newReader(from)
			at := max(from, 1)
			var lines []byte
			for {
				p, err := r.readMore(t.Context())
				n := p.first
				if len(p.data) > chunk && k.Memory == 1 {
					t.Fatalf("%d bytes at a time", len(p.data))
				}
				if p.continued != (len(lines) > 0) && err == nil {
					t.Fatalf("from %d: continued %v after %d bytes", from, p.continued, len(lines))
				}
				var g *gap
				if errors.As(err, &g) {
					if g.from != at || g.to != first-1 {
						t.Fatalf("from %d: %v", from, g)
					}
					at = first
					continue
				}
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil || n != at {
					t.Fatalf("from %d: %d, %v", from, n, err)
				}
				for lines = append(lines, p.data...); len(lines) > 0 && !p.open; {
					end := bytes.IndexByte(lines, '\n') + 1
					if !bytes.Equal(lines[:end], all[at-1]) {
						t.Fatalf("from %d: line %d differs", from, at)
					}
					lines = lines[end:]
					at++
				}
			}
			r.close()
			if at != max(from, 501) {
				t.Fatalf("from %d it ends at %d", from, at)
			}
		}
		last, err := j.last()
		must(t, err)
		if text, err := io.ReadAll(io.NewSectionReader(last, 0, last.size)); err != nil || !bytes.Equal(text, all[499]) {
			t.Errorf("the last line: %v", err)
		}
		last.reader.close()
		j.forget()
		if names, _ := dir.Names(); len(names) != 0 {
			t.Errorf("%v is left", names)
		}
	}
}

// TestJournalWithoutDisk: without a writable disk the newest lines are kept, and readers get a gap.
func TestJournalWithoutDisk(t *testing.T) {
	dir, err := userdir.OpenDir(filepath.Join(t.TempDir(), "j"), userdir.Write)
	if err != nil {
		t.Fatal(err)
	}
	j := newJournal(dir, "x", &Keep{Memory: 100, Events: 1000})
	_ = dir.Close() // no file can be made any more
	line := []byte(`{"seq":1,"kind":"stdout"}` + "\n")
	for range 50 {
		j.append(t.Context(), line)
	}
	if j.broken == nil {
		t.Fatal("the disk works")
	}
	must(t, j.close(func(seq uint64) *resultLine { return newResultLine(seq, time.Now(), sandbox.NewJSON([]byte("{}"))) }))
	j.end()
	r := j.newReader(1)
	defer r.close()
	var g *gap
	if _, err := r.readMore(t.Context()); !errors.As(err, &g) || g.from != 1 {
		t.Errorf("%v", err)
	}
	if last, err := j.last(); err != nil || last.size < 50 {
		t.Errorf("%v, %v", last, err)
	}
	long := newJournal(dir, "y", &Keep{Memory: 100, Events: 1000})
	if err := long.close(func(seq uint64) *resultLine {
		return newResultLine(seq, time.Now(), sandbox.NewJSON(make([]byte, 2*chunk)))
	}); err == nil {
		t.Error("a long line is kept in memory")
	}
}

// BenchmarkEvent measures one event of a stream.
func BenchmarkEvent(b *testing.B) {
	ev := sandbox.Event{Seq: 12, Time: time.Now(), Kind: sandbox.EventStdout, Phase: "run",
		Data: []byte(strings.Repeat("a line of output\n", 10))}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = appendEvent(buf[:0], &ev)
	}
}

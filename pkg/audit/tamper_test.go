package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// forge makes a line that is an entry by itself: its hash is right.
func forge(t *testing.T, e *Entry) []byte {
	t.Helper()
	line, err := e.line()
	must(t, err)
	return line
}

func entryAt(t *testing.T, line []byte) Entry {
	t.Helper()
	e, err := ParseEntry(line)
	must(t, err)
	return e
}

// A8: Verify reports place and kind of every change in the middle of a log. Each case makes one change to a log of
// ten entries, one per line; the control is the same log untouched.
func TestVerifyA8(t *testing.T) {
	type place struct {
		kind FaultKind
		line int
		seq  uint64
	}
	cases := []struct {
		name   string
		tamper func(t *testing.T, lines [][]byte) [][]byte
		want   []place
	}{
		{"untouched", func(_ *testing.T, l [][]byte) [][]byte { return l }, nil},
		{"edited", func(_ *testing.T, l [][]byte) [][]byte {
			l[4] = bytes.Replace(l[4], []byte(`"verdict":"ok"`), []byte(`"verdict":"no"`), 1)
			return l
		}, []place{{FaultEdited, 5, 5}}},
		{"edited and hashed again", func(t *testing.T, l [][]byte) [][]byte {
			e := entryAt(t, l[4])
			e.Verdict = "cancelled"
			l[4] = forge(t, &e)
			return l
		}, []place{{FaultEdited, 6, 5}}},
		{"the last edited and hashed again", func(t *testing.T, l [][]byte) [][]byte {
			e := entryAt(t, l[9])
			e.ExitCode = 9
			l[9] = forge(t, &e)
			return l
		}, []place{{FaultHead, 0, 10}}},
		{"a hash edited", func(t *testing.T, l [][]byte) [][]byte {
			h := entryAt(t, l[4]).Hash
			l[4] = bytes.Replace(l[4], []byte(h), []byte(strings.Repeat("a", 64)), 1)
			return l
		}, []place{{FaultEdited, 5, 5}, {FaultEdited, 6, 5}}},
		{"deleted", func(_ *testing.T, l [][]byte) [][]byte { return slices.Delete(l, 4, 5) }, []place{{FaultDeleted, 5, 5}}},
		{"several deleted", func(_ *testing.T, l [][]byte) [][]byte { return slices.Delete(l, 2, 6) }, []place{{FaultDeleted, 3, 3}}},
		{"the first deleted", func(_ *testing.T, l [][]byte) [][]byte { return l[3:] }, []place{{FaultDeleted, 1, 1}}},
		{"the last deleted", func(_ *testing.T, l [][]byte) [][]byte { return l[:9] }, []place{{FaultTruncated, 0, 10}}},
		{"truncated", func(_ *testing.T, l [][]byte) [][]byte { return l[:5] }, []place{{FaultTruncated, 0, 6}}},
		{"truncated in a line", func(_ *testing.T, l [][]byte) [][]byte { return append(l[:5], l[5][:100]) }, []place{{FaultTruncated, 0, 6}}},
		{"emptied", func(_ *testing.T, _ [][]byte) [][]byte { return nil }, []place{{FaultTruncated, 0, 1}}},
		{"two swapped", func(_ *testing.T, l [][]byte) [][]byte { l[4], l[5] = l[5], l[4]; return l }, []place{{FaultReordered, 6, 5}}},
		{"one moved", func(_ *testing.T, l [][]byte) [][]byte {
			return slices.Insert(slices.Delete(slices.Clone(l), 2, 3), 6, l[2])
		}, []place{{FaultReordered, 7, 3}}},
		{"the last two swapped", func(_ *testing.T, l [][]byte) [][]byte { l[8], l[9] = l[9], l[8]; return l }, []place{{FaultReordered, 10, 9}}},
		{"a line doubled", func(_ *testing.T, l [][]byte) [][]byte { return slices.Insert(l, 5, l[4]) }, []place{{FaultInserted, 6, 5}}},
		{"a forged one inserted", func(t *testing.T, l [][]byte) [][]byte {
			e := entryAt(t, l[5])
			e.Run = "forged"
			return slices.Insert(l, 5, forge(t, &e))
		}, []place{{FaultInserted, 7, 6}}},
		{"forged ones appended", func(t *testing.T, l [][]byte) [][]byte {
			e := entryAt(t, l[9])
			for range 2 {
				e.Seq, e.Prev = e.Seq+1, e.Hash
				l = append(l, forge(t, &e))
			}
			return l
		}, []place{{FaultHead, 0, 10}}},
		{"rubbish inserted", func(_ *testing.T, l [][]byte) [][]byte { return slices.Insert(l, 5, []byte("rubbish\n")) },
			[]place{{FaultUnreadable, 6, 0}}},
		{"rubbish appended", func(_ *testing.T, l [][]byte) [][]byte { return append(l, []byte("rubbish\n")) },
			[]place{{FaultUnreadable, 11, 0}}},
		{"an empty line", func(_ *testing.T, l [][]byte) [][]byte { return slices.Insert(l, 5, []byte("\n")) }, []place{{FaultUnreadable, 6, 0}}},
		{"a line longer than any of ours", func(_ *testing.T, l [][]byte) [][]byte {
			return slices.Insert(l, 5, append(bytes.Repeat([]byte("x"), 3*maxLine), '\n'))
		}, []place{{FaultUnreadable, 6, 0}}},
		{"two things at once", func(_ *testing.T, l [][]byte) [][]byte {
			l[7] = bytes.Replace(l[7], []byte("python"), []byte("jython"), 1)
			return slices.Delete(l, 2, 3)
		}, []place{{FaultDeleted, 3, 3}, {FaultEdited, 7, 8}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := filled(t, 10, Options{})
			text, err := os.ReadFile(l.Path())
			must(t, err)
			lines := slices.Collect(bytes.Lines(text))
			must(t, os.WriteFile(l.Path(), bytes.Join(c.tamper(t, slices.Clone(lines)), nil), 0o600))
			check := func(r Report, want []place) {
				t.Helper()
				var got []place
				for _, f := range r.Faults {
					got = append(got, place{f.Kind, f.Line, f.Seq})
					if f.What == "" || !strings.HasPrefix(f.File, l.Path()) {
						t.Errorf("%+v", f)
					}
				}
				if !slices.Equal(got, want) || r.OK != (len(want) == 0) {
					t.Errorf("ok %v, faults %+v; want %v", r.OK, r.Faults, want)
				}
			}
			check(verified(t, l), c.want)

			// A later writer neither hides the fault nor fails.
			must(t, l.Append(sample(11)))
			if r := verified(t, l); r.OK != (c.want == nil) {
				t.Errorf("after another entry: %+v", r)
			}
		})
	}
}

func TestVerifyReportsHeadFaults(t *testing.T) {
	for name, tamper := range map[string]func(path string) error{
		"removed": os.Remove,
		"spoilt":  func(path string) error { return os.WriteFile(path, []byte("rubbish"), 0o600) },
		"emptied": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			l := filled(t, 5, Options{})
			must(t, tamper(l.Path()+".head"))
			if r := verified(t, l); r.OK || r.Faults[0].Kind != FaultHead {
				t.Errorf("%+v", r)
			}
			must(t, l.Append(sample(6)))
			// The fault stays: entries removed before can not be detected any more.
			if r := verified(t, l); r.OK || r.Faults[0].Kind != FaultHead || r.Faults[0].Line != 6 || r.Entries != 7 {
				t.Errorf("after another entry: %+v", r)
			}
		})
	}
}

func TestVerifyFollowsRotatedFiles(t *testing.T) {
	l := filled(t, 20, Options{MaxSize: 4000})
	r := intact(t, l, 20)
	if len(r.Files) < 4 {
		t.Fatalf("%q", r.Files)
	}
	middle := r.Files[1]
	text, err := os.ReadFile(middle)
	must(t, err)
	must(t, os.WriteFile(middle, bytes.Replace(text, []byte("python"), []byte("jython"), 1), 0o600))
	if r := verified(t, l); len(r.Faults) != 1 || r.Faults[0].File != middle || r.Faults[0].Line != 1 || r.Faults[0].Kind != FaultEdited {
		t.Errorf("%+v", r.Faults)
	}
	must(t, os.Remove(middle))
	if r := verified(t, l); len(r.Faults) != 1 || r.Faults[0].File != r.Files[1] || r.Faults[0].Kind != FaultDeleted {
		t.Errorf("%+v", r.Faults)
	}
	must(t, os.WriteFile(middle, text, 0o600))
	intact(t, l, 20)
	must(t, os.Remove(l.Path()))
	if r := verified(t, l); len(r.Faults) != 1 || r.Faults[0].Kind != FaultTruncated {
		t.Errorf("%+v", r.Faults)
	}
	must(t, l.Append(sample(0)))
	if r := verified(t, l); r.OK || r.Last != 22 {
		t.Errorf("%+v", r)
	}
}

// The traces of a writer that was killed at any of its steps are repaired, reported, and no fault.
func TestTracesOfKilledWriters(t *testing.T) {
	l := filled(t, 5, Options{})
	before, err := os.ReadFile(l.Path() + ".head")
	must(t, err)
	text, err := os.ReadFile(l.Path())
	must(t, err)
	must(t, l.Append(sample(5)))
	after, err := os.ReadFile(l.Path())
	must(t, err)
	line := after[len(text):]

	put := func(log []byte) {
		t.Helper()
		must(t, os.WriteFile(l.Path(), log, 0o600))
		must(t, os.WriteFile(l.Path()+".head", before, 0o600))
	}
	t.Run("between entry and head", func(t *testing.T) {
		put(after)
		if r := verified(t, l); !r.OK || len(r.Notes) != 1 || r.Last != 6 {
			t.Errorf("%+v", r)
		}
		must(t, l.Append(sample(6)))
		if r := intact(t, l, 7); len(r.Notes) != 0 {
			t.Errorf("%+v", r.Notes)
		}
	})
	t.Run("before the newline", func(t *testing.T) {
		put(after[:len(after)-1])
		intact(t, l, 6)
		must(t, l.Append(sample(6)))
		intact(t, l, 7)
	})
	t.Run("while it wrote", func(t *testing.T) {
		for cut := 1; cut < len(line)-1; cut += 13 {
			put(append(bytes.Clone(text), line[:cut]...))
			if r := verified(t, l); !r.OK || len(r.Notes) != 1 || r.Last != 5 {
				t.Fatalf("cut at %d: %+v", cut, r)
			}
			must(t, l.Append(sample(6)))
			r := verified(t, l)
			if !r.OK || r.Last != 7 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0].What, "torn line") {
				t.Fatalf("cut at %d: %+v", cut, r)
			}
			var repaired *Repaired
			for e, err := range l.Query(Filter{}) {
				var strange *LineError
				if err != nil && !errors.As(err, &strange) {
					t.Fatal(err)
				}
				if err == nil && e.Kind == KindRepaired {
					repaired = e.Repaired
				}
			}
			if repaired == nil || len(repaired.Torn) != 1 || repaired.Torn[0].Bytes != cut {
				t.Fatalf("cut at %d: %+v", cut, repaired)
			}
		}
	})
	t.Run("while it mended", func(t *testing.T) {
		put(append(bytes.Clone(text), line[:50]...))
		must(t, l.Append(sample(6)))
		mended, err := os.ReadFile(l.Path())
		must(t, err)
		for _, cut := range []int{1, 2, 60} {
			put(mended[:len(text)+50+cut])
			must(t, l.Append(sample(6)))
			if r := verified(t, l); !r.OK || r.Last != 7 {
				t.Errorf("cut at %d: %+v", cut, r)
			}
		}
	})
	t.Run("while it rotated the file", func(t *testing.T) {
		l := filled(t, 5, Options{})
		must(t, os.Rename(l.Path(), filepath.Join(filepath.Dir(l.Path()), rotatedName("audit.jsonl", 5))))
		intact(t, l, 5)
		must(t, l.Append(sample(6)))
		intact(t, l, 6)
	})
	t.Run("before the first head", func(t *testing.T) {
		l := filled(t, 1, Options{})
		must(t, os.Truncate(l.Path()+".head", 0))
		intact(t, l, 1)
		must(t, l.Append(sample(6)))
		intact(t, l, 2)
	})
}

// Writers that are killed one after the other, each between its entry and the head, leave a head that lacks one entry.
func TestKilledBeforeHeadTwice(t *testing.T) {
	l := newLog(t, Options{})
	must(t, l.Append(sample(0)))
	for range 2 {
		w, err := l.openWriter(time.Now().Add(time.Minute))
		must(t, err)
		before, err := os.ReadFile(l.Path() + ".head")
		must(t, err)
		must(t, w.append(&Entry{Kind: KindRun, Run: "killed"}))
		must(t, os.WriteFile(l.Path()+".head", before, 0o600)) // in place: the file is the lock
		w.close()
	}
	if r := verified(t, l); !r.OK || r.Entries != 3 || len(r.Notes) != 1 {
		t.Errorf("%+v", r)
	}
}

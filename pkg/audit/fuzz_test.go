package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParseEntry: no line panics, and one that is accepted has the hash it states.
func FuzzParseEntry(f *testing.F) {
	e := sample(1)
	e.Seq, e.Prev = 1, string(bytes.Repeat([]byte("0"), hashLen))
	line, err := e.line()
	must(f, err)
	f.Add(line)
	f.Add([]byte(`{"seq":1,"prev":"","hash":""}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := ParseEntry(line)
		if err != nil {
			return
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		body := line[:len(line)-len(hashField)-hashLen-len(hashEnd)]
		if e.Seq == 0 || Digest(body) != e.Hash {
			t.Errorf("accepted %q", line)
		}
	})
}

// FuzzVerify: whatever stands in the two files, nothing panics, a writer goes on, and what was a fault stays one.
func FuzzVerify(f *testing.F) {
	l := filled(f, 4, Options{})
	text, err := os.ReadFile(l.Path())
	must(f, err)
	head, err := os.ReadFile(l.Path() + ".head")
	must(f, err)
	f.Add(text, head)
	f.Add(text[:len(text)-20], head)
	f.Add(text, head[:slotSize])
	f.Add([]byte("\n\n{\"seq\":"), []byte("rubbish"))
	f.Fuzz(func(t *testing.T, text, head []byte) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		must(t, os.WriteFile(path, text, 0o600))
		must(t, os.WriteFile(path+".head", head, 0o600))
		l, err := Open(path, Options{})
		must(t, err)
		before := verified(t, l)
		for range l.Tail(3) { // yields or not
		}
		must(t, l.Append(sample(0)))
		after := verified(t, l)
		if !before.OK && after.OK {
			t.Errorf("an entry has hidden a fault: %+v\nthen %+v", before, after)
		}
		if after.Entries == before.Entries {
			t.Errorf("the entry is not there: %+v", after)
		}
		must(t, l.Append(sample(1)))
		if last := verified(t, l); len(last.Faults) != len(after.Faults) {
			t.Errorf("the chain was not mended: %+v\nthen %+v", after, last)
		}
	})
}

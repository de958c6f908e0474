package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
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

// FuzzVerify: after any change of the two files nothing panics, a writer continues, and a fault stays a fault.
// The input is a list of changes, three bytes each, because the fuzzer can not minimize files of kilobytes in useful time.
func FuzzVerify(f *testing.F) {
	l := filled(f, 4, Options{})
	text, err := os.ReadFile(l.Path())
	must(f, err)
	head, err := os.ReadFile(l.Path() + ".head")
	must(f, err)
	f.Add([]byte{}, []byte{})
	f.Add([]byte{2, 9, 200}, []byte("rubbish"))
	f.Add([]byte{4, 0, 1, 5, 1, 0, 7, 0, 0}, []byte("\n"))
	f.Fuzz(func(t *testing.T, deeds, rubbish []byte) {
		text, head := bytes.Clone(text), bytes.Clone(head)
		for ; len(deeds) >= 3 && len(text) > 0 && len(head) > 0; deeds = deeds[3:] {
			text, head = tamper(text, head, deeds[0], int(deeds[1])<<8|int(deeds[2]), rubbish)
		}
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

// tamper makes one change to a log or its head.
func tamper(text, head []byte, deed byte, at int, rubbish []byte) ([]byte, []byte) {
	place := at % len(text)
	lines := slices.Collect(bytes.Lines(text))
	line, other := at%len(lines), (at>>4)%len(lines)
	switch deed % 9 {
	case 0:
		text = slices.Delete(text, place, place+1)
	case 1:
		text[place] ^= byte(at>>8) | 1
	case 2:
		text = text[:place]
	case 3:
		text = slices.Insert(text, place, rubbish...)
	case 4:
		text = bytes.Join(slices.Delete(lines, line, line+1), nil)
	case 5:
		lines[line], lines[other] = lines[other], lines[line]
		text = bytes.Join(lines, nil)
	case 6:
		text = bytes.Join(slices.Insert(lines, line, lines[other]), nil)
	case 7:
		head[at%len(head)] ^= byte(at>>8) | 1
	case 8:
		head = head[:at%len(head)]
	}
	return text, head
}

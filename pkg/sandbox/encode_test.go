package sandbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// A document that is encoded while it is written has the bytes that encoding/json makes, and the announced length.
func TestEncode(t *testing.T) {
	odd := "\x00\x01\b\f\n\r\t\x1f\"\\/<>&\x7fä\u2027\u2028\u2029\u202a€😀\uFFFD"
	for name, text := range map[string]string{
		"short":            odd,
		"text":             strings.Repeat(odd+"x", 30_000), // characters lie across every boundary of pieces
		"plain":            strings.Repeat("x", 3<<20),
		"not UTF-8":        strings.Repeat("abc\xff", 1<<19),
		"broken at end":    strings.Repeat("x", 3<<20) + "\xe2\x82",
		"broken in middle": strings.Repeat("x", 3<<20) + "\xe2\x82" + strings.Repeat("x", 64<<10),
		"only beginnings":  strings.Repeat("\xf0", 2<<20),
	} {
		for _, keep := range []Size{64 * MiB, 3*MiB/2 + 1} {
			store := &OutputStore{Dir: t.TempDir()}
			rec := newRecorder(keep, nil, nil, store.For(""), nil)
			rec.Write(0, []byte(text))
			rec.Write(1, []byte(text[len(text)/2:]))
			r := &Result{Verdict: VerdictOK}
			r.Stdout, r.Stderr = rec.handOver()
			want, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			j, err := r.Encode(func(d Document) any { return d })
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if n, err := j.WriteTo(&got); err != nil || n != j.Size() || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s: %d bytes (%v), announced %d, want %d, equal %v", name, n, err, j.Size(), len(want), bytes.Equal(got.Bytes(), want))
			}
			for _, s := range j.Spans() {
				if b := got.Bytes(); b[s[0]-1] != '"' || b[s[0]+s[1]] != '"' {
					t.Errorf("%s: there is no text at %d", name, s)
				}
			}
			if n := j.Memory(); n > int(2*OutputMemory)+16<<10 {
				t.Errorf("%s: %d bytes in memory", name, n)
			}
			r.Close()
			if n, err := j.WriteTo(&got); len(text) >= 2<<20 && err == nil {
				t.Errorf("%s: %d bytes of a result that was closed", name, n)
			}
			if store.Used() != 0 {
				t.Errorf("%s: %d not returned", name, store.Used())
			}
		}
	}
}

package mcp

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\nc\r\nd": "a\tb\nc\nd", "\x1b[31mred\x1b[0m": `\x1b[31mred\x1b[0m`, "a\rb": `a\x0db`, "\xff": "\uFFFD", "\x00": `\x00`,
		"\u009b31m": `\x9b31m`, "x\u202ey": `x\u202ey`, "äöü 語": "äöü 語",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// kept returns a stream of which that many bytes at its beginning and its end are kept.
func kept(text string, head, tail int) *sandbox.Output {
	if head+tail >= len(text) {
		return &sandbox.Output{Head: []byte(text), Total: uint64(len(text))}
	}
	return &sandbox.Output{
		Head: []byte(text[:head]), Tail: []byte(text[len(text)-tail:]), Total: uint64(len(text)), Dropped: uint64(len(text) - head - tail),
	}
}

// Parts of a stream, one behind the other, are the whole of what is kept, and no character is cut in two.
func TestRead(t *testing.T) {
	text := strings.Repeat("aäb語c😀", 500)
	for _, most := range []int{leastLength, 17, 100, 1 << 20} {
		for _, o := range []*sandbox.Output{kept(text, len(text), 0), kept(text, 700, 350)} {
			whole, lost := "", uint64(0)
			for offset := uint64(0); offset < o.Total; {
				data, next, missing := keptOutput{o}.read(offset, most)
				if next <= offset {
					t.Fatalf("%d: no progress at %d", most, offset)
				}
				if o.Dropped == 0 && strings.ToValidUTF8(string(data), "") != string(data) {
					t.Errorf("%d: %q", most, data)
				}
				whole, lost, offset = whole+string(data), lost+missing, next
			}
			if want := string(o.Head) + string(o.Tail); whole != want || lost != o.Dropped {
				t.Errorf("%d: %d bytes, %d lost", most, len(whole), lost)
			}
		}
	}
	if data, next, _ := (keptOutput{kept("abc", 3, 0)}).read(1<<60, 10); len(data) > 0 || next != 3 {
		t.Errorf("%q, %d", data, next)
	}
}

// An excerpt says where the rest is: reading from its offset gives what it leaves out.
func TestExcerpt(t *testing.T) {
	if e := excerptOf(kept("", 0, 0), 100, "id", "stdout"); e != nil {
		t.Errorf("%+v", e)
	}
	if e := excerptOf(kept("short", 100, 0), 100, "id", "stdout"); e.Text != "short" || e.Omitted != 0 {
		t.Errorf("%+v", e)
	}
	text := "HEAD" + strings.Repeat("ä", 5000) + "TAIL"
	for _, o := range []*sandbox.Output{kept(text, len(text), 0), kept(text, 500, 500), kept(text, 20, 20)} {
		e := excerptOf(o, 400, "id", "stderr")
		if !strings.HasPrefix(e.Text, "HEAD") || !strings.HasSuffix(e.Text, "TAIL") || len(e.Text) > 600 ||
			!strings.Contains(e.Text, "get_output run=id stream=stderr offset=") || e.Bytes != uint64(len(text)) {
			t.Errorf("%+v", e)
		}
		head, tail, _ := strings.Cut(e.Text, "\n[…")
		_, tail, _ = strings.Cut(tail, "…]\n")
		if uint64(len(head)) != e.Next || uint64(len(head)+len(tail))+e.Omitted != e.Bytes {
			t.Errorf("%d + %d + %d of %d", len(head), e.Omitted, len(tail), e.Bytes)
		}
	}
}

func TestAllowed(t *testing.T) {
	for in, want := range map[string]string{
		"--timeout": "timeout", "--allow example.com:443": "allow_hosts example.com:443", "--network localhost": "network localhost",
		"--output-limit": "output_limit", "": "",
	} {
		if got := allowed(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// FuzzPrintable: whatever a program prints, no control character reaches a client.
func FuzzPrintable(f *testing.F) {
	f.Add("\x1b[31m\xff\r\n\u202e")
	f.Fuzz(func(t *testing.T, text string) {
		if got := printable(text); !utf8.ValidString(got) || strings.ContainsFunc(got, isControl) {
			t.Errorf("%q: %q", text, got)
		}
	})
}

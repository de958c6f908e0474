package subid

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want Range
		ok   bool
	}{
		{"alice:100000:65536\n", Range{100000, 65536}, true},
		{"1007:100000:65536", Range{100000, 65536}, true},
		{"bob:100000:65536\nalice:165536:1\nalice:200000:10\n", Range{200000, 10}, true},
		{"", Range{}, false},
		{"alice2:100000:65536\nalice:x:1\nalice:1:\nalice:0:5\nalice:5:0\nalice:4294967295:1\nalice:4000000000:4000000000\n", Range{}, false},
		{"  alice:100:2  \n", Range{100, 2}, true},
		{"alice:4294967294:1", Range{4294967294, 1}, true},
	} {
		if got, ok := parse([]byte(c.text), "alice", "1007"); got != c.want || ok != c.ok {
			t.Errorf("%q: %+v, %v", c.text, got, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("alice:100000:65536\nbob:1:1\n"), "alice")
	f.Add([]byte(":::\n\x00"), "")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		r, ok := parse(text, name, "1007")
		if ok != (r.Count > 0) || ok && (r.First <= 0 || r.First+r.Count > 1<<32-1) {
			t.Errorf("%+v, %v", r, ok)
		}
	})
}

// Root's own grant does not matter here: the test checks the reasons in the errors.
func TestLookupSaysWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if g, err := Lookup(); err == nil {
		t.Errorf("%+v without newuidmap", g)
	}
	dir := t.TempDir()
	for _, name := range []string{"newuidmap", "newgidmap"} {
		if err := os.WriteFile(dir+"/"+name, []byte("#!/bin/sh\necho no >&2; exit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	g := &Grant{newuidmap: dir + "/newuidmap", newgidmap: dir + "/newgidmap"}
	if err := g.Map(os.Getpid(), nil, nil); err == nil {
		t.Error("a helper that refuses was not heard")
	}
}

package spawn

import (
	"os"
	"strings"
	"testing"
)

// FuzzIsStatic: an executable may have any content.
func FuzzIsStatic(f *testing.F) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		f.Fatal(err)
	}
	defer self.Close()
	head := make([]byte, 1024)
	if _, err := self.ReadAt(head, 0); err != nil {
		f.Fatal(err)
	}
	f.Add(head)
	f.Add([]byte("\x7fELF\x02"))
	f.Add([]byte("#!/bin/sh\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := os.CreateTemp(dir, "elf")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file.Name())
		defer file.Close()
		if _, err := file.Write(content); err != nil {
			t.Fatal(err)
		}
		if isStatic(file) && !strings.HasPrefix(string(content), "\x7fELF\x02") {
			t.Errorf("%q is an executable", content)
		}
	})
}

// FuzzCandidates: a search is bounded, and finds only files of the name.
func FuzzCandidates(f *testing.F) {
	f.Add("ls", "/usr/bin:/bin::.:/bin")
	f.Add("../ls", "/bin")
	f.Add("", ":::")
	f.Add("ls", strings.Repeat("/a:", 500))
	f.Fuzz(func(t *testing.T, name, search string) {
		list := Candidates(name, search)
		if len(list) > maxCandidates {
			t.Errorf("%d candidates", len(list))
		}
		seen := map[string]bool{}
		for _, c := range list {
			if seen[c] {
				t.Errorf("%q twice", c)
			}
			seen[c] = true
			switch {
			case strings.Contains(name, "/"):
				if c != name {
					t.Errorf("%q became %q", name, c)
				}
			case len(c) >= maxPath && len(name) <= maxName:
				t.Errorf("%d bytes", len(c))
			}
		}
	})
}

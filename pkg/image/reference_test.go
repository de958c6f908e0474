package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestReference(t *testing.T) {
	d := "sha256:" + strings.Repeat("ab", 32)
	for in, want := range map[string][2]string{ // the normal form, the familiar one
		"python":                         {"docker.io/library/python:latest", "python:latest"},
		"python:3.12-slim":               {"docker.io/library/python:3.12-slim", "python:3.12-slim"},
		"user/app":                       {"docker.io/user/app:latest", "user/app:latest"},
		"docker.io/python":               {"docker.io/library/python:latest", "python:latest"},
		"index.docker.io/library/python": {"docker.io/library/python:latest", "python:latest"},
		"ghcr.io/a/b/c:v1":               {"ghcr.io/a/b/c:v1", "ghcr.io/a/b/c:v1"},
		"localhost/x":                    {"localhost/x:latest", "localhost/x:latest"},
		"localhost:5000/x:y":             {"localhost:5000/x:y", "localhost:5000/x:y"},
		"[::1]:5000/x":                   {"[::1]:5000/x:latest", "[::1]:5000/x:latest"},
		"python@" + d:                    {"docker.io/library/python@" + d, "python@" + d},
		"python:3@" + d:                  {"docker.io/library/python:3@" + d, "python:3@" + d},
		"sandbox-run/python":             {"sandbox-run/python:latest", "sandbox-run/python:latest"},
		// not the one that is built here
		"docker.io/sandbox-run/python":    {"docker.io/sandbox-run/python:latest", "docker.io/sandbox-run/python:latest"},
		"docker.io/library/sandbox-run/x": {"docker.io/library/sandbox-run/x:latest", "docker.io/library/sandbox-run/x:latest"},
		"a__b/c.d-e--f_g":                 {"docker.io/a__b/c.d-e--f_g:latest", "a__b/c.d-e--f_g:latest"},
		"EXAMPLE/app":                     {"EXAMPLE/app:latest", "EXAMPLE/app:latest"}, // as Docker has it: a registry
		"docker.io/library/localhost":     {"docker.io/library/localhost:latest", "localhost:latest"},
		"docker.io/library/a.b/c":         {"docker.io/library/a.b/c:latest", "docker.io/library/a.b/c:latest"},
	} {
		r, err := ParseReference(in)
		if err != nil || r.String() != want[0] || r.Familiar() != want[1] {
			t.Errorf("%q: %q, %q, %v; want %q", in, r, r.Familiar(), err, want)
		}
		for _, again := range want { // both forms mean the same
			if n, err := Normalize(again); err != nil || n != want[0] {
				t.Errorf("%q, again: %q, %v", again, n, err)
			}
		}
	}
	for _, in := range []string{
		"", ":", "a:", ":tag", "Python", "a/B", "a//b", "/a", "a/", "a b", "a\x00", "-a", "a-", "a..b", "a___b", "a._b", "a:-t",
		"a:" + strings.Repeat("t", 129),
		"a@sha256:abc", "a@" + strings.ToUpper(d), "a@md5:" + strings.Repeat("ab", 16), "a@", strings.Repeat("ab", 32),
		strings.Repeat("a/", 200) + "a",
		"host:port/x", "host:/x", "a.b-/x", ".b/x", "[::1/x", "[]/x", "ho_st.com/x", "localhost:123456/x", "äpfel", "a:b:c", "../a", "a/../b",
		"a.io/\u202ex",
	} {
		if r, err := ParseReference(in); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %q, %v", in, r, err)
		}
	}
}

// Whatever is taken has one normal form, which is its own, and no character that means something to a path or a terminal.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"python", "a/b:c@sha256:" + strings.Repeat("0", 64), "localhost:5000/x", "[::1]:80/y", "sandbox-run/x", "A/b",
		"docker.io/library/x/y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReference(s)
		if err != nil {
			return
		}
		normal := r.String()
		again, err := ParseReference(normal)
		if err != nil || again != r {
			t.Fatalf("%q is %q, and that is %q (%v)", s, normal, again, err)
		}
		if short, err := ParseReference(r.Familiar()); err != nil || short != r {
			t.Fatalf("%q is %q for short, and that is %q (%v)", normal, r.Familiar(), short, err)
		}
		if len(normal) > 600 || strings.Contains(normal, "..") || strings.Contains(normal, "//") {
			t.Fatalf("%q", normal)
		}
		for _, c := range []byte(normal) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q", normal)
			}
		}
	})
}

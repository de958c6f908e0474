package toolchain

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// What programs answer may be anything; whatever is taken from it is a plain version and an absolute path.
func FuzzAnswers(f *testing.F) {
	f.Add("sandbox-run.version=3.11.7\nsandbox-run.executable=/usr/bin/python3\n")
	f.Add("rustc 1.80.0\nrelease: 1.80.0-nightly\nhost: x86_64-unknown-linux-gnu\n")
	f.Add("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\r\n")
	f.Add("\x00\xff\x1b[31m 1. .2 3..4")
	f.Fuzz(func(t *testing.T, text string) {
		for k, v := range Facts(text) {
			if strings.ContainsAny(k+v, "\n") {
				t.Errorf("%q told %q = %q", text, k, v)
			}
		}
		if version := Version(text); len(version) > 64 || strings.Trim(version, "0123456789abcdefghijklmnopqrstuvwxyz.+-_") != "" {
			t.Errorf("%q is version %q", text, version)
		}
		line := FirstLine(text)
		if !utf8.ValidString(line) || strings.ContainsAny(line, "\x1b\n\r\x00") || utf8.RuneCountInString(line) > 201 {
			t.Errorf("%q is shown as %q", text, line)
		}
		if compareVersions(text, text) != 0 {
			t.Errorf("%q is not itself", text)
		}
	})
}

// A file that claims to be ELF may be anything, too.
func FuzzLinkage(f *testing.F) {
	for _, p := range []string{"/bin/true", "/bin/sh"} {
		if data, err := os.ReadFile(p); err == nil && len(data) > 4096 {
			f.Add(data[:4096])
		}
	}
	f.Add([]byte("\x7fELF\x02\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := readLinkage(bytes.NewReader(data))
		if err == nil && len(l.needed) > maxDynamic {
			t.Errorf("%d libraries", len(l.needed))
		}
	})
}

// What a store says is a record that a search could have left, or nothing; what is written is read back.
func FuzzStore(f *testing.F) {
	r := &record{
		Name: "x", Key: "1", Stamps: []string{"/x", "-"},
		Tool: &Toolchain{
			Name: "x", Version: "1", Path: "/x", Home: "/", ID: "1", Found: "/y", Programs: map[string]string{"a": "/a"},
			Env:    map[string]string{"B": `c"\`},
			Mounts: []sandbox.Mount{{Source: "/m", Target: "/n"}}, Skipped: []string{"<why>"},
		},
	}
	line, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	if got := decode(line); !reflect.DeepEqual(got, r) {
		f.Fatalf("%s was read as %+v", line, got)
	}
	f.Add(line)
	f.Add([]byte(`["x","1","1","/x","/","1","/y","0","0","0","0","/x","-"]`))
	f.Add([]byte(`["x","1","1","/x","/","1","/y","9999999999","-1"]`))
	f.Fuzz(func(t *testing.T, line []byte) {
		got := decode(line)
		if got == nil || !got.isValid() {
			return
		}
		if !filepath.IsAbs(got.Tool.Path) || len(got.Stamps)%2 != 0 {
			t.Errorf("%q is %+v", line, got)
		}
		again, err := got.encode()
		if err != nil {
			t.Fatal(err)
		}
		if utf8.Valid(line) && !reflect.DeepEqual(decode(again), got) {
			t.Errorf("%q is written as %q", line, again)
		}
	})
}

package sandbox

import (
	"errors"
	"path"
	"strings"
	"testing"
)

func TestParseVolume(t *testing.T) {
	for in, want := range map[string]Volume{
		"/a:/b":       {Source: "/a", Target: "/b"},
		"/a:/b:ro":    {Source: "/a", Target: "/b"},
		"/a/b:/c:rw":  {Source: "/a/b", Target: "/c", Writable: true},
		"/ü ö:/x y":   {Source: "/ü ö", Target: "/x y"},
		"/..a:/b..":   {Source: "/..a", Target: "/b.."},
		"/a:/devices": {Source: "/a", Target: "/devices"},
	} {
		v, err := ParseVolume(in)
		if err != nil || v != want {
			t.Errorf("%q is %+v (%v)", in, v, err)
		}
		if back, err := ParseVolume(v.String()); err != nil || back != v {
			t.Errorf("%q became %q became %+v (%v)", in, v, back, err)
		}
	}
	for _, in := range []string{
		"", "/a", ":", "::", "/a:", ":/b", "a:/b", "/a:b", "/a:/b:", "/a:/b:xx", "/a:/b:RW", "/a:/b:ro:rw", "/a/../b:/c", "/..:/c",
		"/a/..:/c", "/a:/b/../c",
		"/a:/b/", "/a://b", "/a:/./b", "/a:/", "/a:/proc", "/a:/proc/x", "/a:/dev/shm", "/a:/sys", "/a\x00:/b", "/a:/b\x00", "/a:/" +
			strings.Repeat("x", 256),
		"/a:/" + strings.Repeat("x/", 2100) + "x", "/" + strings.Repeat("x", 5000) + ":/b",
	} {
		if v, err := ParseVolume(in); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.60q is %+v (%v)", in, v, err)
		}
	}
}

func FuzzParseVolume(f *testing.F) {
	for _, s := range []string{"/a:/b", "/a:/b:rw", "/a/../b:/c", "::", "/a:/proc/../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseVolume(s)
		if err != nil {
			return
		}
		if !strings.HasPrefix(v.Source, "/") || strings.Contains(v.Source+"/", "/../") || strings.ContainsRune(v.Source+v.Target, 0) {
			t.Errorf("source of %q: %q", s, v.Source)
		}
		if path.Clean(v.Target) != v.Target || !strings.HasPrefix(v.Target, "/") || v.Target == "/" {
			t.Errorf("target of %q: %q", s, v.Target)
		}
		for _, r := range []string{"/proc", "/dev", "/sys"} {
			if v.Target == r || strings.HasPrefix(v.Target, r+"/") {
				t.Errorf("target of %q: %q", s, v.Target)
			}
		}
		if back, err := ParseVolume(v.String()); err != nil || back != v {
			t.Errorf("%q became %q became %+v (%v)", s, v, back, err)
		}
	})
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		source string
		roots  []string
		want   bool
	}{
		{"/anything", nil, true},
		{"/a", []string{"/a"}, true}, {"/a/b", []string{"/a"}, true}, {"/a/b", []string{"/x", "/a/"}, true}, {"/a/b", []string{"/"}, true},
		{"/ab", []string{"/a"}, false}, {"/", []string{"/a"}, false}, {"/b", []string{"/a", "/c"}, false},
		{"/a/b", []string{"/a/b/c"}, false}, {"/A", []string{"/a"}, false},
	} {
		if got := (Volume{Source: c.source}).within(c.roots); got != c.want {
			t.Errorf("%q in %q: %v", c.source, c.roots, got)
		}
	}
}

func TestSpecVolumes(t *testing.T) {
	check := func(roots []string, v ...Volume) error {
		_, _, err := Spec{Volumes: v}.complete(big, roots)
		return err
	}
	if err := check(nil, Volume{Source: "/a", Target: "/b"}, Volume{Source: "/a", Target: "/c"}); err != nil {
		t.Error(err)
	}
	if err := check(nil, Volume{Source: "/a", Target: "/b"}, Volume{Source: "/x", Target: "/b"}); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "/b") {
		t.Error(err)
	}
	if err := check(nil, make([]Volume, maxVolumes+1)...); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	err := check([]string{"/allowed"}, Volume{Source: "/secret", Target: "/b"})
	if !errors.Is(err, ErrRefused) || Describe(err).Code != "refused" || !strings.Contains(err.Error(), "/allowed") {
		t.Errorf("%v (%+v)", err, Describe(err))
	}
}

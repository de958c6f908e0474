package files

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// matches walks a pattern along a path, as Take does.
func matches(pattern, p string) bool {
	var g glob
	g.add(pattern)
	spots := g.top()
	if slices.Equal(spots, anything) {
		return true
	}
	for name := range strings.SplitSeq(p, "/") {
		var matched bool
		if spots, matched, _ = g.step(spots, name); matched {
			return true
		}
	}
	return false
}

// means is the definition of a match: some prefix of the path matches the pattern.
func means(pattern, p []string) bool {
	switch {
	case len(pattern) == 0:
		return true // all beneath
	case pattern[0] == anyDepth && len(pattern) == 1:
		return len(p) > 0
	case pattern[0] == anyDepth:
		for i := range len(p) + 1 {
			if means(pattern[1:], p[i:]) {
				return true
			}
		}
		return false
	case len(p) == 0:
		return false
	}
	ok, err := path.Match(pattern[0], p[0])
	return err == nil && ok && means(pattern[1:], p[1:])
}

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"", "a", true}, {"a", "a", true}, {"a", "b", false}, {"a", "a/b", true}, {"a/b", "a", false}, {"*", "a/b", true}, {"*/b", "a/b", true},
		{"*/b", "a/c", false},
		{"**", "a", true}, {"**", "a/b/c", true}, {"**/c", "c", true}, {"**/c", "a/b/c", true}, {"**/c", "a/b/c/d", true}, {"**/c", "a/b", false},
		{"a/**", "a", false}, {"a/**", "a/b", true}, {"a/**/b", "a/b", true}, {"a/**/b", "a/x/y/b", true}, {"a/**/b", "b", false},
		{"**/**/b", "b", true}, {"**/a/**/a", "a/a", true},
		{"**/a/**/a", "a", false}, {"a**", "abc", true}, {"[ab]", "a", true}, {`\*`, "*", true}, {`\*`, "a", false}, {"?", "ü", true},
	} {
		if got := matches(c.pattern, c.path); got != c.want {
			t.Errorf("%q, %q: %v", c.pattern, c.path, got)
		}
	}
}

func TestPatternOnly(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		want     string
	}{{[]string{"a"}, "a"}, {[]string{"a/b", "a/c"}, "a"}, {[]string{"a", "b"}, ""}, {[]string{"*"}, ""}, {[]string{"a", ""},
		""}, {[]string{"**/a"}, ""}, {[]string{`\a`}, ""}, {[]string{"**"}, ""}} {
		var g glob
		for _, p := range c.patterns {
			g.add(p)
		}
		if got, ok := g.only(g.top()); got != c.want && ok || ok != (c.want != "") {
			t.Errorf("%q: %q, %v", c.patterns, got, ok)
		}
	}
}

func FuzzPattern(f *testing.F) {
	for _, s := range [][2]string{{"**/a/**/*.txt", "a/b/c.txt"}, {"a/**", "a/b"}, {"**/**", "x"}, {"[a-", "a"}, {`\`, "a"},
		{"*a*b*c*", "aabbcc"}, {"a/b", "a/b/c"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, p string) {
		clean := func(s string) bool { return s != "" && path.Clean("/"+s) == "/"+s }
		if !clean(pattern) || !clean(p) || len(pattern) > 60 || strings.Count(p, "/") > 12 {
			t.Skip()
		}
		if got, want := matches(pattern, p), means(strings.Split(pattern, "/"), strings.Split(p, "/")); got != want {
			t.Errorf("%q, %q: %v, want %v", pattern, p, got, want)
		}
		// A directory on the path of a match always has spots.
		var g glob
		g.add(pattern)
		spots := g.top()
		for name := range strings.SplitSeq(p, "/") {
			if len(spots) == 0 && matches(pattern, p) {
				t.Errorf("%q, %q: given up", pattern, p)
			}
			spots, _, _ = g.step(spots, name)
			if len(spots) > strings.Count(pattern, "/")+2 {
				t.Errorf("%q, %q: %d spots", pattern, p, len(spots))
			}
		}
	})
}

package python

import (
	"strings"
	"testing"
)

func TestParseRequirement(t *testing.T) {
	for text, want := range map[string]string{
		"requests":                               "requests",
		"Requests == 2.31":                       "requests==2.31",
		"a.b_c[x, y] (>=1,<2) ; os_name == 'nt'": "a-b-c[x,y]>=1,<2; os_name == 'nt'",
		"x~=1.0,!=1.5.*":                         "x~=1.0,!=1.5.*",
		"x==1 --hash=sha256:" + strings.Repeat("a", 64): "x==1 --hash=sha256:" + strings.Repeat("a", 64),
	} {
		if got, err := parseRequirement(text); err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "-r x", "--index-url=https://x/", "./x", "../x", "/x", "x @ https://x/", "x@1", "git+https://x/y", "x=1", "x==", "x>>1", "x[", "x[a;b]", "-", ".x",
		"x==1\n--pre", "x;$(id)", "x==1 --hash=md5:1", "x==1 --global-option=y", "x y",
	} {
		if got, err := parseRequirement(text); err == nil && strings.ContainsAny(got, "\n$ @/") {
			t.Errorf("%q: %q", text, got)
		} else if err == nil {
			t.Errorf("%q is accepted as %q", text, got)
		}
	}
}

// FuzzRequirement: whatever is accepted is one line that begins with a name, and parses to itself.
func FuzzRequirement(f *testing.F) {
	f.Add("requests[socks]>=2,<3; python_version > '3' --hash=sha256:" + strings.Repeat("0", 64))
	f.Add("-e .")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseRequirement(text)
		if err != nil {
			return
		}
		if !isAlphanumeric(rune(got[0])) || strings.ContainsAny(got, "\n\r\x00/@$`\\") {
			t.Errorf("%q: %q", text, got)
		}
		if again, err := parseRequirement(got); err != nil || again != got {
			t.Errorf("%q: %q, then %q, %v", text, got, again, err)
		}
	})
}

func TestVersionFits(t *testing.T) {
	for wanted, want := range map[string]bool{
		">=3.9": true, ">=3.9,<4": true, "<3.11": false, "==3.11.*": true, "!=3.11.*": false, "~=3.10": true, "~=3.11.5": false, "~=3.11.2": true, "==3.11.4": true, ">3.11.4": false, ">= 3.12": false,
	} {
		if got, err := versionFits("3.11.4", wanted); err != nil || got != want {
			t.Errorf("%s: %v, %v", wanted, got, err)
		}
	}
	for _, wanted := range []string{"3.9", ">=x", ">="} {
		if _, err := versionFits("3.11.4", wanted); err == nil {
			t.Error(wanted)
		}
	}
}

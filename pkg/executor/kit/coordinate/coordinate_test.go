package coordinate

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"com.google.code.gson:gson:2.10.1":    "com/google/code/gson/gson/2.10.1/gson-2.10.1.jar",
		"org.openjfx:javafx-base:17:linux":    "org/openjfx/javafx-base/17/javafx-base-17-linux.jar",
		"a:b_c:1.0+build.5":                   "a/b_c/1.0+build.5/b_c-1.0+build.5.jar",
		"a:b":                                 "is not group:artifact:version",
		"a:b:1:c:jar":                         "is not group:artifact:version",
		"":                                    "is not group:artifact:version",
		"a:b:":                                "has no version",
		"a:b:1:":                              "an empty classifier",
		"a:b:[1.0,2.0)":                       "the range",
		"a:b:LATEST":                          "which changes",
		"a:b:1-SNAPSHOT":                      "which changes",
		"a:b:${v}":                            "no POM sets that property",
		"a:b:1@pom":                           "none of Maven's",
		"..:b:1":                              `the group ".."`,
		"a..b:b:1":                            "the group",
		".a:b:1":                              "the group",
		"a.:b:1":                              "the group",
		"a/b:b:1":                             "the group",
		"a:../b:1":                            "the artifact",
		"a:..:1":                              "the artifact",
		"a:b:..":                              "none of Maven's",
		"a:b:1/../../x":                       "none of Maven's",
		"a:b:1%2f":                            "none of Maven's",
		"a:b:1:../x":                          "the classifier",
		"a:b~c:1":                             "the artifact",
		"a:-b:1":                              "the artifact",
		"a:b:--index=http://x/":               "the classifier",
		"a b:c:1":                             "the group",
		strings.Repeat("a", 201) + ":b:1":     "the group",
		"a:b:1\n":                             "none of Maven's",
		"gr\u00fcn:b:1":                       "the group",
		"a:b:" + strings.Repeat("1", 100_000): "none of Maven's",
	} {
		c, err := Parse(text)
		if strings.HasSuffix(want, ".jar") {
			if err != nil || c.Path("jar") != want || c.String() != text {
				t.Errorf("%q: %+v, %v", text, c, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
			t.Errorf("%.100q: %v; want: %s", text, err, want)
		}
	}
}

func TestFiles(t *testing.T) {
	var all []Coordinate
	for _, text := range []string{"g:a:1-x", "g:a-1:x", "h:b:1", "i:b:1", "i:b:1:linux", "i:b:2"} {
		c, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	want := []string{"g~a~1-x.jar", "g~a-1~x.jar", "h~b~1.jar", "i~b~1.jar", "b-1-linux.jar", "b-2.jar"}
	if got := Files(all); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// FuzzParse: whatever a coordinate says, its file is where its parts say, below the repository.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"com.google.code.gson:gson:2.10.1", "a:b:1:c", "..:..:..", "a/b:c:1", "a:b:[1,2)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(text)
		if err != nil {
			return
		}
		for _, p := range []string{c.Path("jar"), c.Path("pom"), Files([]Coordinate{c})[0]} {
			if path.Clean(p) != p || strings.HasPrefix(p, "/") || strings.ContainsAny(p, "%?#~: \\\x00") || strings.HasPrefix(path.Base(p), ".") {
				t.Errorf("%q is at %q", text, p)
			}
		}
		if again, err := Parse(c.String()); err != nil || again != c {
			t.Errorf("%q: %+v, %v", text, again, err)
		}
	})
}

package language

import (
	"slices"
	"strings"
	"testing"
)

func TestJoinRequirements(t *testing.T) {
	got := JoinRequirements([]string{"requests>=2", "<3", "pkg[a", "b]==1", " numpy "})
	if want := []string{"requests>=2,<3", "pkg[a,b]==1", "numpy"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

const tomlText = `# a project
[tool.x]
dependencies = ["no"]
[project] # the one
name = 'demo'
classifiers = [
  "dependencies = [1]",
  "[project.scripts]",
]
dependencies = [
  "one>=1", # ]
  'two',
  "three \"3\"" ]
empty = []
other = { a = ["x"] }
`

func TestTOML(t *testing.T) {
	if got, found := TOMLStrings(tomlText, "project", "dependencies"); !found || !slices.Equal(got, []string{"one>=1", "two", `three "3"`}) {
		t.Errorf("%q %v", got, found)
	}
	if got, found := TOMLStrings(tomlText, "project", "empty"); !found || len(got) > 0 {
		t.Errorf("%q %v", got, found)
	}
	if got := TOMLText(tomlText, "project", "name"); got != "demo" {
		t.Errorf("%q", got)
	}
	for _, key := range []string{"name", "other", "absent"} {
		if got, found := TOMLStrings(tomlText, "project", key); found {
			t.Errorf("%s: %q", key, got)
		}
	}
}

// FuzzTOML: a document of any form ends the reader, and gives strings of one line.
func FuzzTOML(f *testing.F) {
	f.Add(tomlText)
	f.Add("[project]\ndependencies = [\"a")
	f.Add("x = [[[[#\n]")
	f.Fuzz(func(t *testing.T, text string) {
		all, _ := TOMLStrings(text, "project", "dependencies")
		for _, s := range all {
			if strings.Contains(s, "\n") {
				t.Errorf("%q", s)
			}
		}
	})
}

// FuzzLock: a text is a lock of its own form, or an error.
func FuzzLock(f *testing.F) {
	f.Add(`{"language":"python","packages":[{"name":"a","version":"1"}],"files":{"requirements.txt":"a==1"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := ParseLock(text); (l == nil) == (err == nil) {
			t.Errorf("%v %v", l, err)
		}
	})
}

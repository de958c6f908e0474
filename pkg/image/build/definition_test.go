package build

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sandbox-run/sandbox-run/images"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

var update = flag.Bool("update", false, "write golden files anew")

func TestDefinitions(t *testing.T) {
	want := []string{"data", "go", "java", "node", "polyglot", "python", "rust", "typescript"}
	if got := Names(); !slices.Equal(got, want) {
		t.Errorf("definitions of %q, want %q", got, want)
	}
	for _, name := range want {
		d, err := Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if d.Reference() != "sandbox-run/"+name+":latest" || len(d.Languages) == 0 {
			t.Errorf("%+v", d)
		}
	}
	all, err := Lookup("sandbox-run/polyglot:latest")
	if err != nil {
		t.Fatal(err)
	}
	for _, language := range []string{"python", "javascript", "typescript", "go", "rust", "java", "shell"} {
		if !slices.Contains(all.Languages, language) {
			t.Errorf("polyglot is without %s", language)
		}
	}
	data, _ := Lookup("data")
	if !slices.Contains(data.Debian, "python3") || !slices.Contains(data.Debian, "python3-pandas") || data.Env["MPLBACKEND"] != "Agg" {
		t.Errorf("data: %+v", data)
	}
	// A caller's changes are the caller's.
	data.Env["MPLBACKEND"], data.Debian[0] = "other", "other"
	if again, _ := Lookup("data"); again.Env["MPLBACKEND"] != "Agg" || again.Debian[0] == "other" {
		t.Error("a definition can be changed from outside")
	}
}

func TestUnknownDefinition(t *testing.T) {
	_, err := Lookup("cobol")
	if !errors.Is(err, ErrUnknown) || !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "python") {
		t.Error(err)
	}
}

func TestWrongDefinitions(t *testing.T) {
	const right = "title: T\ndescription: D\ndebian: [a]\ncmd: [a]\n"
	if _, err := load(fstest.MapFS{"x.yaml": {Data: []byte(right)}}); err != nil {
		t.Fatal(err) // the control
	}
	for text, want := range map[string]string{
		"title: T":                               "description is missing",
		right + "colour: red":                    "line 5: colour: no such setting",
		"[a]":                                    "a mapping belongs",
		strings.Replace(right, "[a]", "a", 1):    "must be a list",
		strings.Replace(right, "[a]", "[1]", 1):  "must be a text",
		strings.Replace(right, "[a]", "[A;]", 1): `"A;" is not of the form`,
		right + "env: {PATH: /x}":                "not one to change",
		right + "env: {A: $(x)}":                 "A: ",
		right + "env: []":                        "must be a mapping",
		right + "from: [y]":                      `there is no "y"`,
		right + "from: [x]":                      "leads back to x",
		"title: 'a\n":                            "line",
	} {
		_, err := load(fstest.MapFS{"x.yaml": {Data: []byte(text)}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "images/x.yaml") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := load(fstest.MapFS{"X_Y.yaml": {Data: []byte(right)}}); err == nil {
		t.Error("any name will do")
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		text, err := images.Files.ReadFile(name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parse("x", text)
		if err != nil {
			return
		}
		for _, base := range []Base{BaseDebian, BaseSlim, BaseAlpine} {
			file, err := d.Dockerfile(base)
			if err == nil && strings.Contains(file, "$(") {
				t.Errorf("a command of the definition's own: %s", file)
			}
		}
	})
}

// Dockerfiles are texts that people read, so they are compared whole.
func TestDockerfiles(t *testing.T) {
	for _, name := range Names() {
		for _, base := range []Base{BaseDebian, BaseSlim, BaseAlpine} {
			d, err := Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			got, err := d.Dockerfile(base)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "dockerfile", name+"."+string(base))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("not what %s has (go test -run %s -update writes it anew, to be read before it is committed):\n%s", file, t.Name(), got)
			}
			shell(t, got)
		}
	}
}

// shell has a shell read what RUN hands to one.
func shell(t *testing.T, dockerfile string) {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("needs sh to read the commands with")
	}
	joined := strings.ReplaceAll(dockerfile, "\\\n", " ")
	found := false
	for line := range strings.SplitSeq(joined, "\n") {
		if script, ok := strings.CutPrefix(line, "RUN "); ok {
			found = true
			if out, err := exec.Command(sh, "-n", "-c", script).CombinedOutput(); err != nil {
				t.Errorf("%v: %s\n%s", err, out, script)
			}
		}
	}
	if !found {
		t.Error("nothing is run")
	}
}

func TestWrongBase(t *testing.T) {
	d, _ := Lookup("python")
	if _, err := d.Dockerfile("scratch"); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "alpine") {
		t.Error(err)
	}
	d.Alpine = nil
	if _, err := d.Dockerfile(BaseAlpine); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "slim") {
		t.Error(err)
	}
}

// Every image is in the guide, with its sizes.
func TestDocumented(t *testing.T) {
	guide := testenv.Guide(t)
	for _, name := range Names() {
		row := regexp.MustCompile(`(?m)^\| ` + "`" + Repository + name + "`" + ` \| [^|]+ \| \d+ \| \d+ \|$`)
		if !row.MatchString(guide) {
			t.Errorf("%s has no row with its sizes in the table of images", name)
		}
	}
}

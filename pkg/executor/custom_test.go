package executor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func cLanguages(t *testing.T) []*Language {
	t.Helper()
	languages, err := LoadLanguages(filepath.Join("testdata", "languages.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return languages
}

func TestLoadLanguages(t *testing.T) {
	l := cLanguages(t)
	if len(l) != 3 || l[0].Name != "c" || l[0].Limits.Memory != 64*sandbox.MiB || l[0].Limits.Wall != 10*time.Second ||
		l[1].Compile.Memory != sandbox.GiB || !l[0].Directory || l[2].Directory {
		t.Errorf("%+v", l)
	}
	if l[2].Title != "awk" || l[2].Source != "main.awk" || l[2].Mains[0] != "main.awk" {
		t.Errorf("%+v", l[2])
	}
	if none, err := LoadLanguages(filepath.Join(t.TempDir(), "none.yaml")); none != nil || err != nil {
		t.Errorf("a file that is not there: %v, %v", none, err)
	}
	if none, err := LoadLanguages(""); none != nil || err != nil {
		t.Errorf("no file: %v, %v", none, err)
	}
}

func TestLanguagesFile(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "/somewhere/config")
	if f := LanguagesFile(); !strings.HasSuffix(f, filepath.Join("sandbox-run", "languages.yaml")) {
		t.Error(f)
	}
}

func TestBadLanguages(t *testing.T) {
	for text, says := range map[string]string{
		"languages:\n  - name: [x]":                "line 2: name: it is a list",
		"- name: x\n  run: [a]\n  colour: red":     "line 3: colour: there is no such field",
		"- name: x\n  extensions: [c]\n  run: [a]": `line 1: language "x": extension "c"`,
		"- name: x":                   "no run",
		"- title: x\n  run: [a]":      "no name",
		"- name: X\n  run: [a]":       "lower case",
		"- name: x\n  run: ['{out}']": "nothing is made without compile",
		"- name: x\n  compile: [a, '{files}']\n  run: ['{out}']":           "does not say {out}",
		"- name: x\n  compile: [a, 'x{files}', '{out}']\n  run: ['{out}']": "must stand alone",
		"- name: x\n  run: [a, '{fil}']":                                   "there are only {file}",
		"- name: x\n  run: [a, '{file']":                                   "there are only {file}",
		"- name: x\n  run: a":                                              "line 2: run: it is a string",
		"- name: x\n  run: [{a: b}]":                                       "number 1 of the list",
		"- name: x\n  run: []":                                             "no run",
		"- name: x\n  run: ['']":                                           "no program",
		"- name: x\n  run: [a]\n  limits: {memory: 0}":                     "must be more than zero",
		"- name: x\n  run: [a]\n  limits: {memory: -1}":                    "must be more than zero",
		"- name: x\n  run: [a]\n  limits: {memory: lots}":                  "no such limit",
		"- name: x\n  run: [a]\n  limits: {memroy: 1}":                     "memroy",
		"- name: x\n  run: [a]\n  limits: 1":                               "mapping",
		"- name: x\n  run: [a]\n  env: {A: [1]}":                           "A is a list",
		"- name: x\n  run: [a]\n  source: ../x":                            "../x",
		"- name: x\n  run: [a]\n- name: y\n  aliases: [x]\n  run: [a]":     `line 3: there are two languages "x"`,
		"- name: x\n  compile: ['{dir}/cc', '{out}']\n  run: ['{out}']":    "names no program",
		"languages: 5":          "a number where a list",
		"tongues: []":           `line 1: "tongues"`,
		"- 5":                   "language 1 is a number",
		"text":                  "a string where",
		"- name: x\n\trun: [a]": "line 2",
		"- {}":                  "no name",
	} {
		file := filepath.Join(t.TempDir(), "languages.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadLanguages(file)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), file) || !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q\n says %v\n and not %q", text, err, says)
		}
	}
	if l, err := parseLanguages(nil); l != nil || err != nil {
		t.Errorf("an empty file: %v, %v", l, err)
	}
}

func TestCustomPlans(t *testing.T) {
	e := New(nil, Options{Languages: cLanguages(t)})
	for name, req := range map[string]Request{
		"custom-c":       {Language: "c", Code: "int main(){}", Args: []string{"x"}},
		"custom-c++":     {Files: tree("main.cpp", "", "util.cc", "", "util.h", "", "sub/x.cxx", ""), Env: map[string]string{"GREETING": "mine"}},
		"custom-awk":     {Files: tree("x", "#!/usr/bin/awk -f\n")},
		"custom-c-entry": {Entry: "a.c", Files: tree("a.c", "", "b.c", "")},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := e.newJob(&req)
			if err != nil {
				t.Fatal(err)
			}
			j.Tool = &toolchain.Toolchain{Name: j.Language.Name, Version: "12.2.0", Path: "/usr/bin/gcc", ID: "id",
				Programs: map[string]string{"gcc": "/usr/bin/gcc", "g++": "/usr/bin/g++", "awk": "/usr/bin/awk"}}
			plan, err := newPlan(j, bigMachine)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("plan", name+".golden"), plan)
		})
	}
}

func FuzzLanguages(f *testing.F) {
	text, err := os.ReadFile(filepath.Join("testdata", "languages.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("- name: x\n  run: ['{file}']\n  limits: {timeout: 1}")
	f.Fuzz(func(t *testing.T, text string) {
		languages, err := parseLanguages([]byte(text))
		if err != nil {
			return
		}
		for _, l := range languages {
			if l.Name == "" || l.Source == "" {
				t.Errorf("%q was taken for %+v", text, l)
			}
			j := &language.Job{
				Files: tree(l.Source, ""), Entry: l.Source, Language: l, Tool: &toolchain.Toolchain{}, Dir: sandbox.WorkspaceDir,
				Plan: &language.Plan{},
			}
			if err := l.Plan(j); err != nil || len(j.Plan.Phases) == 0 {
				t.Fatalf("%q: %v", text, err)
			}
			for _, w := range j.Plan.Phases[len(j.Plan.Phases)-1].Process.Args {
				if strings.Contains(w, "{out}") && !strings.Contains(l.Source, "{out}") {
					t.Errorf("%q is left", w)
				}
			}
		}
	})
}

package golang

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func TestParseModule(t *testing.T) {
	for text, wanted := range map[string]string{
		"github.com/google/uuid@v1.6.0":     "github.com/google/uuid@v1.6.0",
		" golang.org/x/text ":               "golang.org/x/text@latest",
		"golang.org/x/text@latest":          "golang.org/x/text@latest",
		"gopkg.in/yaml.v3@v3.0":             "gopkg.in/yaml.v3@v3.0",
		"a.example/B@v2.0.0-rc.1+meta":      "a.example/B@v2.0.0-rc.1+meta",
		"uuid":                              "",
		"":                                  "",
		"std/fmt@v1":                        "",
		"github.com/google/uuid@":           "",
		"github.com/google/uuid@main":       "",
		"github.com/google/uuid@v1.2.3.4":   "",
		"github.com/google/uuid@v1@v2":      "",
		"github.com/google/uuid@v1/../../x": "",
		"github.com/../x":                   "",
		"github.com/x/...":                  "",
		"/github.com/x":                     "",
		"https://github.com/google/uuid":    "",
		"-x.example/y":                      "",
		"a.example/b c":                     "",
		"a.example/b;c":                     "",
	} {
		m, err := parseModule(text)
		if got := m.id(); err == nil && got != wanted || err != nil && wanted != "" {
			t.Errorf("%q is %q, %v", text, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "write it like") {
			t.Error(err)
		}
	}
}

func FuzzParseModule(f *testing.F) {
	for _, text := range []string{"github.com/google/uuid@v1.6.0", "a.example/b", "-flag", "a.example/../b@v1", "a.example/b@v1 c"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseModule(text)
		if err != nil {
			return
		}
		if strings.ContainsAny(m.id(), " \t\n'\"`$\\") || strings.HasPrefix(m.id(), "-") || strings.Contains("/"+m.id()+"/", "/../") {
			t.Errorf("%q is %q", text, m.id())
		}
	})
}

func goJob(files ...language.File) *language.Job {
	return &language.Job{Language: &Language, Tool: &toolchain.Toolchain{Path: "/go/bin/go", Version: "1.26.8"}, Files: files, Entry: "."}
}

// TestDeclaredModules: what is installed depends on the declaration, and on imports below declared modules.
func TestDeclaredModules(t *testing.T) {
	file := func(imports ...string) language.File {
		text := ""
		for _, i := range imports {
			text += "import \"" + i + "\"\n"
		}
		return language.File{Path: "main.go", Data: []byte(text + "println(1)\n")} // a snippet
	}
	describe := func(deps []string, install bool, files ...language.File) *language.Packages {
		t.Helper()
		j := goJob(files...)
		j.Request.Options.Deps, j.Request.Options.Install = deps, install
		p, err := packages(j)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	key := func(p *language.Packages) string {
		text, err := json.Marshal([]any{p.Files, p.Steps, p.Requirements})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	uuid := []string{"github.com/google/uuid"}
	plain := describe(uuid, false, file("github.com/google/uuid"))
	if key(plain) != key(describe(uuid, true, file("fmt", "github.com/google/uuid", "elsewhere.example/x"))) {
		t.Error("the layer depends on imports that decide nothing")
	}
	below := describe(uuid, false, file("github.com/google/uuid/v5"))
	if key(plain) == key(below) || !slices.Contains(below.Steps[0].Args, ".") {
		t.Errorf("%+v", below)
	}
	if p := describe(nil, true, file("github.com/google/uuid")); p != nil {
		t.Errorf("%+v", p)
	}
	module := language.File{Path: "go.mod",
		Data: []byte("module m\n\ngo 1.26\n\nrequire a.example/b v1.0.0\n\nreplace a.example/b => a.example/c v1.1.0\n")}
	sum := language.File{Path: "go.sum", Data: []byte("a.example/c v1.1.0 h1:x=\na.example/c v1.1.0/go.mod h1:y=\n")}
	main := language.File{Path: "main.go", Data: []byte("package main\n\nimport _ \"a.example/b\"\n\nfunc main() {}\n")}
	p := describe(nil, true, module, sum, main)
	if !p.Locked || len(p.Steps) != 2 || !slices.Equal(p.Requirements, []string{"a.example/c@v1.1.0"}) {
		t.Errorf("%+v", p)
	}
	if p := describe(nil, true, module, main); p.Locked {
		t.Errorf("%+v", p)
	}
	if p := describe(nil, true, module, main, language.File{Path: "vendor/modules.txt"}); p != nil {
		t.Errorf("%+v", p)
	}
}

func FuzzReadModules(f *testing.F) {
	f.Add([]byte(`{"Path": "a.example/b", "Version": "v1.0.0", "Sum": "h1:x="}`), []byte("module m\n"))
	f.Add([]byte(`{"Path": "../x", "Version": "v1.0.0", "Sum": "h1:x="}`), []byte("module m\n"))
	f.Add([]byte("go: no module dependencies to download\n"), []byte(""))
	f.Fuzz(func(t *testing.T, list, text []byte) {
		lock, err := readModules(map[string][]byte{listFile: list, "src/go.mod": text, "src/imports.go": text, "elsewhere/go.mod": text})
		if err != nil {
			return
		}
		if len(lock.Files) != 1 || lock.Files["go.mod"] != string(text) {
			t.Errorf("%q", lock.Files)
		}
		for _, m := range layerModules(&language.Layer{Dir: "/layer", Lock: lock}) {
			if !strings.HasPrefix(m.dir, "/layer/"+modulesDir+"/") {
				t.Error(m.dir)
			}
		}
	})
}

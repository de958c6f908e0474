package java

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestDeclaredJars(t *testing.T) {
	const main, pom = "Main.java", "pom.xml"
	file := func(path, text string) language.File { return language.File{Path: path, Data: []byte(text)} }
	for name, c := range map[string]struct {
		deps    []string
		install bool
		files   []language.File
		want    []string
		says    []string
	}{
		"nothing":   {nil, true, []language.File{file(main, "class Main {}")}, nil, nil},
		"deps":      {[]string{"g:b:1", "g:a:1", "g:b:1"}, false, nil, []string{"g:a:1", "g:b:1"}, nil},
		"not asked": {[]string{"g:a:1"}, false, []language.File{file(main, "//DEPS g:b:1\n")}, []string{"g:a:1"}, nil},
		"source": {[]string{"g:a:1"}, true, []language.File{file(main, "///usr/bin/env jbang\r\n//DEPS g:b:1, g:c:1:linux // for speed\r\n"+
			"//DEPS\tx\n//DEPSx\n// DEPS x\n//DEPS g:d:1;g:e:1\n")}, []string{"g:a:1", "g:b:1", "g:c:1:linux", "g:d:1", "g:e:1"}, nil},
		"snippet": {nil, true, []language.File{file("x", "//DEPS g:b:1\nint x = 1;\n")}, []string{"g:b:1"}, nil},
		"tree": {nil, true, []language.File{file("src/main/java/A.java", "//DEPS g:a:1\n"), file("src/test/java/T.java", "//DEPS g:t:1\n"),
			file("README", "//DEPS g:r:1\n")}, []string{"g:a:1"}, nil},
		"two versions": {[]string{"g:a:1", "g:a:2"}, false, nil, nil, []string{"deps", "g:a is declared with two versions, 1 and 2"}},
		"two versions, one in the source": {[]string{"g:a:1"}, true, []language.File{file(main, "\n//DEPS g:a:2\n")}, nil,
			[]string{"files", "Main.java, line 2: g:a is declared with two versions"}},
		"jar and its classifier": {[]string{"g:a:1", "g:a:1:linux"}, false, nil, []string{"g:a:1", "g:a:1:linux"}, nil},
		"wrong":                  {[]string{"gson"}, false, nil, nil, []string{"deps", `"gson" is not group:artifact:version`}},
		"an option":              {[]string{"--index=http://x"}, false, nil, nil, []string{"deps", "is not group:artifact:version"}},
		"wrong in the source": {nil, true, []language.File{file(main, "//DEPS g:a:${v}\n")}, nil,
			[]string{"files", "Main.java, line 1", `"g:a:${v}" has the version`}},
		"project":            {nil, true, []language.File{file(main, ""), file(pom, "")}, nil, []string{"pom.xml is not read", "Maven"}},
		"project, too":       {nil, true, []language.File{file(main, "//DEPS g:a:1\n"), file(pom, "")}, []string{"g:a:1"}, nil},
		"project, not asked": {[]string{"g:a:1"}, false, []language.File{file(main, ""), file(pom, "")}, []string{"g:a:1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			j := &language.Job{Language: &Language, Files: c.files}
			j.Request.Options.Deps, j.Request.Options.Install = c.deps, c.install
			p, err := packages(j)
			if (err != nil) != (c.says != nil) {
				t.Fatal(p, err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v; want: %s", err, s)
				}
			}
			var got []string
			if p != nil {
				got = p.Requirements
				if args := p.Steps[0].Args; !slices.Equal(args[len(args)-len(got):], got) || p.Locked {
					t.Errorf("%+v", p)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q instead of %q", got, c.want)
			}
		})
	}
}

func TestJavaLocks(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	report := "g:b:1 " + digest + " http://r/g/b/1/b-1.jar\ng:a:1:x " + digest + " http://r/a-1-x.jar\n"
	lock, err := readReport(map[string][]byte{reportFile: []byte(report)})
	want := language.Package{Name: "g:a", Version: "1", Hash: digest, URL: "http://r/a-1-x.jar"}
	if err != nil || len(lock.Packages) != 2 || lock.Packages[1] != want || lock.Files[lockFile] != "g:b:1 "+digest+"\ng:a:1:x "+digest+"\n" {
		t.Fatalf("%+v, %v", lock, err)
	}
	for _, text := range []string{"", "g:b:1 " + digest[:20], "g:b " + digest, "../x:b:1 " + digest, "g:b:1 " + strings.ToUpper(digest)} {
		if lock, err := readReport(map[string][]byte{reportFile: []byte(text + "\n")}); err == nil {
			t.Errorf("%q: %+v", text, lock)
		}
	}
	if _, err := readReport(nil); err == nil {
		t.Error("no report")
	}
	of := func(language, text string) string {
		return `{"language":"` + language + `","language_version":"","platform":"","packages":[],"files":{"maven.lock":"` + text + `"}}`
	}
	for text, says := range map[string]string{
		of("java", `g:b:1 `+digest+`\n`):                               "",
		of("python", `g:b:1 `+digest+`\n`):                             "a lock of python",
		of("java", ""):                                                 "a lock of java",
		of("java", `g:b:1 `+digest+`\ng:b:1 `+digest+`\n`):             "g:b:1 twice",
		of("java", `g:b:1 `+digest+` http://x/\n`):                     "more than a coordinate",
		of("java", `g:b:[1,2) `+digest+`\n`):                           "a version",
		of("java", `g:b:1\n`):                                          "no sha256",
		of("java", `g:b:1 `+digest+`\n--index=http://x/ `+digest+`\n`): "not group:artifact:version",
		"x": "not a lock",
	} {
		j := &language.Job{Language: &Language}
		j.Request.Options.Lock, j.Request.Options.Deps = text, []string{"g:ignored:1"}
		p, err := packages(j)
		if says == "" {
			if err != nil || !p.Locked || !slices.Equal(p.Requirements, []string{"g:b:1"}) || string(p.Files[0].Data) != "g:b:1 "+digest+"\n" {
				t.Errorf("%+v, %v", p, err)
			}
		} else if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

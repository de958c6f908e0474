package maven

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
)

type artifact = testregistry.Artifact

var needs = testregistry.Needs

// lib is an artifact with a jar.
func lib(name, inner string) artifact {
	return artifact{Name: name, Inner: inner, Jar: []byte("jar of " + name)}
}

// run fetches coordinates, and returns the report without digests and URLs.
func run(t *testing.T, url string, coordinates ...string) (report, dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	o := Options{Index: url, Coordinates: coordinates, Out: filepath.Join(dir, "jars"), Report: filepath.Join(dir, "report")}
	if err := Run(t.Context(), o); err != nil {
		return "", "", err
	}
	text, err := os.ReadFile(o.Report)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, " ")
		all = append(all, name)
	}
	return strings.Join(all, " "), dir, nil
}

// repository reads artifacts, one in a line:
//
//	g:a:1 [pom] ; parent g:p:1 ; set NAME VALUE ; needs g:b:1 scope=test, g:c:1 without=h:*|g:d ; manages … ; moved g:new ; packaging pom
//
// An artifact with the word pom has no jar.
func repository(t *testing.T, text string) (all []artifact) {
	t.Helper()
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		parts := strings.Split(line, " ; ")
		name, pom := strings.CutSuffix(parts[0], " pom")
		a := lib(name, "")
		if pom {
			a.Jar = nil
		}
		for _, part := range parts[1:] {
			verb, rest, _ := strings.Cut(part, " ")
			name := append(strings.Split(rest, ":"), "", "")
			switch verb {
			case "parent":
				a.Inner += "<parent><groupId>" + name[0] + "</groupId><artifactId>" + name[1] + "</artifactId><version>" + name[2] +
					"</version></parent>"
			case "set":
				k, v, _ := strings.Cut(rest, " ")
				a.Inner += "<properties><" + k + ">" + v + "</" + k + "></properties>"
			case "needs":
				a.Inner += dependencies(rest)
			case "manages":
				a.Inner += "<dependencyManagement>" + dependencies(rest) + "</dependencyManagement>"
			case "moved":
				a.Inner += "<distributionManagement><relocation><groupId>" + name[0] + "</groupId><artifactId>" + name[1] +
					"</artifactId></relocation></distributionManagement>"
			case "packaging":
				a.Inner += "<packaging>" + rest + "</packaging>"
			default:
				t.Fatal(part)
			}
		}
		all = append(all, a)
	}
	return all
}

// dependencies is the list in a POM: NAME element=text, ….
func dependencies(list string) string {
	var all []string
	for d := range strings.SplitSeq(list, ", ") {
		words := strings.Fields(d)
		inner := ""
		for _, w := range words[1:] {
			k, v, _ := strings.Cut(w, "=")
			if k != "without" {
				inner += "<" + k + ">" + v + "</" + k + ">"
				continue
			}
			inner += "<exclusions>"
			for e := range strings.SplitSeq(v, "|") {
				group, name, _ := strings.Cut(e, ":")
				inner += "<exclusion><groupId>" + group + "</groupId><artifactId>" + name + "</artifactId></exclusion>"
			}
			inner += "</exclusions>"
		}
		all = append(all, words[0]+" "+inner)
	}
	return needs(all...)
}

// TestResolve: the class path is that of Maven 3.
func TestResolve(t *testing.T) {
	for _, c := range []struct{ name, repository, ask, want string }{
		{"alone", "g:a:1", "g:a:1", "g:a:1"},
		{"scopes", `
			g:a:1 ; needs g:b:1, g:c:1 scope=runtime, g:d:1 scope=test, g:e:1 scope=provided, g:f:1 optional=true, g:g:1 scope=system
			g:b:1
			g:c:1`, "g:a:1", "g:a:1 g:b:1 g:c:1"},
		{"the nearest", `
			g:a:1 ; needs g:b:1, g:d:1
			g:b:1 ; needs g:c:1
			g:c:1 ; needs g:d:2
			g:d:1
			g:d:2`, "g:a:1", "g:a:1 g:b:1 g:c:1 g:d:1"},
		{"the first", `
			g:a:1 ; needs g:d:2
			g:b:1 ; needs g:d:1
			g:d:1
			g:d:2`, "g:a:1 g:b:1", "g:a:1 g:d:2 g:b:1"},
		{"what only a loser needs", `
			g:a:1 ; needs g:b:1
			g:b:1 ; needs g:absent:1
			g:b:2`, "g:a:1 g:b:2", "g:a:1 g:b:2"},
		{"circle", `
			g:a:1 ; needs g:b:1
			g:b:1 ; needs g:a:1`, "g:a:1", "g:a:1 g:b:1"},
		{"the last of repetitions", `
			g:a:1 ; needs g:b:1, g:c:1, g:b:2
			g:b:2
			g:c:1`, "g:a:1", "g:a:1 g:b:2 g:c:1"},
		{"excluded", `
			g:a:1 ; needs g:b:1 without=h:*|g:d
			g:b:1 ; needs g:c:1, h:x:1
			g:c:1 ; needs g:d:1`, "g:a:1", "g:a:1 g:b:1 g:c:1"},
		{"all excluded", `
			g:a:1 ; needs g:b:1 without=*:*
			g:b:1 ; needs g:c:1`, "g:a:1", "g:a:1 g:b:1"},
		{"excluded by management", `
			g:a:1 ; needs g:b:1 ; manages g:b:9 without=g:c
			g:b:1 ; needs g:c:1`, "g:a:1", "g:a:1 g:b:1"},
		{"properties", `
			g:a:1 ; set b 7 ; set n.x 1.${y} ; set y 2 ; needs ${project.groupId}:b:${b}, g:c:${n.x}, ${pom.groupId}:d:${version}
			g:b:7
			g:c:1.2
			g:d:1`, "g:a:1", "g:a:1 g:b:7 g:c:1.2 g:d:1"},
		{"unknown property that nothing needs", "g:a:1 ; needs g:b:${no} scope=test", "g:a:1", "g:a:1"},
		{"parents", `
			g:a:1 ; parent g:p:5 ; set b 2 ; needs g:c:3
			g:p:5 pom ; parent g:q:6 ; set b 1 ; needs g:b:${b}, g:c:1, g:d:${project.version}
			g:q:6 pom ; needs g:e:${project.parent.version}
			g:b:2
			g:c:3
			g:d:1
			g:e:5`, "g:a:1", "g:a:1 g:c:3 g:b:2 g:d:1 g:e:5"},
		{"managed by a parent", `
			g:a:1 ; parent g:p:5 ; needs g:b, g:c:1
			g:p:5 pom ; manages g:b:2, g:c:1 scope=test
			g:b:2`, "g:a:1", "g:a:1 g:b:2"},
		{"managed by imports", `
			g:a:1 ; manages g:x:4 type=pom scope=import, g:y:4 type=pom scope=import, g:c:1 ; needs g:b, g:c, g:d
			g:x:4 pom ; parent g:p:5 ; manages g:b:${b}, g:c:9
			g:p:5 pom ; set b 2
			g:y:4 pom ; manages g:z:1 type=pom scope=import, g:b:3
			g:z:1 pom ; manages g:d:6, g:b:4
			g:b:2
			g:c:1
			g:d:6`, "g:a:1", "g:a:1 g:b:2 g:c:1 g:d:6"},
		{"management is not for what is needed", `
			g:a:1 ; manages g:c:1 ; needs g:b:1
			g:b:1 ; needs g:c:2
			g:c:2`, "g:a:1", "g:a:1 g:b:1 g:c:2"},
		{"import that nothing needs", "g:a:1 ; manages g:absent:4 type=pom scope=import ; needs g:t:1 scope=test", "g:a:1", "g:a:1"},
		{"relocated", `
			g:a:1 ; needs g:old:2
			g:old:2 pom ; moved h:new
			h:new:2`, "g:a:1", "g:a:1 h:new:2"},
		{"relocated to what is there", `
			g:a:1 ; needs g:old:2
			g:old:2 pom ; moved h:new
			h:new:2
			h:new:3`, "g:a:1 h:new:3", "g:a:1 h:new:3"},
		{"classifiers and types", `
			g:a:1 ; needs g:b:1, g:b:1 classifier=linux, g:c:1 type=test-jar, g:d:1 type=zip, g:e:1 type=bundle, g:f:1 type=pom
			g:b:1
			g:b:1:linux
			g:c:1
			g:c:1:tests
			g:e:1
			g:f:1 pom ; needs g:c:1`, "g:a:1", "g:a:1 g:b:1 g:b:1:linux g:c:1:tests g:e:1 g:c:1"},
		{"only a POM", `
			g:a:1 pom ; packaging pom ; needs g:b:1
			g:b:1`, "g:a:1", "g:b:1"},
		{"a range, replaced", `
			g:a:1 ; needs g:b:[1,3)
			g:b:2`, "g:a:1 g:b:2", "g:a:1 g:b:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testregistry.New(t, testregistry.Maven(repository(t, c.repository)...))
			got, _, err := run(t, s.URL, strings.Fields(c.ask)...)
			if err != nil || got != c.want {
				t.Errorf("%q instead of %q: %v", got, c.want, err)
			}
		})
	}
}

// TestOldPOM: POMs without a namespace, in Latin-1, are read.
func TestOldPOM(t *testing.T) {
	const text = "<?xml version='1.0' encoding='ISO-8859-1'?><!-- caf\xe9 --><project><name>\xe9 &amp; &lt;</name></project>"
	s := testregistry.New(t, testregistry.Maven(artifact{Name: "g:a:1", Jar: []byte("x"), POM: text}))
	if got, _, err := run(t, s.URL, "g:a:1"); err != nil || got != "g:a:1" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestRefused: what is wrong is named, with the coordinate.
func TestRefused(t *testing.T) {
	var deep, wide, many string
	for i := range 20 {
		n, next := string(rune('a'+i)), string(rune('b'+i))
		deep += "g:" + n + ":1 ; needs g:" + next + ":1\n"
		if i < 9 {
			imports := strings.Repeat("g:"+next+":1 type=pom scope=import, ", 9)
			wide += "g:" + n + ":1 ; needs g:x ; manages " + strings.TrimSuffix(imports, ", ") + "\n"
		}
	}
	wide += "g:j:1 pom"
	for i := range maxArtifacts {
		many += fmt.Sprintf(", g:x%d:1", i)
	}
	for _, c := range []struct {
		name, repository string
		want             []string
	}{
		{"absent", "", []string{"g:a:1: g/a/1/a-1.pom", "does not have it"}},
		{"no jar", "g:a:1 pom", []string{"g:a:1: g/a/1/a-1.jar", "does not have it"}},
		{"absent dependency", "g:a:1 ; needs g:b:1\ng:b:1 ; needs g:c:1",
			[]string{"g:c:1: g/c/1/c-1.pom", "does not have it\n  needed by g:b:1\n  needed by g:a:1"}},
		{"absent jar of a dependency", "g:a:1 ; needs g:b:1\ng:b:1 pom", []string{"g:b:1: g/b/1/b-1.jar", "needed by g:a:1"}},
		{"range", "g:a:1 ; needs g:b:[1.0,2.0)", []string{"g:a:1: its dependency g:b has the range \"[1.0,2.0)\"", "--deps g:b:VERSION"}},
		{"snapshot", "g:a:1 ; needs g:b:1-SNAPSHOT", []string{"g:a:1: its dependency g:b", "which changes"}},
		{"no version", "g:a:1 ; needs g:b", []string{"g:a:1: its dependency g:b has no version"}},
		{"unknown property", "g:a:1 ; needs g:b:${no.such}", []string{"g:a:1: its dependency g:b", "${no.such}", "no POM sets"}},
		{"endless property", "g:a:1 ; set x ${x} ; needs g:b:${x}", []string{"g:a:1: its dependency g:b"}},
		{"property bomb", "g:a:1 ; set x ${y}${y}${y}${y} ; set y ${z}${z}${z}${z} ; set z ${w}${w}${w}${w} ; set w ${v}${v}${v}${v} ; " +
			"set v ; needs g:b:${x}", []string{"g:a:1: its dependency g:b"}},
		{"path in a group", "g:a:1 ; needs ../../x:b:1", []string{"g:a:1: its dependency", "no name of Maven's"}},
		{"path in a version", "g:a:1 ; needs g:b:1/../../../x", []string{"g:a:1: its dependency g:b", "none of Maven's"}},
		{"path in a parent", "g:a:1 ; parent g:../x:1", []string{"g:a:1: ", "../x"}},
		{"circle of parents", "g:a:1 ; parent g:p:1\ng:p:1 ; parent g:a:1", []string{"g:a:1: its parents form a circle"}},
		{"own parent", "g:a:1 ; parent g:a:1", []string{"g:a:1: its parents form a circle"}},
		{"circle of imports", "g:a:1 ; manages g:a:1 type=pom scope=import ; needs g:b", []string{"g:a:1: ", "imports itself"}},
		{"tree of imports", wide, []string{"g:a:1: ", "lead to more than"}},
		{"deep", deep, []string{"g:q:1: its dependency g:r:1 is more than 16 steps away", "needed by g:a:1"}},
		{"many", "g:a:1 ; needs g:y:1" + many, []string{"more than 1000 artifacts are needed", "needed by g:a:1"}},
		{"relocated in a circle", "g:a:1 ; moved g:a", []string{"relocated too often"}},
	} {
		t.Run(c.name, func(t *testing.T) { refused(t, c.want, repository(t, c.repository)...) })
	}
}

// refused expects an error with some texts about g:a:1.
func refused(t *testing.T, texts []string, artifacts ...artifact) {
	t.Helper()
	s := testregistry.New(t, testregistry.Maven(artifacts...))
	_, _, err := run(t, s.URL, "g:a:1")
	for _, want := range texts {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want: %s", err, want)
		}
	}
	if err != nil && (len(err.Error()) > 3000 || strings.Contains(err.Error(), s.URL)) {
		t.Errorf("%.5000s", err)
	}
}

// TestHostileFiles: POMs and checksums may be anything.
func TestHostileFiles(t *testing.T) {
	zeros := strings.Repeat("0", 128)
	const bomb = "<?xml version='1.0'?><!DOCTYPE project [<!ENTITY a 'x'><!ENTITY b '&a;&a;'>]><project><name>&b;</name></project>"
	for name, c := range map[string]struct {
		pom       string
		checksums map[string]string
		want      []string
	}{
		"DTD":           {bomb, nil, []string{"g:a:1: g/a/1/a-1.pom", "document type"}},
		"entity":        {"<project><name>&b;</name></project>", nil, []string{"g:a:1: ", "entity"}},
		"no XML":        {"PK\x03\x04", nil, []string{"g:a:1: ", "no POM"}},
		"cut":           {"<project><name>", nil, []string{"g:a:1: ", "no POM"}},
		"another root":  {"<html></html>", nil, []string{"g:a:1: ", "no POM"}},
		"nested":        {"<project>" + strings.Repeat("<x>", 1000), nil, []string{"g:a:1: ", "nested deeper"}},
		"encoding":      {"<?xml version='1.0' encoding='EBCDIC'?><project/>", nil, []string{"g:a:1: ", "EBCDIC"}},
		"huge":          {"<project>" + strings.Repeat(" ", maxPOM) + "</project>", nil, []string{"g:a:1: g/a/1/a-1.pom", "the most"}},
		"no checksum":   {"", map[string]string{}, []string{"g:a:1: g/a/1/a-1.pom", "no checksum"}},
		"wrong SHA-1":   {"", map[string]string{"sha1": zeros[:40]}, []string{"g:a:1: ", "damaged or replaced", zeros[:40]}},
		"wrong SHA-512": {"", map[string]string{"sha1": "", "sha512": zeros}, []string{"damaged or replaced", "sha512"}},
		"no text":       {"", map[string]string{"sha256": "\n"}, []string{"damaged or replaced"}},
		"huge checksum": {"", map[string]string{"sha256": strings.Repeat("0", maxChecksum+1)}, []string{"the most"}},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, c.want, artifact{Name: "g:a:1", POM: c.pom, Checksums: c.checksums, Jar: []byte("x")})
		})
	}
}

// TestChecksums: each kind serves, with the name of a file behind it, or in capitals.
func TestChecksums(t *testing.T) {
	jar := []byte("x")
	for _, sums := range []map[string]string{{"sha512": ""}, {"sha256": ""}, {"sha1": ""},
		{"sha256": "2D711642B726B04401627CA9FBAC32F5C8530FB1903CC4DB02258717921A4881  a-1.jar\n"}} {
		pom := artifact{Name: "g:a:1"}
		s := testregistry.New(t, testregistry.Maven(pom, artifact{Name: "g:a:1:x", Jar: jar, Checksums: sums}))
		got, dir, err := run(t, s.URL+"/", "g:a:1:x")
		if err != nil || got != "g:a:1:x" {
			t.Errorf("%v: %q, %v", sums, got, err)
			continue
		}
		if text, err := os.ReadFile(filepath.Join(dir, "jars", "a-1-x.jar")); string(text) != "x" {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// TestLock: what a report says is fetched again, and nothing else.
func TestLock(t *testing.T) {
	s := testregistry.New(t, testregistry.Maven(lib("g:a:1", needs("h:a:1")), lib("h:a:1", "")))
	_, dir, err := run(t, s.URL, "g:a:1")
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(dir, "report"))
	if err != nil || !strings.Contains(string(first), " "+s.URL+"/h/a/1/a-1.jar\n") {
		t.Fatal(string(first), err)
	}
	var lock strings.Builder
	for line := range strings.Lines(string(first)) {
		lock.WriteString(line[:strings.LastIndex(line, " ")] + "\n")
	}
	asked := len(s.Requests())
	o := Options{Index: s.URL, Lock: filepath.Join(dir, "lock"), Out: filepath.Join(dir, "again"), Report: filepath.Join(dir, "report2")}
	write := func(text string) {
		if err := os.WriteFile(o.Lock, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(lock.String())
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(o.Report)
	if err != nil || string(second) != string(first) || len(s.Requests()) != asked+2 {
		t.Errorf("%s\n%q\n%v", second, s.Requests()[asked:], err)
	}
	if text, err := os.ReadFile(filepath.Join(o.Out, "h~a~1.jar")); string(text) != "jar of h:a:1" {
		t.Errorf("%q, %v", text, err)
	}
	other := testregistry.New(t, testregistry.Maven(lib("g:a:1", ""), artifact{Name: "h:a:1", Jar: []byte("another")}))
	o.Index = other.URL
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "h:a:1: h/a/1/a-1.jar: it is not the file of the lock") {
		t.Error(err)
	}
	for _, text := range []string{"g:a:1", "g:a:1 sha256:00", "../x:a:1 sha256:" + strings.Repeat("0", 64)} {
		write(text)
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no line of a lock") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestRetries: failures that may pass are tried again, and others are not.
func TestRetries(t *testing.T) {
	good := testregistry.Maven(lib("g:a:1", ""))
	for name, c := range map[string]struct {
		fail func(w http.ResponseWriter)
		want string
	}{
		"busy":      {func(w http.ResponseWriter) { http.Error(w, "sandbox-run: host: no route", http.StatusBadGateway) }, ""},
		"cut":       {func(w http.ResponseWriter) { w.Header().Set("Content-Length", "9"); _, _ = w.Write([]byte("x")) }, ""},
		"forbidden": {func(w http.ResponseWriter) { http.Error(w, "no", http.StatusForbidden) }, "403 Forbidden"},
		"elsewhere": {func(w http.ResponseWriter) { w.Header().Set("Location", "/x"); w.WriteHeader(http.StatusFound) }, "302 Found"},
	} {
		t.Run(name, func(t *testing.T) {
			failed := false
			s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, ".jar") && !failed {
					failed = true
					c.fail(w)
					return
				}
				good.ServeHTTP(w, r)
			}))
			_, _, err := run(t, s.URL, "g:a:1")
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Error(err)
			}
		})
	}
}

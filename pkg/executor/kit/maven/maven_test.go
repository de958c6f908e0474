package maven

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
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

// TestResolve: the class path is what Maven would make of the POMs.
func TestResolve(t *testing.T) {
	managed := func(inner string) string { return "<dependencyManagement>" + inner + "</dependencyManagement>" }
	without := func(names ...string) string {
		text := "<exclusions>"
		for _, n := range names {
			group, name, _ := strings.Cut(n, ":")
			text += "<exclusion><groupId>" + group + "</groupId><artifactId>" + name + "</artifactId></exclusion>"
		}
		return text + "</exclusions>"
	}
	parent := func(name string) string {
		p := strings.Split(name, ":")
		return "<parent><groupId>" + p[0] + "</groupId><artifactId>" + p[1] + "</artifactId><version>" + p[2] + "</version></parent>"
	}
	leaf := func(names ...string) (all []artifact) {
		for _, n := range names {
			all = append(all, lib(n, ""))
		}
		return all
	}
	const imported = " <type>pom</type><scope>import</scope>"
	for name, c := range map[string]struct {
		artifacts []artifact
		ask, want string
	}{
		"alone": {leaf("g:a:1"), "g:a:1", "g:a:1"},
		"scopes": {append(leaf("g:b:1", "g:c:1"), lib("g:a:1", needs("g:b:1", "g:c:1 <scope>runtime</scope>", "g:d:1 <scope>test</scope>",
			"g:e:1 <scope>provided</scope>", "g:f:1 <optional>true</optional>", "g:g:1 <scope>system</scope>"))), "g:a:1", "g:a:1 g:b:1 g:c:1"},
		"nearest": {append(leaf("g:d:1", "g:d:2"), lib("g:a:1", needs("g:b:1", "g:d:1")), lib("g:b:1", needs("g:c:1")), lib("g:c:1", needs("g:d:2"))),
			"g:a:1", "g:a:1 g:b:1 g:d:1 g:c:1"},
		"first":        {append(leaf("g:d:1", "g:d:2"), lib("g:a:1", needs("g:d:2")), lib("g:b:1", needs("g:d:1"))), "g:a:1 g:b:1", "g:a:1 g:b:1 g:d:2"},
		"loser":        {append(leaf("g:b:2"), lib("g:a:1", needs("g:b:1")), lib("g:b:1", needs("g:absent:1"))), "g:a:1 g:b:2", "g:a:1 g:b:2"},
		"circle":       {[]artifact{lib("g:a:1", needs("g:b:1")), lib("g:b:1", needs("g:a:1"))}, "g:a:1", "g:a:1 g:b:1"},
		"excluded":     {append(leaf("g:c:1"), lib("g:a:1", needs("g:b:1 "+without("h:*", "g:d"))), lib("g:b:1", needs("g:c:1", "h:x:1", "g:d:1"))), "g:a:1", "g:a:1 g:b:1 g:c:1"},
		"all excluded": {[]artifact{lib("g:a:1", needs("g:b:1 "+without("*:*"))), lib("g:b:1", needs("g:c:1"))}, "g:a:1", "g:a:1 g:b:1"},
		"excluded by management": {[]artifact{lib("g:a:1", needs("g:b:1")+managed(needs("g:b:9 "+without("g:c")))), lib("g:b:1", needs("g:c:1"))},
			"g:a:1", "g:a:1 g:b:1"},
		"properties": {append(leaf("g:b:7", "g:c:1.2", "g:d:1"), lib("g:a:1", "<properties><b>7</b><n.x>1.${y}</n.x><y> 2 </y></properties>"+
			needs("${project.groupId}:b:${b}", "g:c:${n.x}", "${pom.groupId}:d:${version}"))), "g:a:1", "g:a:1 g:b:7 g:c:1.2 g:d:1"},
		"unknown property that nothing needs": {[]artifact{lib("g:a:1", needs("g:b:${no} <scope>test</scope>"))}, "g:a:1", "g:a:1"},
		"parents": {append(leaf("g:b:2", "g:c:3", "g:d:1"), lib("g:a:1", parent("g:p:5")+"<properties><b>2</b></properties>"+needs("g:c:3")),
			artifact{Name: "g:p:5", Inner: parent("g:q:6") + "<properties><b>1</b></properties>" + needs("g:b:${b}", "g:c:1", "g:d:${project.version}")},
			artifact{Name: "g:q:6", Inner: ""}), "g:a:1", "g:a:1 g:c:3 g:b:2 g:d:1"},
		"managed by a parent": {append(leaf("g:b:2"), lib("g:a:1", parent("g:p:5")+needs("g:b", "g:c:1")),
			artifact{Name: "g:p:5", Inner: managed(needs("g:b:2", "g:c:1 <scope>test</scope>"))}), "g:a:1", "g:a:1 g:b:2"},
		"managed by an import": {append(leaf("g:b:2", "g:c:1", "g:d:6"), lib("g:a:1", managed(needs("g:bom:4"+imported, "g:bom2:4"+imported, "g:c:1"))+needs("g:b", "g:c", "g:d")),
			artifact{Name: "g:bom:4", Inner: parent("g:p:5") + managed(needs("g:b:${b}", "g:c:9"))}, artifact{Name: "g:p:5", Inner: "<properties><b>2</b></properties>"},
			artifact{Name: "g:bom2:4", Inner: managed(needs("g:bom3:1"+imported, "g:b:3"))}, artifact{Name: "g:bom3:1", Inner: managed(needs("g:d:6", "g:b:4"))},
		), "g:a:1", "g:a:1 g:b:2 g:c:1 g:d:6"},
		"management is the POM's own": {append(leaf("g:c:2"), lib("g:a:1", managed(needs("g:c:1"))+needs("g:b:1")), lib("g:b:1", needs("g:c:2"))), "g:a:1",
			"g:a:1 g:b:1 g:c:2"},
		"import that nothing needs": {[]artifact{lib("g:a:1", managed(needs("g:absent:4"+imported))+needs("g:t:1 <scope>test</scope>"))}, "g:a:1", "g:a:1"},
		"relocated": {append(leaf("h:new:2"), lib("g:a:1", needs("g:old:2")), artifact{Name: "g:old:2",
			Inner: "<distributionManagement><relocation><groupId>h</groupId><artifactId>new</artifactId></relocation></distributionManagement>"}), "g:a:1", "g:a:1 h:new:2"},
		"relocated to what is there": {append(leaf("h:new:3"), lib("g:a:1", needs("g:old:2")), artifact{Name: "h:new:2"}, artifact{Name: "g:old:2",
			Inner: "<distributionManagement><relocation><groupId>h</groupId><artifactId>new</artifactId></relocation></distributionManagement>"}),
			"g:a:1 h:new:3", "g:a:1 h:new:3"},
		"classifiers and types": {append(leaf("g:b:1", "g:b:1:linux", "g:c:1", "g:c:1:tests", "g:e:1"), lib("g:a:1", needs("g:b:1", "g:b:1 <classifier>linux</classifier>",
			"g:c:1 <type>test-jar</type>", "g:d:1 <type>zip</type>", "g:e:1 <type>bundle</type>", "g:f:1 <type>pom</type>")),
			artifact{Name: "g:f:1", Inner: needs("g:c:1")}), "g:a:1", "g:a:1 g:b:1 g:b:1:linux g:c:1:tests g:e:1 g:c:1"},
		"only a POM":    {append(leaf("g:b:1"), artifact{Name: "g:a:1", Inner: "<packaging>pom</packaging>" + needs("g:b:1")}), "g:a:1", "g:b:1"},
		"a range fixed": {append(leaf("g:b:2"), lib("g:a:1", needs("g:b:[1,3)"))), "g:a:1 g:b:2", "g:a:1 g:b:2"},
		"without namespace, in Latin-1": {[]artifact{{Name: "g:a:1", Jar: []byte("x"), POM: "<?xml version='1.0' encoding='ISO-8859-1'?><!-- caf\xe9 --><project><name>\xe9 &amp; &lt;</name></project>"}},
			"g:a:1", "g:a:1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := testregistry.New(t, testregistry.Maven(c.artifacts...))
			got, _, err := run(t, s.URL, strings.Fields(c.ask)...)
			if err != nil || got != c.want {
				t.Errorf("%q instead of %q: %v", got, c.want, err)
			}
		})
	}
}

// TestRefused: what is wrong is named, with the coordinate.
func TestRefused(t *testing.T) {
	parents := artifact{Name: "g:a:1", Inner: "<parent><groupId>g</groupId><artifactId>p</artifactId><version>1</version></parent>"}
	back := artifact{Name: "g:p:1", Inner: "<parent><groupId>g</groupId><artifactId>a</artifactId><version>1</version></parent>"}
	var deep, wide []artifact
	for i := range 20 {
		n, next := string(rune('a'+i)), string(rune('b'+i))
		deep = append(deep, lib("g:"+n+":1", needs("g:"+next+":1")))
		inner := ""
		if i < 9 {
			inner = "<dependencyManagement>" + needs(slices.Repeat([]string{"g:" + next + ":1 <type>pom</type><scope>import</scope>"}, 9)...) + "</dependencyManagement>"
		}
		wide = append(wide, lib("g:"+n+":1", inner+needs("g:x")))
	}
	pom := func(text string) []artifact { return []artifact{{Name: "g:a:1", POM: text, Jar: []byte("x")}} }
	sums := func(sums map[string]string) []artifact {
		return []artifact{{Name: "g:a:1", Jar: []byte("x"), Checksums: sums}}
	}
	zeros := strings.Repeat("0", 128)
	for name, c := range map[string]struct {
		artifacts []artifact
		want      []string
	}{
		"absent":            {nil, []string{"g:a:1: g/a/1/a-1.pom", "does not have it"}},
		"no jar":            {[]artifact{{Name: "g:a:1"}}, []string{"g:a:1: g/a/1/a-1.jar", "does not have it"}},
		"absent dependency": {[]artifact{lib("g:a:1", needs("g:b:1")), lib("g:b:1", needs("g:c:1"))}, []string{"g:c:1: g/c/1/c-1.pom", "needed by g:b:1\n", "needed by g:a:1"}},
		"absent jar below":  {[]artifact{lib("g:a:1", needs("g:b:1")), {Name: "g:b:1"}}, []string{"g:b:1: g/b/1/b-1.jar", "needed by g:a:1"}},
		"range":             {[]artifact{lib("g:a:1", needs("g:b:[1.0,2.0)"))}, []string{"g:a:1: its dependency g:b has the range \"[1.0,2.0)\"", "--deps g:b:VERSION"}},
		"snapshot":          {[]artifact{lib("g:a:1", needs("g:b:1-SNAPSHOT"))}, []string{"g:a:1: its dependency g:b", "which changes"}},
		"no version":        {[]artifact{lib("g:a:1", needs("g:b"))}, []string{"g:a:1: its dependency g:b has no version"}},
		"unknown property":  {[]artifact{lib("g:a:1", needs("g:b:${no.such}"))}, []string{"g:a:1: its dependency g:b", "${no.such}", "no POM sets"}},
		"endless property":  {[]artifact{lib("g:a:1", "<properties><x>${x}</x></properties>"+needs("g:b:${x}"))}, []string{"g:a:1: its dependency g:b"}},
		"property bomb": {[]artifact{lib("g:a:1", "<properties><x>${y}${y}${y}${y}</x><y>${z}${z}${z}${z}</y><z>${w}${w}${w}${w}</z><w>${v}${v}${v}${v}</w><v/></properties>"+
			needs("g:b:${x}"))}, []string{"g:a:1: its dependency g:b"}},
		"path in a group":     {[]artifact{lib("g:a:1", needs("../../x:b:1"))}, []string{"g:a:1: its dependency", "no name of Maven's"}},
		"path in a version":   {[]artifact{lib("g:a:1", needs("g:b:1/../../../x"))}, []string{"g:a:1: its dependency g:b", "none of Maven's"}},
		"path in a parent":    {[]artifact{{Name: "g:a:1", Inner: "<parent><groupId>g</groupId><artifactId>../x</artifactId><version>1</version></parent>"}}, []string{"g:a:1: ", "../x"}},
		"circle of parents":   {[]artifact{parents, back}, []string{"g:a:1: its parents form a circle"}},
		"own parent":          {[]artifact{{Name: "g:a:1", Inner: back.Inner}}, []string{"g:a:1: its parents form a circle"}},
		"circle of imports":   {[]artifact{lib("g:a:1", "<dependencyManagement>"+needs("g:a:1 <type>pom</type><scope>import</scope>")+"</dependencyManagement>"+needs("g:b"))}, []string{"g:a:1: ", "imports itself"}},
		"tree of imports":     {wide, []string{"g:a:1: ", "lead to more than"}},
		"deep":                {deep, []string{"g:q:1: its dependency g:r:1 is more than 16 steps away", "needed by g:a:1"}},
		"relocated endlessly": {[]artifact{{Name: "g:a:1", Inner: "<distributionManagement><relocation/></distributionManagement>"}}, []string{"relocated too often"}},
		"DTD": {pom("<?xml version='1.0'?><!DOCTYPE project [<!ENTITY a 'x'><!ENTITY b '&a;&a;'>]><project><name>&b;</name></project>"),
			[]string{"g:a:1: g/a/1/a-1.pom", "document type"}},
		"entity":                     {pom("<project><name>&b;</name></project>"), []string{"g:a:1: ", "entity"}},
		"no XML":                     {pom("PK\x03\x04"), []string{"g:a:1: ", "no POM"}},
		"cut":                        {pom("<project><name>"), []string{"g:a:1: ", "no POM"}},
		"another root":               {pom("<html></html>"), []string{"g:a:1: ", "no POM"}},
		"nested":                     {pom("<project>" + strings.Repeat("<x>", 1000)), []string{"g:a:1: ", "nested deeper"}},
		"encoding":                   {pom("<?xml version='1.0' encoding='EBCDIC'?><project/>"), []string{"g:a:1: ", "EBCDIC"}},
		"huge":                       {pom("<project>" + strings.Repeat(" ", maxPOM) + "</project>"), []string{"g:a:1: g/a/1/a-1.pom", "the most"}},
		"no checksum":                {sums(map[string]string{}), []string{"g:a:1: g/a/1/a-1.pom", "no checksum"}},
		"wrong SHA-1":                {sums(map[string]string{"sha1": zeros[:40]}), []string{"g:a:1: ", "damaged or replaced", zeros[:40]}},
		"wrong SHA-512, right SHA-1": {sums(map[string]string{"sha1": "", "sha512": zeros}), []string{"damaged or replaced", "sha512"}},
		"empty checksum":             {sums(map[string]string{"sha256": "\n"}), []string{"damaged or replaced"}},
		"huge checksum":              {sums(map[string]string{"sha256": strings.Repeat("0", maxChecksum+1)}), []string{"the most"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := testregistry.New(t, testregistry.Maven(c.artifacts...))
			_, _, err := run(t, s.URL, "g:a:1")
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want: %s", err, want)
				}
			}
			if err != nil && (len(err.Error()) > 3000 || strings.Contains(err.Error(), s.URL)) {
				t.Errorf("%.5000s", err)
			}
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

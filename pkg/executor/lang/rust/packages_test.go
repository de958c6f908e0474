package rust

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

func TestParseCrate(t *testing.T) {
	for text, wanted := range map[string]string{
		"rand":                      "rand",
		"rand@*":                    "rand",
		"rand@0.8":                  "rand@0.8",
		" serde [rc, derive] @ 1.0": "serde[derive,rc]@1.0",
		"a_b-c@>=1.2.3-rc.1,<2":     "a_b-c@>=1.2.3-rc.1,<2",
		"rand@=0.8.5+x":             "rand@=0.8.5+x",
		"":                          "",
		"8rand":                     "",
		"_rand":                     "",
		"rand==0.8":                 "",
		"rand@==0.8":                "",
		"rand@>":                    "",
		"rand@main":                 "",
		"rand@1,":                   "",
		"rand@1\"\nx = \"y":         "",
		"rand[a@1":                  "",
		"rand[]":                    "",
		"rand[a\"b]":                "",
		"https://crates.io/rand":    "",
		"../rand":                   "",
	} {
		c, err := parseCrate(text)
		if err == nil && c.String() != wanted || err != nil && wanted != "" {
			t.Errorf("%q is %q, %v", text, c.String(), err)
		}
		if err != nil && !strings.Contains(err.Error(), "write it like") {
			t.Error(err)
		}
	}
	if _, err := parseCrates([]string{"rand", "serde", "rand@1"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
}

func FuzzParseCrate(f *testing.F) {
	for _, text := range []string{"serde[derive]@1.0", "rand@>=1,<2", "x[y", "x@\"", "x@1]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCrate(text)
		if err != nil {
			return
		}
		again, err := parseCrate(c.String())
		if err != nil || again.table() != c.table() {
			t.Errorf("%q is %q, and that %q, %v", text, c.String(), again.String(), err)
		}
		if table := c.table(); strings.Count(table, "\n") > 4 || strings.ContainsAny(table, `\'#`) {
			t.Errorf("%q makes %q", text, table)
		}
	})
}

func TestManifestDeclares(t *testing.T) {
	manifest := "[package]\nname = \"no\"\n[ dependencies ] # these\na = \"1\"\n\"b\" = { version = \"1\" }\nc.version = \"1\"\n" +
		"# d = \"1\"\n[dependencies.e]\nversion = \"2\"\n[dev-dependencies]\nf = \"1\"\n"
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "name", "version"} {
		if declaresCrate(manifest, name) != strings.Contains("abce", name) {
			t.Errorf("%s: %v", name, declaresCrate(manifest, name))
		}
	}
	p := project{files: map[string]string{cargoToml: manifest, cargoLock: "[dependencies]\nno = \"1\"\n"}}
	if got := p.requirements(); !slices.Equal(got, []string{"a@1", "f@1"}) {
		t.Errorf("%q", got)
	}
}

func FuzzReadCargoLock(f *testing.F) {
	digest := strings.Repeat("ab", 32)
	f.Add("version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry+x\"\nchecksum = \"" + digest + "\"\n")
	f.Add("[[package]]\nname = \"../a\"\nversion = \"1\"\nsource = \"registry+x\"\n[[package]]\nname = \"own\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		lock, err := readCargoLock(map[string][]byte{"src/Cargo.lock": []byte(text)})
		if err != nil {
			return
		}
		for _, p := range lock.Packages {
			if !isCrateName(p.Name) || strings.ContainsAny(p.Version, "/ \n") || p.Hash != "" && len(p.Hash) != len("sha256:")+64 {
				t.Errorf("%+v", p)
			}
		}
	})
}

func TestReadCargoLock(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	lock, err := readCargoLock(map[string][]byte{"src/app/Cargo.lock": []byte(
		"[[package]]\nname = \"app\"\nversion = \"1.0.0\"\ndependencies = [\n \"rand\",\n]\n\n" +
			"[[package]]\nname = \"rand\"\nversion = \"0.8.5\"\nsource = \"registry+https://x\"\nchecksum = \"" + digest + "\"\n")})
	if err != nil {
		t.Fatal(err)
	}
	wanted := language.Package{Name: "rand", Version: "0.8.5", Hash: "sha256:" + digest}
	if !slices.Equal(lock.Packages, []language.Package{wanted}) {
		t.Errorf("%+v", lock.Packages)
	}
	if lock.Files["app/Cargo.lock"] == "" {
		t.Errorf("%q", lock.Files)
	}
}

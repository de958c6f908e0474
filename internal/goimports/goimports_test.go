package goimports

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMissing(t *testing.T) {
	for src, want := range map[string][]string{
		"func f() { sort.Ints(nil) }":                          {"sort"},
		"import \"sort\"\nfunc f() { sort.Ints(nil) }":         nil,
		"var sort struct{ Ints int }\nvar x = sort.Ints":       nil,
		"func f() { rand.IntN(3); strings.ToUpper(``) }":       {"math/rand/v2", "strings"},
		"func f() { nosuch.Thing() }":                          nil,
		"func f() { sort.Ints(nil":                             {"sort"},
		"func f(os []int) { os.x() }\nfunc g() { os.Exit(1) }": {"os"},
	} {
		if got := Missing([]byte("package p\n" + src)); !slices.Equal(got, want) {
			t.Errorf("%q: %q instead of %q", src, got, want)
		}
	}
}

// The table is of packages that there are, each of them found by its name unless another has it first.
func TestStandardPackages(t *testing.T) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for p := range strings.FieldsSeq(standardPackages) {
		if st, err := os.Stat(filepath.Join(strings.TrimSpace(string(goroot)), "src", p)); err != nil || !st.IsDir() {
			t.Errorf("there is no package %s", p)
		}
		if name := PackageName(p); seen[name] {
			t.Errorf("%s is not found by its name: another was first", p)
		} else {
			seen[name] = true
		}
	}
	for _, c := range contested {
		if c.name != PackageName(c.path) {
			t.Errorf("%s is not called %s", c.path, c.name)
		}
	}
}

package tests

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Framework is a test framework.
type Framework struct {
	Name     string // of --framework, and in results
	Language string
	// Looked describes for people what Found looks for.
	Looked string
	// Live is set if tests are reported while they run; otherwise they are reported at the end.
	Live bool
	// found reports whether a file shows that a project has tests of the framework.
	found func(f *language.File, base string) bool
}

// Frameworks is the table of frameworks. If a project has marks of several frameworks of one language, the first of the table is used.
var Frameworks = []Framework{
	{
		Name: "go test", Language: "go", Looked: "*_test.go", Live: true,
		found: func(_ *language.File, base string) bool { return strings.HasSuffix(base, "_test.go") },
	},
	{
		Name: "pytest", Language: "python", Looked: "test_*.py and *_test.py with pytest's imports, functions or configuration", Live: true,
		found: func(f *language.File, base string) bool {
			return base == "conftest.py" || isPythonTest(f, base) && wantsPytest(f)
		},
	},
	{
		Name: "unittest", Language: "python", Looked: "test*.py with unittest.TestCase", Live: true,
		found: func(f *language.File, base string) bool { return isPythonTest(f, base) && mentions(f, "unittest") },
	},
	{
		Name: "jest", Language: "javascript", Looked: "jest.config.* or jest in package.json", Live: true,
		found: func(f *language.File, base string) bool { return namesPackage(f, base, "jest") },
	},
	{
		Name: "vitest", Language: "javascript", Looked: "vitest.config.* or vitest in package.json", Live: true,
		found: func(f *language.File, base string) bool { return namesPackage(f, base, "vitest") },
	},
	{
		Name: "node", Language: "javascript", Looked: "*.test.js, test-*.js, test.js, and files in test", Live: true,
		found: func(f *language.File, base string) bool { return isNodeTest(f.Path, base) },
	},
	{
		Name: "cargo test", Language: "rust", Looked: "Cargo.toml", Live: true,
		found: func(_ *language.File, base string) bool { return base == "Cargo.toml" },
	},
	{
		Name: "junit", Language: "java", Looked: "*.java with @Test",
		found: func(f *language.File, base string) bool {
			return strings.HasSuffix(base, ".java") && mentions(f, "@Test")
		},
	},
	{
		Name: "bats", Language: "shell", Looked: "*.bats", Live: true,
		found: func(_ *language.File, base string) bool { return strings.HasSuffix(base, ".bats") },
	},
}

// namesPackage reports whether a file is the configuration of a framework, or a package.json that names it.
func namesPackage(f *language.File, base, name string) bool {
	return strings.HasPrefix(base, name+".config.") || base == "package.json" && mentions(f, `"`+name+`"`)
}

// isNodeTest reports whether Node's test runner takes a file.
func isNodeTest(p, base string) bool {
	name, ext := strings.TrimSuffix(base, path.Ext(base)), path.Ext(base)
	if ext != ".js" && ext != ".mjs" && ext != ".cjs" {
		return false
	}
	return name == "test" || strings.HasPrefix(name, "test-") || strings.HasSuffix(name, ".test") || strings.HasSuffix(name, "-test") ||
		strings.HasSuffix(name, "_test") || strings.HasPrefix(p, "test/") || strings.Contains(p, "/test/")
}

func isPythonTest(_ *language.File, base string) bool {
	return strings.HasSuffix(base, ".py") && (strings.HasPrefix(base, "test") || strings.HasSuffix(base, "_test.py"))
}

// wantsPytest reports whether a file has tests that only pytest runs.
func wantsPytest(f *language.File) bool {
	return mentions(f, "pytest") || !mentions(f, "unittest") && mentions(f, "def test")
}

// mentions reports whether the beginning of a file has a word.
func mentions(f *language.File, word string) bool {
	text, err := f.Head(maxRead)
	return err == nil && bytes.Contains(text, []byte(word))
}

// maxRead bounds what is read of a file to find its framework.
const maxRead = 256 << 10

// Detect returns the framework of a project: that with the name, or the one of which the files have marks. Marks at the top of the project
// count before those below, and installed packages have none.
func Detect(files []executor.File, name string) (*Framework, error) {
	if name != "" {
		for i := range Frameworks {
			if Frameworks[i].Name == name || Frameworks[i].Name == name+" test" {
				return &Frameworks[i], nil
			}
		}
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "framework", "one of "+strings.Join(Names(), ", "), "there is no framework %q", name)
	}
	found, depth := detectAll(files)
	if len(found) == 0 {
		var looked []string
		for _, w := range Frameworks {
			looked = append(looked, w.Name+" ("+w.Looked+")")
		}
		return nil, &sandbox.Error{Op: "test", Kind: sandbox.ErrInvalid, Hint: "--framework NAME, if the tests have other names",
			Err: errors.New("no tests are found; looked for " + strings.Join(looked, ", "))}
	}
	least := slices.MinFunc(found, func(a, b *Framework) int { return depth[a] - depth[b] })
	var names []string
	for _, w := range found {
		if depth[w] == depth[least] {
			names = append(names, w.Name)
		}
	}
	if len(names) > 1 {
		return nil, &sandbox.Error{Op: "test", Kind: sandbox.ErrInvalid, Hint: fmt.Sprintf("--framework %q", names[0]),
			Err: errors.New("the project has tests of several frameworks: " + strings.Join(names, ", "))}
	}
	return least, nil
}

// DetectAll returns the frameworks of which the files have marks, one for each language.
func DetectAll(files []executor.File) []*Framework {
	found, _ := detectAll(files)
	return found
}

// detectAll returns also the depth of the marks that are nearest to the top.
func detectAll(files []executor.File) (found []*Framework, depth map[*Framework]int) {
	depth = map[*Framework]int{}
	for i := range files {
		f := &files[i]
		if isInstalled(f.Path) {
			continue
		}
		for k := range Frameworks {
			w := &Frameworks[k]
			d := strings.Count(f.Path, "/")
			if least, ok := depth[w]; (!ok || d < least) && w.found(f, path.Base(f.Path)) {
				depth[w] = d
			}
		}
	}
	for k := range Frameworks {
		w := &Frameworks[k]
		_, ok := depth[w]
		if ok && !slices.ContainsFunc(found, func(o *Framework) bool { return o.Language == w.Language }) {
			found = append(found, w)
		}
	}
	return found, depth
}

// Names returns the names of all frameworks.
func Names() (list []string) {
	for _, w := range Frameworks {
		list = append(list, w.Name)
	}
	return list
}

// isInstalled reports whether a file is of an installed package.
func isInstalled(p string) bool {
	return slices.ContainsFunc(strings.Split(p, "/"), func(part string) bool {
		return part == "node_modules" || part == "vendor" || part == "site-packages" || part == "testdata"
	})
}

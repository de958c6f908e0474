package executor

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/driver"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// pythonFlavours are interpreters with modules loaded that take long to load, the fullest first. A program gets the first that has
// something it imports; one that imports nothing of the kind gets an interpreter with nothing loaded. Modules that are not installed are
// left out by the driver.
var pythonFlavours = []struct {
	name           string
	wants, preload []string
}{
	{"python+matplotlib", []string{"matplotlib", "seaborn", "pylab"}, driver.Matplotlib()},
	{"python+pandas", []string{"pandas", "numpy", "scipy", "sklearn", "statsmodels"}, driver.Pandas()},
}

// Warm Python is 3.9 or newer: the driver is tried with these.
const pythonMajor, pythonMinor = 3, 9

// pythonReads are further variables that Python, or the C library for it, looks at when it starts.
var pythonReads = []string{"VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "LOCPATH", "NLSPATH", "GCONV_PATH"}

// pythonWarm says how a program that is a file waits in an interpreter; nil where it can not, because variables of the user's would
// change how that starts.
func (j *job) pythonWarm() *sandbox.Warm {
	if !j.ahead() || !pythonAtLeast(j.tool.Version, pythonMajor, pythonMinor) {
		return nil
	}
	for name := range j.req.Env {
		if strings.HasPrefix(name, "PYTHON") || readAtStart(name) || slices.Contains(pythonReads, name) {
			return nil
		}
	}
	imports, watches := map[string]bool{}, false
	for _, file := range j.files {
		if j.lang.owns(file.Path) {
			named := pythonImports(file.Data)
			for _, m := range named {
				imports[m] = true
			}
			watches = watches || driver.Watches(file.Data, named)
		}
	}
	w := driver.Python("python")
	for _, f := range pythonFlavours {
		// What is loaded may have looked at any variable.
		if len(j.req.Env) == 0 && slices.ContainsFunc(f.wants, func(name string) bool { return imports[name] }) {
			w = driver.Python(f.name, f.preload...)
			break
		}
	}
	if watches {
		w = driver.Watched(w)
	}
	return w
}

// pythonAtLeast compares a version like 3.11.2.
func pythonAtLeast(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(first)
	b, err2 := strconv.Atoi(second)
	return err == nil && err2 == nil && (a > major || a == major && b >= minor)
}

// pythonImports are the modules that a source names in import statements, as far as a glance tells: one that is not one, in a text,
// costs nothing but the wrong interpreter's time.
func pythonImports(source []byte) (modules []string) {
	add := func(name []byte) {
		name = bytes.TrimSpace(name)
		end := bytes.IndexFunc(name, func(r rune) bool { return r == '.' || r == ' ' || r == '\t' || r == '#' })
		if end >= 0 {
			name = name[:end]
		}
		if len(name) > 0 && len(modules) < maxImports {
			modules = append(modules, string(name))
		}
	}
	for line := range bytes.Lines(source) {
		for statement := range bytes.SplitSeq(line, []byte(";")) {
			statement = bytes.TrimSpace(statement)
			if rest, ok := bytes.CutPrefix(statement, []byte("from ")); ok {
				add(rest)
			} else if rest, ok := bytes.CutPrefix(statement, []byte("import ")); ok {
				for name := range bytes.SplitSeq(rest, []byte(",")) {
					add(name)
				}
			}
		}
	}
	return modules
}

// maxImports bounds what is looked at.
const maxImports = 1000

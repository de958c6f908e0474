package python

import (
	"bytes"
	_ "embed"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// reporter runs the tests of a request with Tests.
//
//go:embed reporter.py
var reporter []byte

// addTests adds the run of a program's tests: all of them, or those of the entry. The runner is pytest for a program that mentions it, and
// otherwise unittest, which every Python has.
func addTests(j *language.Job, program string) error {
	runner := "unittest"
	wants, err := wantsPytest(j.Files)
	if err != nil {
		return err
	}
	asked := j.Request.Tests
	if asked != nil && asked.Framework != "" {
		wants = asked.Framework == "pytest"
	}
	if wants {
		runner = "pytest"
	}
	args := []string{program, "-m", runner}
	if asked != nil {
		chosen := *asked
		chosen.Framework, j.Request.Tests = runner, &chosen
		j.Plan.Framework, j.Plan.Report = runner, language.ReportRecords
		file, err := j.AddReporter("reporter.py", reporter)
		if err != nil {
			return err
		}
		args = []string{program, file}
	}
	entry := j.Request.Entry
	if len(j.Files) == 1 {
		entry = j.Entry
	}
	isFile := language.Find(j.Files, entry) != nil
	switch {
	case entry == "" || path.Clean(entry) == ".":
	case wants || isFile:
		args = append(args, path.Clean(entry))
	default:
		args = append(args, "discover", "-t", ".", "-s", path.Clean(entry))
	}
	run := addRun(j, args...)
	run.Process.Workdir = j.Dir
	if asked != nil {
		run.SendReport()
	}
	return nil
}

// wantsPytest reports whether a program has a configuration of pytest, imports it, or has tests that only pytest runs: functions.
func wantsPytest(files []language.File) (bool, error) {
	sections := map[string]string{"pytest.ini": "", ".pytest.ini": "", "conftest.py": "", "pyproject.toml": "[tool.pytest",
		"setup.cfg": "[tool:pytest]", "tox.ini": "[pytest]"}
	unittest := false
	functions := false
	for _, f := range files {
		base := path.Base(f.Path)
		section, known := sections[base]
		isTest := strings.HasSuffix(base, ".py") && (strings.HasPrefix(base, "test") || strings.HasSuffix(base, "_test.py") || len(files) == 1)
		if known && section == "" {
			return true, nil
		}
		if !known && !isTest {
			continue
		}
		text, err := f.Content()
		if err != nil {
			return false, err
		}
		if known {
			if bytes.Contains(text, []byte(section)) {
				return true, nil
			}
			continue
		}
		imports := importsOf(text)
		if slices.Contains(imports, "pytest") {
			return true, nil
		}
		unittest = unittest || slices.Contains(imports, "unittest")
		functions = functions || bytes.HasPrefix(text, []byte("def test")) || bytes.Contains(text, []byte("\ndef test"))
	}
	return functions && !unittest, nil
}

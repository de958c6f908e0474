package tests

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestDetect compares what is found of projects with testdata/detect.golden.
func TestDetect(t *testing.T) {
	const unit, functions = "import unittest\n", "def test_a(): pass\n"
	var b strings.Builder
	for _, c := range []struct {
		name, framework string
		files           []string // paths and texts
	}{
		{"nothing", "", []string{"main.py", "print(1)\n", "README.md", "tests\n"}},
		{"empty", "", nil},
		{"go", "", []string{"go.mod", "", "a.go", "", "sub/a_test.go", ""}},
		{"go, without a module", "", []string{"a_test.go", ""}},
		{"unittest", "", []string{"tests/test_a.py", unit}},
		{"pytest by functions", "", []string{"tests/test_a.py", functions}},
		{"pytest by import", "", []string{"a_test.py", "import pytest\n"}},
		{"pytest by conftest", "", []string{"conftest.py", "", "test_a.py", unit}},
		{"pytest over unittest", "", []string{"test_a.py", functions, "test_b.py", unit}},
		{"node by name", "", []string{"package.json", "{}", "src/a.test.mjs", ""}},
		{"node by directory", "", []string{"test/a.js", ""}},
		{"node, typescript", "", []string{"src/a.test.ts", ""}},
		{"cargo", "", []string{"Cargo.toml", "", "src/lib.rs", ""}},
		{"bats", "", []string{"test/a.bats", ""}},
		{"installed packages do not count", "", []string{"node_modules/a/test/a.js", "", "vendor/x/x_test.go", "", "main.js", ""}},
		{"the top counts first", "", []string{"a_test.go", "", "scripts/test_a.py", functions}},
		{"two at the same depth", "", []string{"a_test.go", "", "test_a.py", functions}},
		{"asked for", "unittest", []string{"a_test.go", "", "test_a.py", functions}},
		{"asked for by a short name", "go", []string{"x.py", ""}},
		{"unknown", "nose", []string{"a_test.go", ""}},
	} {
		var files []executor.File
		for i := 0; i+1 < len(c.files); i += 2 {
			files = append(files, executor.File{Path: c.files[i], Data: []byte(c.files[i+1])})
		}
		w, err := Detect(files, c.framework)
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", c.name, err)
		} else {
			fmt.Fprintf(&b, "%s: %s of %s\n", c.name, w.Name, w.Language)
		}
	}
	const golden = "testdata/detect.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != b.String() {
		t.Errorf("%v: -update writes %s:\n%s", err, golden, &b)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Repeat: -1}, {Repeat: MaxRepeat + 1}, {TestTimeout: -1}, {Filter: "\x00"}, {Filter: strings.Repeat("x", 5000)}} {
		if o.Validate() == nil {
			t.Errorf("%+v", o)
		}
	}
	o := Options{Filter: "x", Repeat: MaxRepeat, TestTimeout: 1}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}

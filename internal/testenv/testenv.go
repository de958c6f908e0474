// Package testenv skips tests that this machine, or this size of the suite, can not run.
//
// The suite has three sizes:
//
//	make check     go test -short            unit tests: no root, no toolchain, no daemon
//	make test      go test                   one real run of everything that matters
//	make test-all  SANDBOX_RUN_TEST_ALL=1    matrices, crash instants, every backend with every case
//
// A test states what it needs in its first lines: [NeedRoot], [NeedSystem], [NeedAll]. A test whose amount of work depends on
// the size uses [All].
// The package imports nothing of ours, so that tests of every layer can use it. All functions may be called from any goroutine.
package testenv

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// AllVariable is the environment variable that asks for the largest size of the suite.
const AllVariable = "SANDBOX_RUN_TEST_ALL"

// All reports whether make test-all is running.
func All() bool { return os.Getenv(AllVariable) != "" }

// WarmDir is a directory where toolchains keep their prepared files (executor.Options.WarmDir) for all packages and runs of
// the suite: Go's standard library takes half a minute to compile. It is own, a directory of the caller's, where the scripts
// name none.
func WarmDir(own string) string {
	return cmp.Or(os.Getenv("SANDBOX_RUN_TEST_WARM"), own)
}

// NeedAll skips a test that only repeats, with more cases or more often, another test of make test. shorter names that test.
func NeedAll(t testing.TB, shorter string) {
	t.Helper()
	if !All() {
		t.Skipf("for make test-all (%s=1); in make test: %s", AllVariable, shorter)
	}
}

// NeedSystem skips a test that starts programs, which unit tests do not: sandboxes, toolchains, daemons, our own executables.
func NeedSystem(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("not a unit test (-short)")
	}
}

// NeedRoot is NeedSystem for a test that needs root on Linux as well.
func NeedRoot(t testing.TB) {
	t.Helper()
	NeedSystem(t)
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("needs root on Linux")
	}
}

// GuidePages returns the paths of the user guide: docs/SANDBOX_RUN.md and the pages in docs/guide. A test runs in its package's directory.
func GuidePages(t testing.TB) []string {
	t.Helper()
	root, err := filepath.Abs(".")
	for err == nil && root != "/" {
		if _, missing := os.Stat(filepath.Join(root, "go.mod")); missing == nil {
			break
		}
		root = filepath.Dir(root)
	}
	pages, globErr := filepath.Glob(filepath.Join(root, "docs/guide/*.md"))
	if err := errors.Join(err, globErr); err != nil {
		t.Fatal(err)
	}
	return append(pages, filepath.Join(root, "docs/SANDBOX_RUN.md"))
}

// Guide returns the text of all pages of the user guide.
func Guide(t testing.TB) string {
	t.Helper()
	var text strings.Builder
	for _, page := range GuidePages(t) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(content)
	}
	return text.String()
}

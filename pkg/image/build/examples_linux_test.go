package build

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// executables is where the command is, with all that belongs to it.
func executables(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags", "thin", "-o", dir+"/", "github.com/sandbox-run/sandbox-run/cmd/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// examples runs the project's examples of an image's languages on it: they print what they print on any machine.
func examples(t *testing.T, bin, store, name string, languages []string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	must(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "examples/README.md"))
	must(t, err)
	ran := 0
	for line := range strings.Lines(string(readme)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "sandbox-run examples/")
		if !ok {
			continue
		}
		example := rest[:strings.IndexAny(rest+" ", "/ ")]
		if language, _, _ := strings.Cut(example, "-"); !slices.Contains(languages, language) {
			continue
		}
		ran++
		t.Run(example, func(t *testing.T) {
			expected, err := os.ReadFile(filepath.Join(root, "examples", example, "expected.txt"))
			must(t, err)
			cmd := exec.Command("bash", "-c", "sandbox-run --timeout 2m --compile-timeout 5m --image "+Repository+name+" examples/"+rest)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "SANDBOX_RUN_IMAGES="+store)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if out, err := cmd.Output(); err != nil || !bytes.Equal(out, expected) {
				t.Errorf("%s: %v\n%s%s\nexpected:\n%s", cmd.Args[2], err, out, stderr.Bytes(), expected)
			}
		})
	}
	if ran == 0 {
		t.Errorf("there is no example of any of %q", languages)
	}
}

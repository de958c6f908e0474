package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// Every command of examples/README.md prints the content of expected.txt.
func TestExamples(t *testing.T) {
	testenv.NeedRoot(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "examples/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]bool{}
	for _, line := range listCommands(string(readme)) {
		_, rest, _ := strings.Cut(line, "examples/")
		name := rest[:strings.IndexAny(rest+" ", "/ ")]
		ran[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expected, err := os.ReadFile(filepath.Join(root, "examples", name, "expected.txt"))
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("bash", "-c", line)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "PATH="+binDir+":"+os.Getenv("PATH"))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || !bytes.Equal(out, expected) {
				t.Errorf("%s: %v\n%s%s\nexpected:\n%s", line, err, out, stderr.Bytes(), expected)
			}
		})
	}
	dirs, err := os.ReadDir(filepath.Join(root, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if d.IsDir() && !ran[d.Name()] {
			t.Errorf("examples/%s is in no command of the README", d.Name())
		}
	}
}

// listCommands returns the lines of a document's sh blocks.
func listCommands(document string) (lines []string) {
	inside := false
	for line := range strings.Lines(document) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "" && !strings.HasPrefix(line, "#"):
			lines = append(lines, line)
		}
	}
	return lines
}

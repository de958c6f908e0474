package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/testnet"
)

// TestDocuments runs every command of every sh block of the documents. The commands of a document run one after the other in one
// directory. A comment that is a number, or ends in "code" and a number, is the expected exit code; the default is 0. A comment
// "prints …" is the expected output.
func TestDocuments(t *testing.T) {
	needRoot(t)
	found := 0
	for _, doc := range append(testenv.GuidePages(t), "../../README.md") {
		t.Run(filepath.Base(doc), func(t *testing.T) {
			text, err := os.ReadFile(doc)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
				for _, c := range shellCommands(t, block[1]) {
					if skippedCommand.MatchString(c) {
						continue
					}
					found++
					runDocumented(t, dir, c, filepath.Base(doc) == "network.md")
				}
			}
		})
	}
	if found < 24 {
		t.Errorf("only %d commands were found", found)
	}
}

// skippedCommand matches commands that other tests run, or that depend on the machine: builds, installation, attacks, interactive shells.
var skippedCommand = regexp.MustCompile(`^(make|go) |/usr/|--attack|exec -t |doctor|gc$`)

// shellCommands splits a block where a shell would.
func shellCommands(t *testing.T, block string) (commands []string) {
	t.Helper()
	pending := ""
	for line := range strings.Lines(block) {
		pending += line
		if exec.Command("bash", "-n", "-c", pending).Run() == nil {
			commands = append(commands, strings.TrimSpace(pending))
			pending = ""
		}
	}
	if pending != "" {
		t.Errorf("a shell does not understand:\n%s", pending)
	}
	return commands
}

var documentedCode = regexp.MustCompile(`# (?:[^#]*\b(?:code|own) )?(\d{1,3})$`)

var documentedOutput = regexp.MustCompile(`# prints (.+)$`)

// runDocumented runs a command; online: in a test internet.
func runDocumented(t *testing.T, dir, text string, online bool) {
	t.Helper()
	want := 0
	if m := documentedCode.FindStringSubmatch(text); m != nil {
		want, _ = strconv.Atoi(m[1])
	}
	// The first compilation compiles a whole standard library.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/bash", "-c", text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+binDir+":"+os.Getenv("PATH"))
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if online {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		testnet.Wrap(self, cmd)
	}
	if got := exitCode(t, cmd.Run()); got != want {
		t.Errorf("%s\nexit code %d, want %d\n%s%s", text, got, want, &stdout, &stderr)
	}
	if m := documentedOutput.FindStringSubmatch(text); m != nil && strings.TrimSpace(stdout.String()) != m[1] {
		t.Errorf("%s\nprints %q, and not %q", text, &stdout, m[1])
	}
}

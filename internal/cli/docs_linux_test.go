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
	"github.com/sandbox-run/sandbox-run/internal/testregistry"
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
			dir, env := t.TempDir(), []string(nil)
			if filepath.Base(doc) == "packages.md" {
				env = documentedPackages(t)
			}
			for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
				for _, c := range shellCommands(t, block[1]) {
					if skippedCommand.MatchString(c) {
						continue
					}
					found++
					runDocumented(t, dir, c, env, filepath.Base(doc) == "network.md")
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

// runDocumented runs a command with further variables; online: in a test internet.
func runDocumented(t *testing.T, dir, text string, env []string, online bool) {
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
	cmd.Env = append(append(os.Environ(), "PATH="+binDir+":"+os.Getenv("PATH")), env...)
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

// documentedPackages serves packages that have, of those in the documents, the names and the parts that the commands use.
func documentedPackages(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "WordUtils.java")
	if err := os.WriteFile(source, []byte("package org.apache.commons.text;\npublic class WordUtils {\n"+
		"public static String capitalize(String s) { return s.substring(0, 1).toUpperCase() + s.substring(1); }\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("javac", "-d", dir, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const class = "org/apache/commons/text/WordUtils.class"
	compiled, err := os.ReadFile(filepath.Join(dir, class))
	if err != nil {
		t.Fatal(err)
	}
	u := newPackageUser(t, map[string]string{
		"pypi": testregistry.New(t, testregistry.PyPI(testregistry.Wheel{Name: "six", Version: "1.17.0",
			Files: map[string]string{"six.py": "import sys\nPY3 = sys.version_info[0] == 3\n"}})).URL + "/simple/",
		"npm": testregistry.New(t, testregistry.NPM(testregistry.NPMPackage{Name: "is-odd", Version: "3.0.1",
			Files: map[string]string{"index.js": "module.exports = n => Math.abs(n) % 2 === 1;\n"}})).URL + "/",
		"go": testregistry.New(t, testregistry.Go(testregistry.Module{Path: "github.com/google/uuid", Version: "v1.6.0", Files: map[string]string{
			"uuid.go": "package uuid\n\nimport \"fmt\"\n\ntype UUID [16]byte\n\nvar Nil UUID\n\nfunc (u UUID) String() string {\n" +
				"\treturn fmt.Sprintf(\"%x-%x-%x-%x-%x\", u[:4], u[4:6], u[6:8], u[8:10], u[10:])\n}\n"}})).URL + "/",
		"crates": testregistry.New(t, testregistry.Crates(testregistry.Crate{Name: "hex", Version: "0.4.3", Files: map[string]string{
			"src/lib.rs": "pub fn encode(s: &str) -> String { s.bytes().map(|b| format!(\"{:02x}\", b)).collect() }\n"}})).URL + "/index/",
		"maven": testregistry.New(t, testregistry.Maven(testregistry.Artifact{Name: "org.apache.commons:commons-text:1.10.0",
			Jar: testregistry.Zip(map[string]string{class: string(compiled)})})).URL + "/",
	})
	return u.env[len(os.Environ()):]
}

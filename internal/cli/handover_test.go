package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// copyExecutable copies an executable under test into a directory, under the given name.
func copyExecutable(t *testing.T, executable, dir, name string) string {
	t.Helper()
	testenv.NeedSystem(t)
	content, err := os.ReadFile(filepath.Join(binDir, executable))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// The thin executable hands over to the full one. The messages show which of the two has done the work.
func TestHandOver(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs exec: there, the full one is a child")
	}
	together, apart, elsewhere, wrong := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	beside := copyExecutable(t, CommandName, together, CommandName)
	copyExecutable(t, fullName, together, fullName)
	alone := copyExecutable(t, CommandName, apart, CommandName)
	copyExecutable(t, fullName, elsewhere, fullName)
	copyExecutable(t, CommandName, wrong, fullName) // the thin one under the full one's name
	if err := os.WriteFile(filepath.Join(apart, fullName), []byte("not to be executed"), 0o644); err != nil {
		t.Fatal(err)
	}
	heavy := []string{"image", "update", "--json", "none-of-that-name"}
	for name, test := range map[string]struct {
		run  string
		args []string
		path string // PATH
		env  string
		code int
		want string
	}{
		"beside":           {beside, heavy, "/nonexistent", "", 2, "none-of-that-name"},
		"beside, not PATH": {beside, heavy, wrong, "", 2, "none-of-that-name"},
		"on PATH":          {alone, heavy, elsewhere, "", 2, "none-of-that-name"},
		"missing": {alone, heavy,
			"/nonexistent", "", 125, "image update: the executable sandbox-rund is needed, and is neither beside sandbox-run nor on PATH"},
		"how to get it":    {alone, heavy, "/nonexistent", "", 125, "/cmd/sandbox-rund"},
		"not the full one": {alone, heavy, wrong, "", 125, "sandbox-rund leads to an executable that is not the full one"},
		"not needed":       {alone, []string{"version"}, "/nonexistent", "", 0, "sandbox-run "},
		"usage":            {beside, []string{"image", "update", "--nonsense"}, "/nonexistent", "", 2, "unknown flag: --nonsense"},
		"flags first":      {beside, []string{"--quiet", "image", "update"}, "/nonexistent", "", 2, "sandbox-run image"},
		"help of it":       {beside, []string{"help", "image", "update"}, "/nonexistent", "", 0, "image update [flags]"},
		"help, missing":    {alone, []string{"help", "image", "update"}, "/nonexistent", "", 125, "help image: the executable sandbox-rund is needed"},
		"help of the rest": {alone, []string{"--help"}, "/nonexistent", "", 0, "Fetch, make, list and remove images"},
		"completion":       {beside, []string{"__complete", "image", "up"}, "/nonexistent", "", 0, "update"},
		"of the rest":      {alone, []string{"__complete", "im"}, "/nonexistent", "", 0, "image"},
		"backend": {alone, []string{"exec", "--backend", "docker", "--", "true"},
			"/nonexistent", "", 125, "--backend docker: the executable sandbox-rund is needed"},
		"backend by name": {alone, []string{"exec", "--", "true"},
			"/nonexistent", "SANDBOX_RUN_BACKEND=docker", 125, "--backend docker: the executable sandbox-rund is needed"},
		"attack": {alone, []string{"doctor", "--attack"}, "/nonexistent", "", 125, "doctor --attack: the executable sandbox-rund is needed"},
		"of a run": {alone, []string{"--backend=docker", "-l", "python", "-c", "1"},
			"/nonexistent", "", 125, "--backend docker: the executable sandbox-rund is needed"},
		"another version": {filepath.Join(together, fullName), heavy,
			"/nonexistent", handedOverVariable + "=v0.0.7 go1.99", 125, "and sandbox-run is version v0.0.7 go1.99"},
		"better, of another version": {filepath.Join(together, fullName), []string{"gc", "--dry-run", "--json"},
			"/nonexistent", handedOverVariable + "=v0.0.7\n" + beside, 0, `"dry_run":true`},
		"better, and no executable to give back to": {filepath.Join(together, fullName), []string{"gc", "--json"},
			"/nonexistent", handedOverVariable + "=v0.0.7\n/nonexistent", 125,
			"hand over to /nonexistent: no such file or directory"},
		"better, if there": {alone, []string{"gc", "--dry-run", "--json"}, "/nonexistent", "", 0, `"dry_run":true`},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "better") {
				needRoot(t)
			}
			cmd := exec.Command(test.run, test.args...)
			cmd.Env = append(os.Environ(), "PATH="+test.path, "XDG_DATA_HOME="+t.TempDir(), "HOME="+t.TempDir())
			if test.env != "" {
				cmd.Env = append(cmd.Env, test.env)
			}
			out, err := cmd.CombinedOutput()
			if code := codeOf(t, err); code != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, test.code, test.want, out)
			}
		})
	}
}

func codeOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := err.(*exec.ExitError) //nolint:errorlint // os/exec returns it as it is
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// A hand-over keeps arguments, environment, descriptors and the process.
func TestHandOverKeepsProcess(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs exec and descriptors")
	}
	dir := t.TempDir()
	thin := copyExecutable(t, CommandName, dir, CommandName)
	const script = `#!/bin/sh
printf '%s|' "$0" "$@" "$MINE" "$SANDBOX_RUN_HANDED_OVER" "$$"; cat; cat <&7; exit 42
`
	if err := os.WriteFile(filepath.Join(dir, fullName), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	seventh, err := os.CreateTemp(dir, "seventh")
	if err != nil {
		t.Fatal(err)
	}
	defer seventh.Close()
	if _, err := seventh.WriteString("the seventh"); err != nil {
		t.Fatal(err)
	}
	if _, err := seventh.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	own, err := exec.Command(thin, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimSpace(strings.TrimPrefix(string(own), CommandName+" "))

	cmd := exec.Command(thin, "image", "pull", "--quiet", "two words", "and\nmore")
	cmd.Env = append(os.Environ(), "MINE=a b")
	cmd.Stdin = strings.NewReader("what was typed;")
	cmd.ExtraFiles = []*os.File{seventh, seventh, seventh, seventh, seventh}
	var out strings.Builder
	cmd.Stdout = &out
	err = cmd.Run()
	shell := filepath.Join(dir, fullName) // a script's $0 is its path; a binary's is the name
	pid := strconv.Itoa(cmd.Process.Pid)
	want := strings.Join([]string{shell, "image", "pull", "--quiet", "two words", "and\nmore", "a b", version, pid}, "|") +
		"|what was typed;the seventh"
	if code := codeOf(t, err); code != 42 || out.String() != want {
		t.Errorf("exit code %d:\n%s\nwant\n%s", code, out.String(), want)
	}
}

package cli

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// variantDir has the executables with the build tag weaken: those that the scripts have built, or new ones.
var variantDir = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		if dir = filepath.Join(dir, "weakened"); hasFile(dir, fullName) {
			return dir, nil
		}
	}
	dir := filepath.Join(binDir, "weakened")
	return dir, buildTagged(dir, "thin,weaken", CommandName, fullName, "sandbox-init")
})

func hasFile(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// buildTagged builds commands with their symbols.
func buildTagged(dir, tags string, commands ...string) error {
	args := []string{"build", "-trimpath", "-tags", tags, "-o", dir + "/"}
	for _, c := range commands {
		args = append(args, "../../cmd/"+c)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// weakening lists the symbols of an executable that take walls down.
func weakenSymbols(t *testing.T, file string) (names []string) {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil || len(symbols) < 1000 {
		t.Fatalf("%s: %d symbols, %v: this proves nothing", file, len(symbols), err)
	}
	for _, s := range symbols {
		if strings.Contains(strings.ToLower(s.Name), "weaken") {
			names = append(names, s.Name)
		}
	}
	return names
}

// No shipped executable has code that takes walls down. A variant has.
func TestShippedWithoutWeakening(t *testing.T) {
	testenv.NeedSystem(t)
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine")
	}
	shipped := []string{"sandbox-run", "sandbox-rund", "sandbox-init", "sandbox-helper"}
	dir := os.Getenv("SANDBOX_RUN_TEST_BIN")
	if dir == "" {
		dir = t.TempDir()
		if err := buildTagged(dir, "thin", shipped...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range shipped {
		if found := weakenSymbols(t, filepath.Join(dir, name)); len(found) > 0 {
			t.Errorf("%s takes walls down: %q", name, found)
		}
	}
	variants, err := variantDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{CommandName, fullName, "sandbox-init"} { // control
		if len(weakenSymbols(t, filepath.Join(variants, name))) == 0 {
			t.Errorf("the variant of %s takes no walls down", name)
		}
	}
}

// attackVariant carries out some cases against sandboxes with a mutation.
func attackVariant(t *testing.T, mutation string, cases ...string) *attack.Report {
	t.Helper()
	dir, err := variantDir()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, CommandName), "doctor", "--attack", "--json")
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), weaken.Variable+"="+mutation, weaken.Cases+"="+strings.Join(cases, ","))
	// Groups that a program could keep.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{0, 54323}}}
	out, err := cmd.Output()
	var r attack.Report
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
		t.Fatalf("%v, %v: %.500s %s", err, jsonErr, out, stderr.String())
	}
	if (err == nil) != r.OK {
		t.Errorf("%v, though ok is %v", err, r.OK)
	}
	return &r
}

// A suite that can not fail proves nothing: each wall is taken down in turn, and the cases of the table notice.
func TestWeakened(t *testing.T) {
	needRoot(t)
	binary(t)
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine, and no variants")
	}
	for _, m := range weaken.All() {
		t.Run(m.Name, func(t *testing.T) {
			if !m.Quick {
				testenv.NeedAll(t, "the other mutations")
			}
			absent := func(file string) bool { _, err := os.Stat(file); return err != nil }
			if len(m.Files) > 0 && !slices.ContainsFunc(m.Files, func(f string) bool { return !absent(f) }) {
				t.Skipf("this kernel has none of %q; TestCovers (rootfs) has the list", m.Files)
			}
			r := attackVariant(t, m.Name, m.Cases...)
			if r.OK || len(r.Results) != len(m.Cases) {
				t.Errorf("grade %s, %d cases", r.Grade, len(r.Results))
			}
			for _, res := range r.Results {
				// A sandbox that does not come up, or whose run is refused, is noticed as well.
				refused := res.Outcome == attack.Error && (strings.Contains(res.Detail, "no sandbox") || strings.Contains(res.Detail, "isolation"))
				if res.Outcome != attack.Breached && !refused {
					t.Errorf("%s %s: %s", res.ID, res.Outcome, res.Detail)
				} else {
					t.Logf("%s %s: %s", res.ID, res.Outcome, res.Detail)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) { // control: the same executable, and nothing taken down
		var cases []string
		for _, m := range weaken.All() {
			if m.Quick {
				cases = append(cases, m.Cases...)
			}
		}
		slices.Sort(cases)
		if r := attackVariant(t, "", slices.Compact(cases)...); !r.OK {
			t.Errorf("grade %s: %+v", r.Grade, r.Results)
		}
	})
}

// A program that lacks a wall is not started: the run fails as an error of ours, which names the wall.
func TestWeakenedMeasured(t *testing.T) {
	needRoot(t)
	binary(t)
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine, and no variants")
	}
	dir, err := variantDir()
	if err != nil {
		t.Fatal(err)
	}
	run := func(mutation string, flags ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, CommandName), append(append([]string{"exec", "--quiet"}, flags...), "--", "echo", "ran")...)
		cmd.Env = append(os.Environ(), weaken.Variable+"="+mutation, weaken.Measured+"=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, backend := range []string{"native", "oci"} {
		t.Run(backend, func(t *testing.T) {
			if out, err := run("", "--backend", backend); err != nil || !strings.Contains(out, "ran") { // control
				t.Fatalf("%v: %s", err, out)
			}
			for _, m := range weaken.All() {
				if m.Control == "" || backend == "oci" && !slices.Contains([]string{"no-filter", "no-landlock"}, m.Name) { // the runtime has made the rest
					continue
				}
				out, err := run(m.Name, "--backend", backend)
				if status := new(exec.ExitError); !errors.As(err, &status) || status.ExitCode() != 125 || strings.Contains(out, "ran") || !strings.Contains(out, m.Control) {
					t.Errorf("%s: %v, not an error of ours that names %s: %s", m.Name, err, m.Control, out)
				}
			}
		})
	}
}

// docs/THREAT_MODEL.md has the table of mutations.
func TestWeakenedTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/THREAT_MODEL.md")
	if err != nil {
		t.Skip("the sources are not here: ", err)
	}
	_, section, _ := strings.Cut(string(text), "## Mutations\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var got, want []string
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| `") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	for _, m := range weaken.All() {
		want = append(want, fmt.Sprintf("| `%s` | %s | %s |", m.Name, m.Step, strings.Join(m.Cases, ", ")))
		for _, id := range m.Cases {
			if !slices.Contains(attack.IDs(), id) {
				t.Errorf("%s: there is no case %s", m.Name, id)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table should be\n%s\nand is\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

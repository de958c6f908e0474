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

// variantDir returns the directory with executables of the build tag weaken: those of the test scripts, or new ones.
var variantDir = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		if dir = filepath.Join(dir, "weakened"); hasFile(dir, fullName) {
			return dir, nil
		}
	}
	dir := filepath.Join(binDir, "weakened")
	return dir, buildTagged(dir, "thin,weaken", CommandName, fullName, "sandbox-init", "sandbox-net")
})

func hasFile(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// buildTagged builds commands with symbols.
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

// weakenSymbols lists the symbols of the package weaken in an executable.
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

// No shipped executable has code that removes controls. A variant has.
func TestShippedWithoutWeakening(t *testing.T) {
	testenv.NeedSystem(t)
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine")
	}
	shipped := []string{"sandbox-run", "sandbox-rund", "sandbox-init", "sandbox-net", "sandbox-helper"}
	dir := os.Getenv("SANDBOX_RUN_TEST_BIN")
	if dir == "" {
		dir = t.TempDir()
		if err := buildTagged(dir, "thin", shipped...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range shipped {
		if found := weakenSymbols(t, filepath.Join(dir, name)); len(found) > 0 {
			t.Errorf("%s has code that removes controls: %q", name, found)
		}
	}
	variants, err := variantDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{CommandName, fullName, "sandbox-init", "sandbox-net"} { // control
		if len(weakenSymbols(t, filepath.Join(variants, name))) == 0 {
			t.Errorf("the variant of %s has no code that removes controls", name)
		}
	}
}

// attackVariant runs some cases of the attack suite against sandboxes with a mutation.
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
	// A supplementary group that a program could keep.
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

// The attack suite detects missing controls: every mutation removes one control, and its cases must fail.
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
				// A sandbox that does not start, or a refused run, is a detection as well.
				refused := res.Outcome == attack.Error && (strings.Contains(res.Detail, "no sandbox") || strings.Contains(res.Detail, "isolation"))
				if res.Outcome != attack.Breached && !refused {
					t.Errorf("%s %s: %s", res.ID, res.Outcome, res.Detail)
				} else {
					t.Logf("%s %s: %s", res.ID, res.Outcome, res.Detail)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) { // control: the same executable without a mutation
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

// A program without one of its controls is not started: the run fails with an error that names the control.
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
		args := append(append([]string{"exec", "--quiet"}, flags...), "--", "echo", "ran")
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, CommandName), args...)
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
				byRuntime := backend == "oci" && !slices.Contains([]string{"no-filter", "no-landlock"}, m.Name) // set up by the OCI runtime
				if m.Control == "" || byRuntime {
					continue
				}
				out, err := run(m.Name, "--backend", backend)
				status := new(exec.ExitError)
				failed := errors.As(err, &status) && status.ExitCode() == 125
				if !failed || strings.Contains(out, "ran") || !strings.Contains(out, m.Control) {
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

package full

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// TestCompatible compares the interface for users with that of commit 0c0ae1f: commands and flags, exit codes, the HTTP API, and names in
// JSON. Each file in testdata/compatible has one fact per line. A fact may only be missing if differences.txt lists it, with the reason;
// CHANGELOG.md lists it, too. New facts are not compared.
func TestCompatible(t *testing.T) {
	const dir = "testdata/compatible"
	deliberate := map[string]bool{}
	for _, line := range readLines(t, filepath.Join(dir, "differences.txt")) {
		fact, reason, _ := strings.Cut(line, " # ")
		if !strings.HasPrefix(line, "#") && reason == "" {
			t.Errorf("differences.txt: %q has no reason", line)
		}
		deliberate[fact] = !strings.HasPrefix(line, "#")
	}
	for file, facts := range map[string]func(*testing.T) []string{
		"commands.txt": commandFacts, "exit-codes.txt": exitCodeFacts, "api.txt": apiFacts, "json-names.txt": jsonNames,
	} {
		t.Run(file, func(t *testing.T) {
			today := map[string]bool{}
			for _, fact := range facts(t) {
				today[fact] = true
			}
			old := readLines(t, filepath.Join(dir, file))
			if len(old) < 40 {
				t.Errorf("%d facts", len(old))
			}
			for _, fact := range old {
				switch {
				case !today[fact] && !deliberate[fact]:
					t.Errorf("lost: %s", fact)
				case today[fact] && deliberate[fact]:
					t.Errorf("differences.txt lists what is as before: %s", fact)
				}
			}
		})
	}
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

// commandFacts lists commands, their aliases, and their flags with shorthand, default and variable.
func commandFacts(*testing.T) (facts []string) {
	visitCommands(cli.NewTree(cli.Full{}), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		facts = append(facts, "command "+path)
		for _, alias := range cmd.Aliases {
			facts = append(facts, "command "+path+" alias "+alias)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			short := ""
			if f.Shorthand != "" {
				short = " -" + f.Shorthand
			}
			variable := cmp.Or(cli.FlagVariable(f), "none")
			facts = append(facts, fmt.Sprintf("%s --%s%s default=%q variable=%s", path, f.Name, short, f.DefValue, variable))
		})
	})
	return facts
}

func visitCommands(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		visitCommands(sub, visit)
	}
}

// exitCodeFacts lists the exit codes of verdicts and of failures.
func exitCodeFacts(*testing.T) (facts []string) {
	for _, v := range sandbox.Verdicts() {
		for _, e := range []sandbox.Exit{{}, {Code: 3}, {Signal: 9}} {
			facts = append(facts, fmt.Sprintf("verdict %s, program %d, signal %d: exit code %d", v, e.Code, e.Signal, sandbox.CLICode(v, e)))
		}
	}
	for name, err := range map[string]error{
		"usage": sandbox.ErrInvalid, "not found": sandbox.ErrNotFound, "not started": sandbox.ErrNotStarted,
		"no such program": errors.Join(sandbox.ErrNotStarted, fs.ErrNotExist),
		"refused":         sandbox.ErrRefused, "unsupported": sandbox.ErrUnsupported,
		"no such image": image.ErrNotFound, "ambiguous image": image.ErrAmbiguous,
		"no toolchain": &toolchain.Missing{}, "no image of the language": &executor.NoImage{},
		"SIGINT": cli.SignalCause(syscall.SIGINT), "SIGTERM": cli.SignalCause(syscall.SIGTERM),
		"SIGHUP": cli.SignalCause(syscall.SIGHUP), "SIGQUIT": cli.SignalCause(syscall.SIGQUIT),
		"any other": errors.ErrUnsupported,
	} {
		facts = append(facts, fmt.Sprintf("failure %s: exit code %d", name, cli.FailureCode(err)))
	}
	return facts
}

// schema is the part of an OpenAPI schema that is compared.
type schema struct {
	Type       any                `json:"type"`
	Ref        string             `json:"$ref"`
	Items      *schema            `json:"items"`
	Properties map[string]*schema `json:"properties"`
}

// apiFacts lists operations with their parameters and status codes, and the properties of schemas with their types. The golden file is the
// document that the server sends: TestOpenAPI of pkg/api compares the two.
func apiFacts(t *testing.T) (facts []string) {
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ In, Name string } `json:"parameters"`
			Responses  map[string]any              `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]*schema `json:"schemas"`
		} `json:"components"`
	}
	content, err := os.ReadFile("../../../pkg/api/testdata/openapi.json")
	if err := errors.Join(err, json.Unmarshal(content, &doc)); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths {
		for method, op := range item {
			name := strings.ToUpper(method) + " " + path
			facts = append(facts, name)
			for _, p := range op.Parameters {
				facts = append(facts, fmt.Sprintf("%s %s %s", name, p.In, p.Name))
			}
			for code := range op.Responses {
				facts = append(facts, name+" -> "+code)
			}
		}
	}
	for name, s := range doc.Components.Schemas {
		facts = append(facts, s.facts(name)...)
	}
	return facts
}

func (s *schema) facts(name string) (facts []string) {
	for key, property := range s.Properties {
		facts = append(facts, name+"."+key+" "+property.typeName())
		facts = append(facts, property.facts(name+"."+key)...)
	}
	if s.Items != nil {
		facts = append(facts, s.Items.facts(name+"[]")...)
	}
	return facts
}

func (s *schema) typeName() string {
	if s == nil {
		return "any"
	}
	if strings.Contains(fmt.Sprint(s.Type), "array") {
		return "array of " + s.Items.typeName()
	}
	if name, ok := s.Type.(string); ok {
		return name
	}
	return cmp.Or(s.Ref[strings.LastIndex(s.Ref, "/")+1:], "any")
}

var jsonTag = regexp.MustCompile(`json:"([a-zA-Z_]+)`)

// jsonNames lists the names in JSON: in tags of structs, and in the tables of limits and of settings.
func jsonNames(t *testing.T) (names []string) {
	for _, top := range []string{"cmd", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join("../../..", top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			for _, tag := range jsonTag.FindAllSubmatch(content, -1) {
				names = append(names, string(tag[1]))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range sandbox.AllLimits() {
		names = append(names, row.Name)
		if row.CompileDoc != "" {
			names = append(names, "compile_"+row.Name)
		}
	}
	for _, field := range executor.Fields(&executor.Policy{}, &executor.LanguageOptions{}) {
		names = append(names, field.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

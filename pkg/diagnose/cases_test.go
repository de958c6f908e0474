package diagnose_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// update lets TestReal write what the tools print, and what is found out, into testdata.
var update = flag.Bool("update", false, "write testdata anew from real runs")

// failureCase is a program of testdata/LANGUAGE.txtar that fails. Its name is the directory of its files in the archive. The files options,
// allow, stdout, stderr, result and want are not of the program.
type failureCase struct {
	language, name string
	files          map[string]string
	order          []string
	options        string // limits, as JSON
	allow          string // rules of the network, one a line
	recorded       recorded
	stdout, stderr string
	want           string
}

// recorded is what the sandbox said about a real run.
type recorded struct {
	Version    string              `json:"version,omitempty"`
	Verdict    sandbox.Verdict     `json:"verdict"`
	Phase      string              `json:"phase,omitempty"`
	Violations []sandbox.Violation `json:"violations,omitempty"`
	AtLimit    bool                `json:"at_limit,omitempty"` // the peak of memory was the limit
	Busy       bool                `json:"busy,omitempty"`     // the program computed all the time
}

// readCases reads the archives of all languages.
func readCases(t testing.TB) (cases []*failureCase) {
	t.Helper()
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) < 8 {
		t.Fatalf("%d archives: %v", len(archives), err)
	}
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		language := strings.TrimSuffix(filepath.Base(name), ".txtar")
		for _, f := range archive.Files {
			dir, file, _ := strings.Cut(f.Name, "/")
			if n := len(cases); n == 0 || cases[n-1].name != dir || cases[n-1].language != language {
				cases = append(cases, &failureCase{language: language, name: dir, files: map[string]string{}})
			}
			c, text := cases[len(cases)-1], string(f.Data)
			switch file {
			case "options":
				c.options = text
			case "allow":
				c.allow = text
			case "stdout":
				c.stdout = text
			case "stderr":
				c.stderr = text
			case "want":
				c.want = text
			case "result":
				if err := json.Unmarshal(f.Data, &c.recorded); err != nil {
					t.Fatalf("%s: %s: %v", name, f.Name, err)
				}
			default:
				c.files[file], c.order = text, append(c.order, file)
			}
		}
	}
	return cases
}

// writeCases writes the archives with what real runs have yielded.
func writeCases(t *testing.T, cases []*failureCase) {
	t.Helper()
	for len(cases) > 0 {
		language := cases[0].language
		name := filepath.Join("testdata", language+".txtar")
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		archive.Files = nil
		for len(cases) > 0 && cases[0].language == language {
			c := cases[0]
			cases = cases[1:]
			add := func(file, text string) {
				if text != "" || slices.Contains(c.order, file) {
					archive.Files = append(archive.Files, txtar.File{Name: c.name + "/" + file, Data: []byte(text)})
				}
			}
			add("options", c.options)
			add("allow", c.allow)
			for _, file := range c.order {
				add(file, c.files[file])
			}
			result, err := json.Marshal(c.recorded)
			if err != nil {
				t.Fatal(err)
			}
			add("result", string(result)+"\n")
			add("stdout", c.stdout)
			add("stderr", c.stderr)
			add("want", c.want)
		}
		if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil { //nolint:gosec // a file of the source tree
			t.Fatal(err)
		}
	}
}

// limits are the limits of the case's options; the others are zero.
func (c *failureCase) limits(t testing.TB) (l sandbox.Limits) {
	t.Helper()
	if c.options != "" {
		if err := json.Unmarshal([]byte(c.options), &l); err != nil {
			t.Fatalf("%s: %v", c.options, err)
		}
	}
	return l
}

// lang is the language of the case: TypeScript shares an archive with JavaScript.
func (c *failureCase) lang() string {
	if _, ok := c.files["main.ts"]; ok {
		return "typescript"
	}
	return c.language
}

// failure is the recorded run of a case.
func (c *failureCase) failure(t testing.TB) *diagnose.Failure {
	t.Helper()
	r := &sandbox.Result{
		Verdict: c.recorded.Verdict, Phase: c.recorded.Phase, Violations: c.recorded.Violations,
		Limits: c.limits(t).Or(sandbox.DefaultLimits()), Stdout: output(c.stdout), Stderr: output(c.stderr),
	}
	if c.recorded.AtLimit {
		r.Metrics.MemoryPeak = uint64(r.Limits.Memory)
	}
	if c.recorded.Busy {
		r.Metrics.CPUTime = monitor.Seconds(r.Limits.Wall)
	}
	return &diagnose.Failure{
		Language: c.lang(), Version: c.recorded.Version, Files: c.order, Result: r,
		Source: func(name string) (string, bool) { text, ok := c.files[name]; return text, ok },
	}
}

// describe writes a diagnosis as testdata has it. Versions and messages differ between machines: comparable leaves them out.
func describe(d *diagnose.Diagnosis, version string, comparable bool) string {
	if d == nil {
		return "nothing\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kind: %s\n", d.Kind)
	if !comparable {
		fmt.Fprintf(&b, "message: %s\n", d.Message)
	}
	if at := d.Location; at != nil {
		fmt.Fprintf(&b, "at: %s:%d:%d\n", at.File, at.Line, at.Column)
	}
	if d.Cause != "" {
		fmt.Fprintf(&b, "cause: %s\n", d.Cause)
	}
	for _, s := range d.Suggestions {
		fmt.Fprintf(&b, "suggestion: %s\n", s)
	}
	text := b.String()
	if version != "" {
		text = strings.ReplaceAll(text, version, "VERSION")
	}
	return text
}

// TestRecorded diagnoses what tools have printed in real runs.
func TestRecorded(t *testing.T) {
	for _, c := range readCases(t) {
		t.Run(c.language+"/"+c.name, func(t *testing.T) {
			if c.want == "" {
				t.Fatal("it was never run: go test -run TestReal -update")
			}
			if got := describe(diagnose.Of(c.failure(t)), c.recorded.Version, false); got != c.want {
				t.Errorf("got:\n%swant:\n%s", got, c.want)
			}
		})
	}
}

// withoutCase are rules that no program here can meet, with the reason.
var withoutCase = map[string]string{
	`python: IndexError "index * is out of bounds for axis * with size *"`: "it needs numpy",
	`common:  "Failed to resolve '*'"`:                                     "it needs urllib3",
	`common:  "o space left on device"`:                                    "the verdict is disk_limit, unless the disk was emptied in time",
}

// TestRulesHaveCases refuses a rule that no case applies.
func TestRulesHaveCases(t *testing.T) {
	applied := map[string]bool{}
	for _, c := range readCases(t) {
		applied[diagnose.RuleOf(c.failure(t))] = true
	}
	for _, id := range diagnose.Rules() {
		if !applied[id] && withoutCase[id] == "" {
			t.Errorf("no case for %s", id)
		}
		if applied[id] && withoutCase[id] != "" {
			t.Errorf("there is a case for %s", id)
		}
	}
}

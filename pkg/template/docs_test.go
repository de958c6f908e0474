package template

import (
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// TestDocs runs what the user guide shows: its template, and its cases with their table.
func TestDocs(t *testing.T) {
	guide := testenv.Guide(t)
	_, section, _ := strings.Cut(guide, "\n## Templates\n")
	block := func(start string) string {
		_, text, ok := strings.Cut(section, start)
		text, _, closed := strings.Cut(text, "\n```")
		if !ok || !closed {
			t.Fatalf("the guide has no block that begins with %q", start)
		}
		return text
	}
	tmpl, err := Parse("greeting", "python", "greeting.py", "---\n"+block("```\n---\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := tmpl.Render(map[string]any{"who": "you"}); err != nil || !strings.Contains(string(r.Files[0].Data), `"Hello, " + "you"`) {
		t.Errorf("%+v, %v", r, err)
	}
	output, code := runHarness(t, "harness", "python",
		map[string]any{"code": "def solve(numbers):\n    return sorted(numbers)\n", "cases": block("```yaml\n")})
	times := regexp.MustCompile(` +\d+ ms`)
	want := times.ReplaceAllString("CASE "+block("```\nCASE "), "")
	if got := strings.TrimSpace(times.ReplaceAllString(output, "")); code != 1 || got != want {
		t.Errorf("exit code %d, and the guide shows\n%s\nnot\n%s", code, want, got)
	}
}

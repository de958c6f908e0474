package near

import "testing"

func TestMatch(t *testing.T) {
	names := []string{"python", "javascript", "java", "go", "memory"}
	for name, want := range map[string]string{
		"pyhton": "python", "jav": "java", "javascrpt": "javascript", "memry": "memory", "java": "java", "cobol": "", "": "", "x": "", "g": "go",
	} {
		if got := Match(name, names); got != want {
			t.Errorf("Match(%q) = %q, want %q", name, got, want)
		}
	}
}

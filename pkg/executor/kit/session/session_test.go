package session

import (
	"reflect"
	"testing"
)

func TestCompleteWord(t *testing.T) {
	names, keywords := []string{"Sales", "select_count", "\u00e4rger", "sales"}, []string{"SELECT", "SET"}
	for code, want := range map[string][]string{
		"sel":        {"select", "select_count"},
		"SE":         {"SELECT", "SET", "select_count"},
		"x = sal":    {"Sales", "sales"},
		"x = \u00e4": {"\u00e4rger"},
		"x ":         {"Sales", "sales", "select_count", "\u00e4rger"},
		"none":       {},
	} {
		if got := CompleteWord(code, len(code), names, keywords); !reflect.DeepEqual(got.Matches, want) || got.End != len(code) {
			t.Errorf("%q: %+v", code, got)
		}
	}
}

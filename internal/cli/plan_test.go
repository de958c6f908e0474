package cli

import "testing"

func TestQuoteShell(t *testing.T) {
	if got := quoteShell([]string{"a", "b c", "", "it's", "--x=$y"}); got != `a 'b c' '' 'it'\''s' '--x=$y'` {
		t.Error(got)
	}
}

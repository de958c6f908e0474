package full

import "testing"

// Nothing in a text is a command of the manual page's.
func TestRoff(t *testing.T) {
	if got := roff(".br\n\\fB 'x' --y\n'"); got != "\\&.br\n\\efB \\(aqx\\(aq \\-\\-y\n\\(aq" {
		t.Errorf("%q", got)
	}
}

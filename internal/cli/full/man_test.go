package full

import "testing"

// Text can not contain commands of roff.
func TestRoff(t *testing.T) {
	if got := roff(".br\n\\fB 'x' --y\n'"); got != "\\&.br\n\\efB \\(aqx\\(aq \\-\\-y\n\\(aq" {
		t.Errorf("%q", got)
	}
}

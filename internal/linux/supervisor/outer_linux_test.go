package supervisor

import "testing"

func TestOuterID(t *testing.T) {
	for _, tc := range []struct {
		text string
		id   int
		want int
	}{
		{"         0          0 4294967295\n", 0, 0}, {"         0          0 4294967295\n", 1000, 1000},
		{"0 1000 1\n1 100000 65536\n", 0, 1000}, {"0 1000 1\n1 100000 65536\n", 5, 100004},
		{"0 0 1\n", 0, 0}, {"0 1000 1\n", 7, -1}, {"", 0, -1}, {"x\n", 0, -1},
	} {
		if got := outerID(tc.text, tc.id); got != tc.want {
			t.Errorf("%q, %d: %d, not %d", tc.text, tc.id, got, tc.want)
		}
	}
}

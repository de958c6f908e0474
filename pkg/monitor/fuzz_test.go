package monitor

import (
	"encoding/json"
	"testing"
	"time"
)

// FuzzSeconds: seconds that were read are written as what they were read as.
func FuzzSeconds(f *testing.F) {
	for _, s := range []string{"0", "1.5", "-3", "1e300", "-1e300", "1e-12", "null", `"5"`, "9007199.254740993"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s, again Seconds
		if json.Unmarshal([]byte(text), &s) != nil {
			return
		}
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &again); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		// A float has digits for nanoseconds in a hundred days.
		if d := (s - again).Duration().Abs(); s.Duration().Abs() < 100*24*time.Hour && d > 0 || d > s.Duration().Abs()/1e9 {
			t.Errorf("%q: %v is written as %s, read as %v", text, s.Duration(), out, again.Duration())
		}
	})
}

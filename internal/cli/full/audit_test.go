package full

import (
	"testing"
	"time"
)

func TestReadMoment(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-01-31":                  time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local),
		"2026-01-31 15:04":            time.Date(2026, 1, 31, 15, 4, 0, 0, time.Local),
		"2026-01-31T15:04:05":         time.Date(2026, 1, 31, 15, 4, 5, 0, time.Local),
		"2026-01-31T15:04:05Z":        time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
		"2026-01-31T15:04:05.5+01:00": time.Date(2026, 1, 31, 14, 4, 5, 5e8, time.UTC),
		"2026-01-31T15:04":            time.Date(2026, 1, 31, 15, 4, 0, 0, time.Local),
	} {
		if got, err := readMoment(text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, ago := range map[string]time.Duration{
		"90m": 90 * time.Minute, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "0.5d": 12 * time.Hour,
	} {
		got, err := readMoment(text)
		if d := time.Since(got) - ago; err != nil || d < 0 || d > time.Minute {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "yesterday", "-1h", "2026-13-01", "5", "d", "-7d", "1e9d", "NaNd", "99999999999999d"} {
		if got, err := readMoment(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

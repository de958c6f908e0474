package monitor

import (
	"encoding/json"
	"testing"
	"time"
)

// A sample in a stream has the names that the metrics at its end have, and seconds.
func TestSampleNames(t *testing.T) {
	metrics, err := json.Marshal(Metrics{MemoryPeak: 1, MemoryCurrent: 1, ProcessesCurrent: 1, ProcessLimitHits: 1, DiskUsed: 1, DiskFull: true})
	if err != nil {
		t.Fatal(err)
	}
	sample, err := json.Marshal(Sample{At: time.Now(), CPUUser: 1500 * time.Millisecond, ProcessLimitHits: 1, DiskUsed: 1, DiskFull: true})
	if err != nil {
		t.Fatal(err)
	}
	var promised, got map[string]any
	if err := json.Unmarshal(metrics, &promised); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(sample, &got); err != nil {
		t.Fatal(err)
	}
	for name := range got {
		if _, ok := promised[name]; !ok {
			t.Errorf("%s is no metric", name)
		}
	}
	if got["cpu_user"] != 1.5 || len(got) != 13 {
		t.Errorf("%s", sample)
	}
}

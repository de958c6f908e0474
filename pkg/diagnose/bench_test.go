package diagnose_test

import (
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
)

// BenchmarkOf explains the recorded failures of all languages, one after the other.
func BenchmarkOf(b *testing.B) {
	var failures []*diagnose.Failure
	for _, c := range readCases(b) {
		failures = append(failures, c.failure(b))
	}
	for i := 0; b.Loop(); i++ {
		diagnose.Of(failures[i%len(failures)])
	}
}

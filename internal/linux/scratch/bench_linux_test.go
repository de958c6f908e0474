package scratch

import (
	"testing"
	"time"
)

func benchmark(b *testing.B, make func() (*Scratch, error)) {
	var made, dropped time.Duration
	for b.Loop() {
		start := time.Now()
		s, err := make()
		if err != nil {
			b.Fatal(err)
		}
		mid := time.Now()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		made, dropped = made+mid.Sub(start), dropped+time.Since(mid)
	}
	b.ReportMetric(float64(made.Microseconds())/float64(b.N), "µs/make")
	b.ReportMetric(float64(dropped.Microseconds())/float64(b.N), "µs/drop")
}

func BenchmarkMemory(b *testing.B) {
	needRoot(b)
	benchmark(b, func() (*Scratch, error) { return Memory(Options{Bytes: 1 << 30, Inodes: 65536}) })
}

func BenchmarkDisk(b *testing.B) {
	o := Options{Bytes: 1 << 30, Inodes: 65536, CacheDir: needDisk(b)}
	benchmark(b, func() (*Scratch, error) { return Disk(o) })
}

// The cost of the check and of the report at the end of a run.
func BenchmarkCheckBacking(b *testing.B) {
	s, err := Disk(Options{Bytes: 1 << 30, Inodes: 65536, CacheDir: needDisk(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		if err := s.CheckBacking(); err != nil {
			b.Fatal(err)
		}
		s.Overcommitted()
	}
}

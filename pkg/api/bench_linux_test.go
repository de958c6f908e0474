package api

import (
	"context"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// cpu reports the CPU time per operation, which depends less on other load than the wall time.
func cpu(b *testing.B) (report func()) {
	b.ReportAllocs()
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64((used()-before).Microseconds())/float64(b.N), "cpu-µs/op") }
}

// BenchmarkRun measures what POST /v1/run adds to Execute, over a backend that takes no time.
func BenchmarkRun(b *testing.B) {
	engine, _ := fakeExecutor(b)
	s, err := New(Options{Executor: engine})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	h := s.Handler()
	text := body("out hello")
	b.Run("api", func(b *testing.B) {
		report := cpu(b)
		defer report()
		for b.Loop() {
			r := httptest.NewRequest("POST", wire.PathRun, strings.NewReader(text))
			r.Header.Set("Content-Type", wire.TypeJSON)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != 200 {
				b.Fatal(w.Body)
			}
		}
	})
	b.Run("execute", func(b *testing.B) {
		report := cpu(b)
		defer report()
		for b.Loop() {
			if _, err := engine.Execute(context.Background(), executor.Request{Language: "act", Code: "out hello"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

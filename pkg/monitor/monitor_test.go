package monitor

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a source whose next answer a test sets.
type fake struct {
	mu    sync.Mutex
	next  Sample
	err   error
	calls int
}

func (f *fake) Sample() (Sample, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return f.next, f.err
}

func (f *fake) set(s Sample, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.err = s, err
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func TestShortProgramCostsNoSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := Start(f, Options{Startup: 3 * time.Millisecond})
		time.Sleep(2 * time.Millisecond)
		if _, ok := m.Latest(); ok {
			t.Error("a sample before the first interval")
		}
		got := m.Finish(Sample{CPUUser: time.Millisecond, MemoryPeak: 7, ProcessesPeak: 2})
		want := Metrics{
			WallTime: Seconds(2 * time.Millisecond), CPUTime: Seconds(time.Millisecond), CPUUser: Seconds(time.Millisecond),
			MemoryPeak: 7, ProcessesPeak: 2, StartupTime: Seconds(3 * time.Millisecond), CPUPercent: 50,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if f.count() != 0 {
			t.Errorf("%d samples", f.count())
		}
	})
}

func TestSampleInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{next: Sample{Memory: 5}}
		var seen []time.Duration
		begin := time.Now()
		m := Start(f, Options{OnSample: func(s Sample) { seen = append(seen, s.At.Sub(begin)) }})
		time.Sleep(350 * time.Millisecond)
		synctest.Wait()
		m.Finish(Sample{})
		want := []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond}
		if !slices.Equal(seen, want) {
			t.Errorf("samples at %v", seen)
		}
		time.Sleep(time.Second)
		if f.count() != 3 {
			t.Errorf("sampled after Finish: %d", f.count())
		}
		if samples, failures := m.Counts(); samples != 4 || failures != 0 {
			t.Errorf("counts: %d, %d", samples, failures)
		}
	})
}

func TestPeaksAndTotalsNeverFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := Start(f, Options{Interval: 10 * time.Millisecond})
		step := func(s Sample, err error) Sample {
			f.set(s, err)
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			l, ok := m.Latest()
			if !ok {
				t.Fatal("no sample")
			}
			l.At = time.Time{}
			return l
		}
		high := Sample{
			CPUUser: 9, CPUSystem: 8, Throttled: 7, Memory: 600, IORead: 5, IOWrite: 4, Processes: 3, OOMKills: 2,
			ProcessLimitHits: 1, DiskUsed: 50, DiskFull: true,
		}
		step(high, nil)
		got := step(Sample{Memory: 10, Processes: 1, DiskUsed: 20}, nil)
		want := high
		want.Memory, want.MemoryPeak, want.Processes, want.ProcessesPeak, want.DiskUsed = 10, 600, 1, 3, 20
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		// A failing source keeps the last good values and does not end the sampling.
		if got := step(Sample{Memory: 1 << 40}, errors.New("gone")); got != want {
			t.Errorf("after a failure: %+v", got)
		}
		if got := step(Sample{MemoryPeak: 700}, nil); got.MemoryPeak != 700 {
			t.Errorf("after the failure: %+v", got)
		}
		if _, failures := m.Counts(); failures != 1 {
			t.Errorf("%d failures", failures)
		}
		final := m.Finish(Sample{})
		if final.MemoryPeak != 700 || final.CPUTime != 17 || final.ProcessesPeak != 3 || !final.DiskFull || final.MemoryCurrent != 0 {
			t.Errorf("final: %+v", final)
		}
	})
}

func TestFinishTwiceAndConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := Start(&fake{}, Options{})
		time.Sleep(time.Second)
		first := m.Finish(Sample{CPUUser: time.Second})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				time.Sleep(time.Second)
				if again := m.Finish(Sample{CPUUser: time.Hour}); !reflect.DeepEqual(again, first) {
					t.Errorf("again: %+v", again)
				}
				if live := m.Metrics(); !reflect.DeepEqual(live, first) {
					t.Errorf("metrics after the end: %+v", live)
				}
			})
		}
		wg.Wait()
		if first.CPUPercent != 100 || first.WallTime != Seconds(time.Second) {
			t.Errorf("%+v", first)
		}
	})
}

// A consumer or a source that hangs does not delay Finish, and its late sample is dropped.
func TestFinishDoesNotWaitForever(t *testing.T) {
	for _, hang := range []string{"OnSample", "source"} {
		t.Run(hang, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				o := Options{OnSample: func(Sample) {
					if hang == "OnSample" {
						<-release
					}
				}}
				m := Start(SourceFunc(func() (Sample, error) {
					if hang == "source" {
						<-release
					}
					return Sample{Memory: 99}, nil
				}), o)
				time.Sleep(150 * time.Millisecond)
				begin := time.Now()
				got := m.Finish(Sample{Memory: 1})
				if took := time.Since(begin); took != DefaultTimeout {
					t.Errorf("took %v", took)
				}
				if got.WallTime != Seconds(150*time.Millisecond) {
					t.Errorf("waiting was counted as the program's: %v", got.WallTime.Duration())
				}
				close(release)
				synctest.Wait() // the goroutine ends
				if l, _ := m.Latest(); hang == "source" && l.MemoryPeak != 1 {
					t.Errorf("a late sample counted: %+v", l)
				}
			})
		})
	}
}

func TestConcurrentUse(t *testing.T) {
	f := &fake{next: Sample{Memory: 1, Processes: 1}}
	m := Start(f, Options{Interval: time.Nanosecond}) // clamped to a millisecond
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				m.Latest()
				m.Metrics()
				m.Peek()
			}
		})
	}
	wg.Wait()
	m.Finish(Sample{})
	m.Peek()
}

func TestPeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{next: Sample{Memory: 12, Processes: 2}}
		m := Start(f, Options{Interval: -1})
		if s, ok := m.Peek(); !ok || s.Memory != 12 {
			t.Errorf("%+v, %v", s, ok)
		}
		time.Sleep(time.Minute)
		if live := m.Metrics(); live.MemoryCurrent != 12 || live.ProcessesCurrent != 2 || live.WallTime != Seconds(time.Minute) {
			t.Errorf("%+v", live)
		}
		m.Finish(Sample{})
		before := f.count()
		m.Peek()
		if f.count() != before || before != 1 {
			t.Errorf("%d samples", f.count())
		}
		if s, ok := Start(nil, Options{}).Peek(); ok {
			t.Errorf("nil source: %+v", s)
		}
	})
}

// The names are a promise to users; times are seconds.
func TestJSON(t *testing.T) {
	b, err := json.Marshal(Summarize(Sample{
		CPUUser: 1500 * time.Millisecond, CPUSystem: 500 * time.Millisecond, MemoryPeak: 1024, IORead: 1, IOWrite: 2,
		ProcessesPeak: 3, OOMKills: 4, Throttled: 250 * time.Millisecond,
	}, 4*time.Second, 2500*time.Microsecond))
	want := `{"wall_time":4,"cpu_time":2,"cpu_user":1.5,"cpu_system":0.5,"memory_peak":1024,"io_read_bytes":1,"io_write_bytes":2,` +
		`"processes_peak":3,"oom_kills":4,"throttled_time":0.25,"startup_time":0.0025,"cpu_percent":50}`
	if err != nil || string(b) != want {
		t.Errorf("got  %s (%v)\nwant %s", b, err, want)
	}
	var back Metrics
	if err := json.Unmarshal(b, &back); err != nil || back.CPUUser.Duration() != 1500*time.Millisecond ||
		back.StartupTime != Seconds(2500*time.Microsecond) {
		t.Errorf("%+v (%v)", back, err)
	}
	var s Seconds
	for in, want := range map[string]Seconds{"1e300": math.MaxInt64, "-1e300": math.MinInt64, "0.000000001": 1} {
		if err := json.Unmarshal([]byte(in), &s); err != nil || s != want {
			t.Errorf("%s: %d (%v)", in, s, err)
		}
	}
	if err := json.Unmarshal([]byte(`"x"`), &s); err == nil {
		t.Error("a string taken for seconds")
	}
}

func TestPercentIsANumber(t *testing.T) {
	for _, wall := range []time.Duration{0, -time.Second, 1, math.MaxInt64} {
		m := Summarize(Sample{CPUUser: time.Second}, wall, -1)
		if math.IsNaN(m.CPUPercent) || math.IsInf(m.CPUPercent, 0) || m.CPUPercent < 0 || m.WallTime < 0 || m.StartupTime < 0 {
			t.Errorf("wall %v: %+v", wall, m)
		}
		if b, err := json.Marshal(m); err != nil || strings.Contains(string(b), "null") {
			t.Errorf("%s (%v)", b, err)
		}
	}
}

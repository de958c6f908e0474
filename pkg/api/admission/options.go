package admission

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options configures a Queue. A zero field means the default.
type Options struct {
	// Machine is the machine's size; it is required unless CPUs and Memory are set.
	Machine sandbox.Machine
	// CPUs are the cores that may be promised; default: those of the machine times Overcommit (default 4), since most programs wait more than
	// they compute.
	CPUs       float64
	Overcommit float64
	// Memory is how much may be promised; default: that of the machine minus Reserve (default an eighth of it, from 256 MiB to 4 GiB).
	Memory  sandbox.Size
	Reserve sandbox.Size

	Queue       int           // most waiting runs of all keys; default 256
	QueuePerKey int           // most waiting runs of one key; default Queue
	Wait        time.Duration // longest wait; default 30 s
	Overtake    int           // how often smaller runs may overtake one that does not fit; default 16

	// Concurrency, Rate and Burst apply to keys without limits of their own; 0 means no limit. A Burst of 0 is
	// Concurrency, or the runs of one second if that is more.
	Concurrency int
	Rate        float64
	Burst       int
}

func (o *Options) complete() error {
	for name, f := range map[string]float64{"cpus": o.CPUs, "overcommit": o.Overcommit, "rate": o.Rate} {
		if f < 0 || math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("admission: %s: %v is out of range; give a number above 0", name, f)
		}
	}
	for name, n := range map[string]int{
		"queue": o.Queue, "queue-per-key": o.QueuePerKey, "wait": int(o.Wait), "overtake": o.Overtake, "concurrency": o.Concurrency,
		"burst": o.Burst,
	} {
		if n < 0 {
			return fmt.Errorf("admission: %s: %d is negative; give 0 or more", name, n)
		}
	}
	o.Overcommit = cmp.Or(o.Overcommit, 4)
	o.CPUs = cmp.Or(o.CPUs, float64(o.Machine.CPUs)*o.Overcommit)
	if o.Memory == 0 {
		o.Reserve = cmp.Or(o.Reserve, min(max(o.Machine.Memory/8, 256*sandbox.MiB), 4*sandbox.GiB))
		if o.Reserve >= o.Machine.Memory {
			return fmt.Errorf("admission: reserve: %s leaves nothing of this machine's %s; set a smaller one", o.Reserve, o.Machine.Memory)
		}
		o.Memory = o.Machine.Memory - o.Reserve
	}
	if o.CPUs < 0.001 {
		return fmt.Errorf("admission: cpus: %v is less than 0.001; give more", o.CPUs)
	}
	o.Queue = cmp.Or(o.Queue, 256)
	o.QueuePerKey = cmp.Or(o.QueuePerKey, o.Queue)
	o.Wait = cmp.Or(o.Wait, 30*time.Second)
	o.Overtake = cmp.Or(o.Overtake, 16)
	return nil
}

// promise is the resources of one run, or of all. Cores are counted in thousandths, so that sums are exact.
type promise struct {
	memory sandbox.Size
	milli  int64
}

func cores(f float64) int64 { return int64(math.Ceil(min(f, 1e6) * 1000)) }

// of returns the promise for a run's limits; a limit beyond the budget takes all of it.
func (budget promise) of(memory sandbox.Size, cpus float64) promise {
	d := sandbox.DefaultLimits()
	memory = cmp.Or(memory, d.Memory)
	if !(cpus > 0) { // NaN, too
		cpus = d.CPUs
	}
	return promise{min(memory, budget.memory), min(cores(cpus), budget.milli)}
}

// fits reports whether p is free beside what is promised already.
func (budget promise) fits(promised, p promise) bool {
	return promised.memory+p.memory <= budget.memory && promised.milli+p.milli <= budget.milli
}

// share returns the larger of p's fractions of the budget.
func (budget promise) share(p promise) float64 {
	return max(float64(p.memory)/float64(budget.memory), float64(p.milli)/float64(budget.milli))
}

package ceiling

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Set is the most that requests may ask for. What is zero has no ceiling but the machine.
type Set struct {
	Run     sandbox.Limits
	Compile sandbox.Limits // Disk and Inodes are the run's
	Files   int            // of a program and its inputs together
}

// Default are the ceilings where the operator has set none: some times the defaults.
func Default() Set {
	return Set{
		Run: sandbox.Limits{
			Wall: 5 * time.Minute, Grace: 10 * time.Second, Memory: 2 * sandbox.GiB, Disk: 4 * sandbox.GiB, Inodes: 1 << 20,
			Processes: 1000, OpenFiles: 16 << 10, Output: 64 * sandbox.MiB,
		},
		Compile: sandbox.Limits{Wall: 10 * time.Minute, Memory: 4 * sandbox.GiB},
		Files:   5000,
	}
}

// Lower gives the lesser of each ceiling of two sets, where either has one. So one key's ceilings can be lower than everybody's, and never higher.
func (s Set) Lower(t Set) Set {
	leastOf(&s.Run, &t.Run)
	leastOf(&s.Compile, &t.Compile)
	least(&s.Files, t.Files)
	return s
}

// Check refuses a request with a limit above its ceiling. The error is a *wire.Problem that has every such field. Defaults above a ceiling are lowered when
// they are known: each language has its own.
func (s Set) Check(req *executor.Request) error {
	var above []wire.FieldError
	for _, c := range slices.Concat(pairs("", &req.Limits, &s.Run), pairs("compile_", &req.CompileLimits, &s.Compile)) {
		c.check(&above)
	}
	if n := len(req.Files) + len(req.Inputs); s.Files > 0 && n > s.Files {
		above = append(above, wire.FieldError{
			Field: "files", Ceiling: strconv.Itoa(s.Files), Message: fmt.Sprintf("%d files, with those of in, are above %d, the most that the operator allows", n, s.Files),
		})
	}
	if len(above) > 0 {
		return &wire.Problem{
			Type: wire.ProblemBase + wire.CodeCeiling, Code: wire.CodeCeiling, Title: "A limit is above what the operator allows", Status: http.StatusForbidden,
			Detail: above[0].Field + ": " + above[0].Message, Errors: above, Hint: "ask for less, or ask the operator of the server to allow more",
		}
	}
	req.Lower = s.lower
	return nil
}

// lower brings down what is above a ceiling: a default, since nothing else is.
func (s Set) lower(run, compile *sandbox.Limits) (notes []string) {
	for _, c := range slices.Concat(pairs("", run, &s.Run), pairs("compile_", compile, &s.Compile)) {
		if said := c.lower(); said != "" {
			notes = append(notes, said)
		}
	}
	return notes
}

// pair is one limit with its ceiling.
type pair interface {
	check(above *[]wire.FieldError)
	lower() string
}

// pairs are the limits by the names of their fields.
func pairs(prefix string, l, most *sandbox.Limits) []pair {
	return []pair{
		limit[time.Duration]{prefix + "timeout", &l.Wall, most.Wall, duration},
		limit[time.Duration]{prefix + "grace", &l.Grace, most.Grace, duration},
		limit[float64]{prefix + "cpus", &l.CPUs, most.CPUs, decimal},
		limit[time.Duration]{prefix + "cpu_time", &l.CPUTime, most.CPUTime, duration},
		limit[sandbox.Size]{prefix + "memory", &l.Memory, most.Memory, size},
		limit[sandbox.Size]{prefix + "disk", &l.Disk, most.Disk, size},
		limit[int]{prefix + "inodes", &l.Inodes, most.Inodes, strconv.Itoa},
		limit[int]{prefix + "pids", &l.Processes, most.Processes, strconv.Itoa},
		limit[int]{prefix + "open_files", &l.OpenFiles, most.OpenFiles, strconv.Itoa},
		limit[sandbox.Size]{prefix + "output_limit", &l.Output, most.Output, size},
	}
}

type amount interface {
	~int | ~int64 | ~uint64 | ~float64
}

type limit[T amount] struct {
	field string
	value *T
	most  T
	text  func(T) string
}

// check notes a value that was given and is too much.
func (l limit[T]) check(above *[]wire.FieldError) {
	if l.most == 0 || *l.value <= l.most {
		return
	}
	*above = append(*above, wire.FieldError{
		Field: l.field, Ceiling: strings.ReplaceAll(l.text(l.most), " ", ""), Message: fmt.Sprintf("%s is above %s, the most that the operator allows", l.text(*l.value), l.text(l.most)),
	})
}

// lower brings down what is too much, and says so. What has no default has its ceiling as one.
func (l limit[T]) lower() string {
	was := *l.value
	if l.most == 0 || was != 0 && was <= l.most {
		return ""
	}
	*l.value = l.most
	if was == 0 {
		return fmt.Sprintf("%s: %s, the most that the operator allows", l.field, l.text(l.most))
	}
	return fmt.Sprintf("%s: the default of %s lowered to %s, the most that the operator allows", l.field, l.text(was), l.text(l.most))
}

func size(s sandbox.Size) string      { return s.String() }
func duration(d time.Duration) string { return d.String() }
func decimal(f float64) string        { return strconv.FormatFloat(f, 'g', -1, 64) }

func leastOf(a, b *sandbox.Limits) {
	least(&a.Wall, b.Wall)
	least(&a.Grace, b.Grace)
	least(&a.CPUs, b.CPUs)
	least(&a.CPUTime, b.CPUTime)
	least(&a.Memory, b.Memory)
	least(&a.Disk, b.Disk)
	least(&a.Inodes, b.Inodes)
	least(&a.Processes, b.Processes)
	least(&a.OpenFiles, b.OpenFiles)
	least(&a.Output, b.Output)
}

func least[T amount](a *T, b T) {
	if *a == 0 || b != 0 && b < *a {
		*a = b
	}
}

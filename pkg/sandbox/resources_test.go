package sandbox

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"512m": 512 * MiB, "256mb": 256 * MiB, "1g": GiB, "2gb": 2 * GiB, "1t": TiB, "1TiB": TiB, "1073741824": GiB, "0": 0, "1b": 1,
		"7k":  7 * KiB,
		"7KB": 7 * KiB, "7kib": 7 * KiB, "1.5g": 3 * GiB / 2, " 10 MiB ": 10 * MiB, "0.5k": 512, ".5k": 512, "1.": 1,
		"9223372036854775807": math.MaxInt64, "8191p": 0,
	} {
		got, err := ParseSize(in)
		if strings.HasSuffix(in, "p") {
			if err == nil {
				t.Errorf("%q is %d", in, got)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "m", "-1", "+1", "-1m", "1e3", "0x10", "1_000", "1 2m", "1m2", "1..5m", ".", "1.5.5", "inf", "nan", "infm", "NaNg",
		"9223372036854775808",
		"18446744073709551616", "8388608t", "9e18", "99999999999999999999t", "9223372036854775807.5", "1,5g", "١m", "1\x00m", "1mm", "1bm", "m1",
	} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q is %d", in, got)
		} else if !strings.Contains(err.Error(), "size") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"512m", "1.5GiB", "0", "-1", "9223372036854775807", "", "1e9", " 7 kb "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if n > math.MaxInt64 {
			t.Errorf("%q is %d: beyond what the kernel counts in", s, n)
		}
		if strings.ContainsAny(s, "+-_") {
			t.Errorf("%q was taken for %d", s, n)
		}
	})
}

// What String writes is read back as the same size, to the two decimals it has.
func TestSizeString(t *testing.T) {
	for s, want := range map[Size]string{0: "0 B", 1023: "1023 B", KiB: "1 KiB", 1536: "1.5 KiB", 100 * MiB: "100 MiB", GiB: "1 GiB",
		3 * TiB / 2: "1.5 TiB", 10 * GiB: "10 GiB"} {
		if got := s.String(); got != want {
			t.Errorf("%d is %q, want %q", uint64(s), got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := Size(rapid.Uint64Range(0, 1<<50).Draw(t, "size"))
		back, err := ParseSize(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if off := math.Abs(float64(back) - float64(s)); off > float64(s)*0.006 {
			t.Fatalf("%d became %q became %d", s, s, back)
		}
	})
}

// Every field of Limits has exactly one row in the table, under a name of its own, and the row reads back the text that
// it writes.
func TestLimitTable(t *testing.T) {
	names := map[string]bool{}
	for i := range reflect.TypeFor[Limits]().NumField() {
		var l, back Limits
		field := reflect.ValueOf(&l).Elem().Field(i)
		field.Set(reflect.ValueOf(7).Convert(field.Type()))
		rows := 0
		for _, row := range AllLimits() {
			if !row.IsSet(&l) {
				continue
			}
			rows++
			if names[row.Name] || FindLimit(row.Flag()) != row || row.Usage == "" {
				t.Errorf("row %q: its name is taken, or it lacks a text", row.Name)
			}
			names[row.Name] = true
			if err := row.Parse(&back, row.Plain(&l)); err != nil || back != l || !row.Equal(&l, &back) {
				t.Errorf("%s: %q is read as %+v (%v)", row.Name, row.Plain(&l), back, err)
			}
		}
		if rows != 1 {
			t.Errorf("%s has %d rows in the table", reflect.TypeFor[Limits]().Field(i).Name, rows)
		}
	}
	if len(names) != len(AllLimits()) {
		t.Errorf("%d rows for %d limits", len(AllLimits()), len(names))
	}
}

func TestLimitsValidate(t *testing.T) {
	if err := (Limits{}).Validate(big); err != nil {
		t.Errorf("nothing given: %v", err)
	}
	if err := DefaultLimits().Validate(big); err != nil {
		t.Errorf("defaults: %v", err)
	}
	edge := Limits{Wall: maxDuration, Grace: 1, CPUs: 8, CPUTime: 1, Memory: 64 * GiB, Disk: 4 * TiB, Inodes: 1 << 28,
		Processes: maxProcesses, OpenFiles: maxOpenFiles, Output: GiB}
	if err := edge.Validate(big); err != nil {
		t.Errorf("the most there is: %v", err)
	}
	least := Limits{Wall: 1, CPUs: minCPUs, Memory: minMemory, Disk: minDisk, Inodes: minInodes, Processes: 1, OpenFiles: minOpenFiles,
		Output: 1}
	if err := least.Validate(big); err != nil {
		t.Errorf("the least there is: %v", err)
	}
	const huge = 1 << 63
	for _, c := range []struct {
		field string
		l     Limits
	}{
		{"timeout", Limits{Wall: -1}}, {"timeout", Limits{Wall: math.MinInt64}}, {"timeout", Limits{Wall: math.MaxInt64}},
		{"timeout", Limits{Wall: maxDuration + 1}},
		{"grace", Limits{Grace: -time.Second}}, {"cpu-time", Limits{CPUTime: -1}}, {"cpu-time", Limits{CPUTime: math.MaxInt64}},
		{"cpus", Limits{CPUs: -1}}, {"cpus", Limits{CPUs: math.NaN()}}, {"cpus", Limits{CPUs: math.Inf(1)}}, {"cpus", Limits{CPUs: math.Inf(-1)}},
		{"cpus", Limits{CPUs: 8.01}}, {"cpus", Limits{CPUs: 0.001}}, {"cpus", Limits{CPUs: math.SmallestNonzeroFloat64}},
		{"memory", Limits{Memory: 1}}, {"memory", Limits{Memory: huge}}, {"memory", Limits{Memory: math.MaxUint64}},
		{"memory", Limits{Memory: 64*GiB + 1}},
		{"disk", Limits{Disk: 1}}, {"disk", Limits{Disk: huge}}, {"disk", Limits{Disk: math.MaxUint64}},
		{"output-limit", Limits{Output: huge}}, {"output-limit", Limits{Output: GiB + 1}},
		{"pids", Limits{Processes: -1}}, {"pids", Limits{Processes: math.MinInt}}, {"pids", Limits{Processes: math.MaxInt}},
		{"open-files", Limits{OpenFiles: -1}}, {"open-files", Limits{OpenFiles: 7}}, {"open-files", Limits{OpenFiles: math.MaxInt}},
		{"inodes", Limits{Inodes: -1}}, {"inodes", Limits{Inodes: 31}}, {"inodes", Limits{Inodes: math.MaxInt}},
	} {
		err := c.l.Validate(big)
		if !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%+v: %v, want it to name %s", c.l, err, c.field)
		}
	}
}

func TestClamp(t *testing.T) {
	l, said := DefaultLimits().Clamp(big)
	if l != DefaultLimits() || said != nil {
		t.Errorf("%+v, %q", l, said)
	}
	l, said = Limits{CPUs: 4, Memory: GiB}.Clamp(Machine{CPUs: 2, Memory: 256 * MiB})
	if l.CPUs != 2 || l.Memory != 256*MiB || len(said) != 2 || !strings.Contains(said[1], "256 MiB") {
		t.Errorf("%+v, %q", l, said)
	}
	// A result has only the notes that concern it.
	tiny := Machine{CPUs: 1, Memory: 128 * MiB}
	s, notes, err := Spec{}.complete(tiny, nil)
	if err != nil || s.Limits.Memory != 128*MiB || len(notes) != 1 {
		t.Errorf("%+v, %q, %v", s.Limits, notes, err)
	}
	if _, notes, err = (Spec{Limits: Limits{Memory: 64 * MiB}}).complete(tiny, nil); err != nil || notes != nil {
		t.Errorf("%q, %v", notes, err)
	}
	if _, _, err = (Spec{Limits: Limits{Memory: 256 * MiB}}).complete(tiny, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("more than there is, by name: %v", err)
	}
}

func TestLimitsOr(t *testing.T) {
	base := DefaultLimits()
	if got := (Limits{}).Or(base); got != base {
		t.Errorf("%+v", got)
	}
	own := Limits{Wall: 1, Grace: 2, CPUs: 3, CPUTime: 4, Memory: 5, Disk: 6, Inodes: 7, Processes: 8, OpenFiles: 9, Output: 10}
	if got := own.Or(base); got != own {
		t.Errorf("%+v", got)
	}
}

func TestLimitsJSON(t *testing.T) {
	got, err := json.Marshal(Limits{Wall: 1500 * time.Millisecond, Grace: time.Second, CPUs: 0.5, CPUTime: 2 * time.Second, Memory: 5,
		Disk: 6, Inodes: 7, Processes: 8, OpenFiles: 9, Output: 10})
	want := `{"timeout":1.5,"grace":1,"cpus":0.5,"cpu_time":2,"memory":5,"disk":6,"inodes":7,"pids":8,"open_files":9,"output_limit":10}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, want %s (%v)", got, want, err)
	}
}

func TestParseModes(t *testing.T) {
	for _, s := range []string{"auto", "disk", "memory"} {
		if m, err := ParseScratch(s); err != nil || string(m) != s {
			t.Error(m, err)
		}
	}
	for _, s := range []string{"none", "localhost"} {
		if m, err := ParseNetwork(s); err != nil || string(m) != s {
			t.Error(m, err)
		}
	}
	for _, s := range []string{"", "Auto", "host", "internet", "disk "} {
		if _, err := ParseScratch(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", s, err)
		}
		if _, err := ParseNetwork(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

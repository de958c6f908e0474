package sandbox

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// FuzzSpec: every spec and process of a caller is refused, or completed within the bounds; and encoding and decoding
// keep it.
func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"volumes":[{"source":"/srv","target":"/data","writable":true}],"env":{"A":"b"},"limits":{"timeout":5,"memory":1048576}}`),
		[]byte(`{"args":["sh","-c","true"],"phase":"compile","tty":{"rows":3,"cols":4}}`))
	f.Add([]byte(`{"root":{"dir":"/../x"},"user":{"uid":1,"gid":2},"hostname":"-","workdir":"a/../b","network":"localhost"}`),
		[]byte(`{"args":["\u0000"]}`))
	f.Add([]byte(`{"limits":{"timeout":-1e300,"cpus":0.0001,"inodes":-5}}`), []byte(`{"args":["x"],"limits":{"disk":5}}`))
	machine := Machine{CPUs: 4, Memory: 8 * GiB, OpenFiles: 4096}
	f.Fuzz(func(t *testing.T, specText, processText []byte) {
		var asked Spec
		if json.Unmarshal(specText, &asked) != nil {
			return
		}
		s, _, err := asked.complete(machine, nil)
		if err != nil {
			if err.Error() == "" {
				t.Error("refused without a reason")
			}
			return
		}
		if s.Limits.Wall <= 0 || s.Limits.Memory < minMemory || s.Limits.Memory > machine.Memory || !(s.Limits.CPUs >= minCPUs) ||
			s.Limits.Processes < 1 || s.User.UID <= 0 || s.User.GID <= 0 {
			t.Errorf("accepted %+v", s)
		}
		paths := []string{s.Workdir}
		for _, v := range s.Volumes {
			paths = append(paths, v.Source, v.Target)
		}
		for _, p := range paths {
			if !filepath.IsAbs(p) || filepath.Clean(p) != p || strings.ContainsRune(p, 0) {
				t.Errorf("accepted the path %q", p)
			}
		}
		again, _, err := s.complete(machine, nil)
		if diff := cmp.Diff(s, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("completed twice: %v\n%s", err, diff)
		}
		same(t, s)
		var p Process
		if json.Unmarshal(processText, &p) != nil {
			return
		}
		if p, err = p.complete(s, machine); err != nil {
			return
		}
		for _, text := range append(p.Environ(), p.Args...) {
			if strings.ContainsRune(text, 0) {
				t.Errorf("accepted %q", text)
			}
		}
		if !isPhaseName(p.Phase) || p.Limits.Wall <= 0 {
			t.Errorf("accepted %+v", p)
		}
		same(t, p)
	})
}

// same fails unless a value survives encoding and decoding. Text that is not UTF-8 does not.
func same[T any](t *testing.T, v T) {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var again T
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if diff := cmp.Diff(v, again, cmpopts.EquateEmpty()); diff != "" && !strings.Contains(string(text), `\ufffd`) &&
		!strings.Contains(string(text), "\ufffd") {
		t.Error(diff)
	}
}

// FuzzLimitsJSON: decoded limits equal the encoded ones, to the nanosecond where a float has that many digits.
func FuzzLimitsJSON(f *testing.F) {
	f.Add(`{"timeout":1.5,"grace":0.001,"cpus":0.5,"cpu_time":3,"memory":1,"disk":2,"inodes":3,"pids":4,"open_files":5,"output_limit":6}`)
	f.Add(`{"timeout":1e400}`)
	f.Add(`{"memory":-1}`)
	f.Add(`{"memroy":1}`)
	f.Fuzz(func(t *testing.T, text string) {
		var l Limits
		if json.Unmarshal([]byte(text), &l) != nil {
			return
		}
		if math.IsNaN(l.CPUs) || math.IsInf(l.CPUs, 0) {
			t.Errorf("%q: %v cores", text, l.CPUs)
		}
		if l.Wall.Abs() < maxDuration/100 && l.Grace.Abs() < maxDuration/100 && l.CPUTime.Abs() < maxDuration/100 {
			same(t, l)
		}
	})
}

// FuzzNames: a parsed name of a closed set is in the set.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"none", "localhost", "auto", "disk", "memory", "container", "process", "", "None", "disk\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := ParseNetwork(s); err == nil && !slices.Contains(network.Modes, m) {
			t.Errorf("%q is the network %q", s, m)
		}
		if m, err := ParseScratch(s); err == nil && m != ScratchAuto && m != ScratchDisk && m != ScratchMemory {
			t.Errorf("%q is the scratch %q", s, m)
		}
		if tier, err := ParseTier(s); err == nil && string(tier) != s {
			t.Errorf("%q is the tier %q", s, tier)
		}
	})
}

func TestLimitsReadJSON(t *testing.T) {
	l := DefaultLimits()
	l.CPUTime = 1500000000
	same(t, l)
	for text, want := range map[string]string{
		`{"memroy":1}`: "memroy", `{"memory":-1}`: "memory", `{"timeout":"5s"}`: "timeout", `[]`: "limits",
	} {
		if err := json.Unmarshal([]byte(text), &l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	// Omitted limits keep their values.
	if err := json.Unmarshal([]byte(`{"pids":7}`), &l); err != nil || l.Processes != 7 || l.Memory != DefaultLimits().Memory {
		t.Errorf("%+v, %v", l, err)
	}
}

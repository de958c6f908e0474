package cli

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestReadDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"5": 5 * time.Second, "1.5": 1500 * time.Millisecond, "1.5s": 1500 * time.Millisecond,
		"500ms": 500 * time.Millisecond, "2m": 2 * time.Minute, "1h30m": 90 * time.Minute, ".5": 500 * time.Millisecond,
	} {
		if got, err := ReadDuration(text); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ".", "0", "0s", "-1", "-5s", "NaN", "nan", "Inf", "+Inf", "1e3", "0x10", "9223372036854775808", "1e400",
		"5 s", "five", "1.2.3", "0.0000000001", "99999999999999999999h", "5s\x00",
	} {
		if got, err := ReadDuration(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

func TestReadNumbers(t *testing.T) {
	for _, text := range []string{"", "0", "0.0", "-1", "NaN", "Inf", "1e1", "0x1p4", "1,5", "one", "1 "} {
		if got, err := ReadCores(text); err == nil {
			t.Errorf("cores %q were read as %v", text, got)
		}
	}
	for _, text := range []string{"", "0", "-1", "+5", "9223372036854775808", "NaN", "1.5", "0x10", "1_000", " 1"} {
		if got, err := ReadCount(text); err == nil {
			t.Errorf("count %q was read as %v", text, got)
		}
	}
	for _, text := range []string{"", "0", "0m", "-1", "-5g", "NaN", "9223372036854775808", "1e3", "lots", "5x"} {
		if got, err := ReadSize(text); err == nil {
			t.Errorf("size %q was read as %v", text, got)
		}
	}
	if n, err := ReadCount("100"); err != nil || n != 100 {
		t.Error(n, err)
	}
	if n, err := ReadCores("0.5"); err != nil || n != 0.5 {
		t.Error(n, err)
	}
}

// FuzzLimits: every value that is accepted is valid for a limit.
func FuzzLimits(f *testing.F) {
	for _, s := range []string{"5", "1.5s", "-1", "NaN", "512m", "9223372036854775808", ".", "1e400", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ReadDuration(s); err == nil && d <= 0 {
			t.Errorf("duration %q: %v", s, d)
		}
		if n, err := ReadCores(s); err == nil && !(n > 0 && !math.IsInf(n, 0)) {
			t.Errorf("cores %q: %v", s, n)
		}
		if n, err := ReadCount(s); err == nil && n <= 0 {
			t.Errorf("count %q: %v", s, n)
		}
		if n, err := ReadSize(s); err == nil && (n == 0 || n > math.MaxInt64) {
			t.Errorf("size %q: %v", s, n)
		}
	})
}

func TestReadEnvironment(t *testing.T) {
	var timeout time.Duration
	var workdir string
	var env List
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddParsed(flags, &timeout, "timeout", "30s", "", ReadDuration)
	flags.StringVar(&workdir, "workdir", "/workspace", "")
	flags.Var(&env, "env", "")
	variables := map[string]string{
		"SANDBOX_RUN_TIMEOUT": "7", "SANDBOX_RUN_WORKDIR": "", "SANDBOX_RUN_ENV": "A=1\nB=2,3\n",
	}
	lookup := func(name string) (string, bool) { v, ok := variables[name]; return v, ok }
	if err := flags.Parse([]string{}); err != nil {
		t.Fatal(err)
	}
	if err := ReadEnvironment(flags, lookup, ""); err != nil {
		t.Fatal(err)
	}
	if timeout != 7*time.Second || workdir != "/workspace" || strings.Join(env.Values, "|") != "A=1|B=2,3" {
		t.Errorf("%v %q %q", timeout, workdir, env.Values)
	}
	err := NameSource(flags, sandbox.Invalid("timeout", "too long"), "")
	if !strings.HasPrefix(err.Error(), "SANDBOX_RUN_TIMEOUT: ") {
		t.Error(err)
	}
}

func TestNearestFlag(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("memory", "", "")
	flags.String("open-files", "", "")
	for name, want := range map[string]string{"memroy": "memory", "mem": "memory", "open-file": "open-files", "xyz": "", "m": ""} {
		if got := nearestFlag(flags, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestBriefSize(t *testing.T) {
	for size, want := range map[sandbox.Size]string{512 * sandbox.MiB: "512m", sandbox.GiB: "1g", 8 * sandbox.KiB: "8k", 1000: "1000"} {
		if got := BriefSize(size); got != want {
			t.Errorf("%d: %s, want %s", size, got, want)
		}
	}
}

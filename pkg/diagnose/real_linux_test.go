package diagnose_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	_ "github.com/sandbox-run/sandbox-run/pkg/executor/kit" // the test is its own kit
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	_ "github.com/sandbox-run/sandbox-run/pkg/network/stack" // the test is its own sandbox-net
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

// TestReal runs the program of every case in a sandbox, with the tools of this machine, and diagnoses what they print. With -update it
// writes testdata.
func TestReal(t *testing.T) {
	testenv.NeedRoot(t)
	backend, err := native.New(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	manager := sandbox.NewManager(backend, sandbox.Options{})
	t.Cleanup(func() {
		if err := manager.Close(); err != nil {
			t.Error(err)
		}
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	kit, err := kitpath.Find()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e := executor.New(manager, executor.Options{
		Toolchains: &toolchain.Finder{Store: filepath.Join(dir, "toolchains")}, Cache: &executor.Cache{Dir: filepath.Join(dir, "compiled")},
		Kit: kit, WarmDir: testenv.WarmDir(filepath.Join(dir, "warm")),
	})
	cases := readCases(t)
	seen := map[string]int{}
	for _, c := range cases {
		t.Run(c.language+"/"+c.name, func(t *testing.T) {
			if seen[c.language]++; seen[c.language] > 2 && !*update {
				testenv.NeedAll(t, "the first two of each language, and TestRecorded")
			}
			req := executor.Request{Language: c.lang(), Limits: c.limits(t)}
			if req.Limits.Wall == 0 {
				req.Limits.Wall = 5 * time.Minute // a busy machine takes longer than the default
			}
			req.CompileLimits.Wall = 10 * time.Minute
			req.Policy.Network.Allow = strings.Fields(c.allow)
			for _, name := range c.order {
				req.Files = append(req.Files, executor.File{Path: name, Data: []byte(c.files[name])})
			}
			r, err := e.Execute(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				c.recorded = recorded{
					Version: r.Version, Verdict: r.Verdict, Phase: r.Phase, Violations: r.Violations,
					AtLimit: r.Metrics.MemoryPeak >= uint64(r.Limits.Memory),
					Busy:    r.Metrics.CPUTime.Duration() > r.Limits.Wall*8/10,
				}
				c.stdout, c.stderr = brief(r.Stdout), brief(r.Stderr)
				c.want = describe(r.Diagnosis, r.Version, false)
				return
			}
			want := ""
			for line := range strings.Lines(c.want) {
				if !strings.HasPrefix(line, "message: ") {
					want += line
				}
			}
			if got := describe(r.Diagnosis, r.Version, true); got != want {
				t.Errorf("got:\n%swant:\n%sstderr:\n%s", got, want, r.Stderr.Bytes())
			}
		})
	}
	if *update {
		writeCases(t, cases)
	}
}

// brief is an output for the archive: of deep recursions and many stacks only the edges.
func brief(o sandbox.Output) string {
	text := strings.ToValidUTF8(string(o.Bytes()), "?")
	if lines := strings.SplitAfter(text, "\n"); len(lines) > 160 {
		text = strings.Join(append(append(lines[:80:80], "...\n"), lines[len(lines)-80:]...), "")
	}
	return text
}

package cli

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mostInitMilliseconds is higher than the limit of 2 ms in `make bench`, because tests run on a busy machine.
const mostInitMilliseconds = 5

// TestInitTime measures the initialisers of all linked packages (D10).
func TestInitTime(t *testing.T) {
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("an emulated processor measures nothing; test.sh runs this on the host")
	}
	best := 0.0
	for tries := 0; tries < 5 || tries < 100 && best > mostInitMilliseconds; tries++ { // a busy machine slows single measurements
		cmd := exec.Command(binary(t), "version")
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		var trace bytes.Buffer
		cmd.Stderr = &trace
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		packages, sum := readInits(t, &trace), 0.0
		for _, ms := range packages {
			sum += ms
		}
		if len(packages) < 10 {
			t.Fatalf("only %d packages in the trace: it can not be right", len(packages))
		}
		if best == 0 || sum < best {
			best = sum
		}
	}
	t.Logf("initialisers: %.3f ms", best)
	if best > mostInitMilliseconds {
		t.Errorf("initialisers take %.3f ms, more than %d", best, mostInitMilliseconds)
	}
}

// mostPackageMilliseconds is the most that one package may add to each start of the full executable.
const mostPackageMilliseconds = 3

// slowToStart are packages of the full executable that take longer, and that it can not do without: this one lists the processes of the
// machine.
var slowToStart = []string{"github.com/testcontainers/testcontainers-go/internal/core/bootstrap"}

// TestInitTimeOfPackages measures the initialiser of each package of the full executable.
func TestInitTimeOfPackages(t *testing.T) {
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("an emulated processor measures nothing; test.sh runs this on the host")
	}
	best, slow := map[string]float64{}, []string{""}
	for tries := 0; tries < 5 || tries < 50 && len(slow) > 0; tries++ { // a busy machine slows single measurements
		cmd := exec.Command(filepath.Join(filepath.Dir(binary(t)), fullName), "version")
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		var trace bytes.Buffer
		cmd.Stderr = &trace
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		slow = nil
		for name, ms := range readInits(t, &trace) {
			if was, ok := best[name]; !ok || ms < was {
				best[name] = ms
			}
			if best[name] > mostPackageMilliseconds && !slices.Contains(slowToStart, name) {
				slow = append(slow, name)
			}
		}
	}
	if _, ok := best[slowToStart[0]]; !ok {
		t.Errorf("%s is not in the trace: this test looks at the wrong thing", slowToStart[0])
	}
	for _, name := range slow {
		t.Errorf("the initialiser of %s takes %.3f ms, more than %d", name, best[name], mostPackageMilliseconds)
	}
}

// readInits parses lines such as "init internal/bytealg @0.008 ms, 0.12 ms clock, 0 bytes, 0 allocs": milliseconds by package.
func readInits(t *testing.T, trace *bytes.Buffer) map[string]float64 {
	t.Helper()
	packages := map[string]float64{}
	line := regexp.MustCompile(`^init (\S+) @\S+ ms, (\S+) ms clock`)
	for lines := bufio.NewScanner(trace); lines.Scan(); {
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		ms, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		packages[m[1]] = ms
	}
	return packages
}

// TestImports refuses packages in the thin executable that are slow to start or large, or that only tests need. Two packages are accepted:
// text/template keeps the linker from dropping methods, which costs 1.7 MB and no measurable time, and go/parser costs 0.03 ms.
func TestImports(t *testing.T) {
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		t.Skip("no Go toolchain in the virtual machine; test.sh runs this on the host")
	}
	linked := func(executable string) []string {
		cmd := exec.Command("go", "list", "-deps", "-tags", "thin", "../../cmd/"+executable)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=-buildvcs=false")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	deps, full := linked(CommandName), linked(fullName)
	for name, all := range map[string][]string{module + "/pkg/sandbox/native": deps, module + "/internal/attack": full} { // control
		if !slices.Contains(all, name) {
			t.Errorf("%s is not linked: this test looks at the wrong thing", name)
		}
	}
	if slices.Contains(full, "github.com/alecthomas/chroma/v2/lexers") {
		t.Error("all lexers of chroma are linked into the full executable; internal/repl reads those that it needs")
	}
	for _, heavy := range []string{
		module + "/internal/attack", module + "/internal/conformance", module + "/internal/bench",
		module + "/internal/cli/full", module + "/internal/serve", module + "/internal/operator", module + "/pkg/api/key",
		module + "/pkg/receipt",
		"net/http", "crypto/tls", "crypto/x509", "html/template", "expvar", "net/rpc", "log/syslog",
		"encoding/xml", "encoding/gob", "go/types", "go/doc", "database/sql", "testing", "plugin",
		"github.com/docker", "github.com/moby", "github.com/opencontainers", "github.com/prometheus",
		"google.golang.org", "github.com/google", "k8s.io", "modernc.org", "github.com/alecthomas",
		"github.com/charmbracelet", "charm.land", "gvisor.dev", "github.com/danielgtaylor", "github.com/coder",
		"github.com/evanw", "github.com/nats-io", "github.com/modelcontextprotocol", "github.com/testcontainers",
		"github.com/vishvananda", "gopkg.in/yaml.v3", "go.opentelemetry.io",
	} {
		for _, d := range deps {
			if d == heavy || strings.HasPrefix(d, heavy+"/") {
				t.Errorf("%s is linked into the thin executable", d)
			}
		}
	}
}

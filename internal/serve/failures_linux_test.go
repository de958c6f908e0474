package serve

import (
	"bytes"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// lines is a log that several write to.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Why there is no warm interpreter is one message, with the file as attributes.
func TestUntrustedIsSaid(t *testing.T) {
	var log lines
	logColdStarts(slog.New(slog.NewTextHandler(&log, nil)))("python", fmt.Errorf("start: %w", &sandbox.Untrusted{Path: "/opt/x", UID: 4242, GID: 7, Mode: 0o775}))
	for _, want := range []string{`msg="nothing could be made ready for programs of a kind; they start cold"`, " kind=python ", " path=/opt/x ", " owner=4242:7 ", " mode=0775\n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in %s", want, log.String())
		}
	}
}

// That Java starts cold because nothing could be prepared is in the log, once, and is counted; programs run.
func TestLackIsSaid(t *testing.T) {
	testenv.NeedRoot(t)
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("there is no JDK")
	}
	t.Setenv("XDG_CACHE_HOME", "/proc/nowhere")
	var log lines
	e, err := openEngine(t.Context(), &operator.Settings{Backend: "native", AuditLog: noAudit}, slog.New(slog.NewJSONHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for range 2 {
		r, err := e.Execute(t.Context(), executor.Request{Language: "java", Code: "public class Main { public static void main(String[] a) { System.out.println(1); } }"})
		if err != nil || r.Verdict != "ok" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if n := strings.Count(log.String(), `"level":"WARN"`); n != 1 || !strings.Contains(log.String(), "/proc/nowhere") || len(e.PreparationFailures()) != 1 {
		t.Errorf("%d warnings, %v:\n%s", n, e.PreparationFailures(), log.String())
	}
}

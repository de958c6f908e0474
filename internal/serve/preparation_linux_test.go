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

// The cause of cold starts is one log message, with the untrusted file as attributes.
func TestUntrustedPathIsLogged(t *testing.T) {
	var log lines
	logColdStarts(slog.New(slog.NewTextHandler(&log, nil)))("python",
		fmt.Errorf("start: %w", &sandbox.Untrusted{Path: "/opt/x", UID: 4242, GID: 7, Mode: 0o775}))
	for _, want := range []string{`msg="warm start unavailable, starting cold"`, " kind=python ",
		" path=/opt/x ", " owner=4242:7 ", " mode=0775\n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in %s", want, log.String())
		}
	}
}

// A failed preparation of Java is logged once and counted; programs run.
func TestPreparationFailureIsLogged(t *testing.T) {
	testenv.NeedRoot(t)
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("there is no JDK")
	}
	t.Setenv("XDG_CACHE_HOME", "/proc/nowhere")
	var log lines
	e, err := openStack(t.Context(), &operator.Settings{Backend: "native", AuditLog: noAudit}, slog.New(slog.NewJSONHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for range 2 {
		r, err := e.Execute(t.Context(), executor.Request{Language: "java",
			Code: "public class Main { public static void main(String[] a) { System.out.println(1); } }"})
		if err != nil || r.Verdict != "ok" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if n := strings.Count(log.String(), `"level":"WARN"`); n != 1 || !strings.Contains(log.String(), "/proc/nowhere") ||
		len(e.PreparationFailures()) != 1 {
		t.Errorf("%d warnings, %v:\n%s", n, e.PreparationFailures(), log.String())
	}
}

package serve

import (
	"bytes"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
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
	if n := strings.Count(log.String(), `"level":"WARN"`); n != 1 || !strings.Contains(log.String(), "/proc/nowhere") || len(e.Lacks()) != 1 {
		t.Errorf("%d warnings, %v:\n%s", n, e.Lacks(), log.String())
	}
}

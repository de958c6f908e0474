package serve

import (
	"log/slog"
	"os/exec"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// Keys share no zygote where the operator says so, whatever requests say of whose they are (W7).
func TestWarmPerKey(t *testing.T) {
	testenv.NeedRoot(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no Python")
	}
	for perKey, want := range map[bool]int{false: 1, true: 2} {
		s := &operator.Settings{Backend: "native", AuditLog: noAudit, WarmPerKey: perKey}
		e, err := openStack(t.Context(), s, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			req := executor.Request{Language: "python", Code: "print(1)", Asker: executor.Asker{Key: key}}
			req.Policy.Labels = map[string]string{keyLabel: "a"}
			if r, err := e.Execute(t.Context(), req); err != nil || r.Verdict != "ok" {
				t.Errorf("%+v, %v", r, err)
			}
			if len(req.Policy.Labels) != 1 || req.Policy.Labels[keyLabel] != "a" {
				t.Errorf("the request has become %v", req.Policy.Labels)
			}
		}
		if st := e.pool.Stats(); len(st.Shapes) != want {
			t.Errorf("per key %v: %+v", perKey, st.Shapes)
		}
		if err := e.close(); err != nil {
			t.Error(err)
		}
	}
}

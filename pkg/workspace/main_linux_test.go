package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain is also the other process that some tests need: it holds the workspace that variables name, until its
// standard input ends.
func TestMain(m *testing.M) {
	if store := os.Getenv("WORKSPACE_TEST_STORE"); store != "" {
		os.Exit(hold(store))
	}
	goleak.VerifyTestMain(m)
}

func hold(store string) int {
	w, err := Open(context.Background(), store, "held", Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := w.Close(); err != nil {
		return 1
	}
	return 0
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newStore(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "data", "workspaces")
}

func opened(t *testing.T, store, name string, o Options) *Workspace {
	t.Helper()
	w, err := Open(t.Context(), store, name, o)
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

const soon = time.Minute

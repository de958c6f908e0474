package subid

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A helper is found by PATH, and may never end.
func TestMapEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as a helper may")
	}
	helper := filepath.Join(t.TempDir(), "newuidmap")
	if err := os.WriteFile(helper, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := (&Grant{newuidmap: helper, newgidmap: helper}).Map(os.Getpid(), nil, nil)
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > helperTimeout+5*time.Second {
		t.Errorf("%v after %v", err, took)
	}
}

// A child that the helper leaves behind, or one of another goroutine that is not yet executed, may hold the helper's output open.
func TestMapWithHeldOutput(t *testing.T) {
	helper := filepath.Join(t.TempDir(), "newuidmap")
	if err := os.WriteFile(helper, []byte("#!/bin/sh\nsleep 3 &\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := &Grant{newuidmap: helper, newgidmap: helper}
	if err := g.Map(os.Getpid(), nil, nil); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(helper, []byte("#!/bin/sh\nsleep 3 &\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := g.Map(os.Getpid(), nil, nil); err == nil {
		t.Error("a helper that failed is taken for one that succeeded")
	}
}

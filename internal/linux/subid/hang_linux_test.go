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

package spawn

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Nothing but tests takes walls down.
func TestNobodyWeakens(t *testing.T) {
	root := "../../.."
	if _, err := os.Stat(root + "/go.mod"); err != nil {
		t.Skip("the sources are not here")
	}
	seen := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return err
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte("Weaken")) {
			if rel, _ := filepath.Rel(root, p); filepath.Dir(rel) != "internal/linux/spawn" {
				t.Errorf("%s takes walls down", rel)
			}
			seen++
		}
		return nil
	})
	if err != nil || seen != 2 { // the variable, and its one user
		t.Errorf("seen in %d files, %v", seen, err)
	}
	if Weaken.Start != nil || Weaken.Setup != nil || Weaken.Exec != nil || Weaken.Unmeasured {
		t.Error("it is not empty")
	}
}

package executor

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// writeModule puts a module into a module cache, and returns its lines' digests for a go.sum.
func writeModule(t *testing.T, dir, path, version string, files map[string]string) (sum, modSum string) {
	t.Helper()
	out, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	archive := zip.NewWriter(out)
	var list string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		full := path + "@" + version + "/" + name
		w, err := archive.Create(full)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
		list += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(files[name])), full)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	for ext, text := range map[string]string{".mod": files["go.mod"], ".info": `{"Version":"` + version + `"}`} {
		if err := os.WriteFile(filepath.Join(dir, version+ext), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	digest := func(list string) string {
		one := sha256.Sum256([]byte(list))
		return "h1:" + base64.StdEncoding.EncodeToString(one[:])
	}
	return digest(list), digest(fmt.Sprintf("%x  go.mod\n", sha256.Sum256([]byte(files["go.mod"]))))
}

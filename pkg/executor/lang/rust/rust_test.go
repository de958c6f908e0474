package rust

import (
	"slices"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

func TestManifestIsRead(t *testing.T) {
	m := readManifest("a",
		"[package] # p\nname = \"x\" # the name\ndefault-run='y'\n[dependencies]\nname = \"no\"\n[[bin]]\nname = \"y\"\npath = \"src/y.rs\"\n"+
			"[[ bin ]]\nname = \"../z\"\n")
	var files []language.File
	for _, p := range []string{"a/src/main.rs", "a/src/bin/b.rs", "a/src/bin/c/main.rs", "a/src/bin/c/d.rs", "b/src/bin/e.rs"} {
		files = append(files, language.File{Path: p})
	}
	m.findBins(files)
	wanted := []cargoBin{{"y", "a/src/y.rs"}, {"x", "a/src/main.rs"}, {"b", "a/src/bin/b.rs"}, {"c", "a/src/bin/c/main.rs"}}
	if m.name != "x" || m.defaultRun != "y" || !slices.Equal(m.bins, wanted) {
		t.Errorf("%+v", m)
	}
}

package app

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestEnvironmentDigest(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a system that tells files apart")
	}
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	full, bin := filepath.Join(dir, "full"), filepath.Join(dir, "bin")
	for _, err := range []error{os.WriteFile(full, []byte("1"), 0o755), os.Mkdir(bin, 0o755), os.Symlink(bin, filepath.Join(dir, "link")),
		os.Symlink(full, filepath.Join(dir, "alias"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	env := func(more map[string]string) func(string) string {
		return func(name string) string {
			if v, ok := more[name]; ok {
				return v
			}
			return map[string]string{"PATH": bin + ":/usr/bin", "HOME": dir}[name]
		}
	}
	base := environmentDigest(full, env(nil), nil)
	for name, c := range map[string]struct {
		same bool
		got  string
	}{
		"itself":              {true, environmentDigest(full, env(nil), nil)},
		"executable by alias": {true, environmentDigest(filepath.Join(dir, "alias"), env(nil), nil)},
		"path with links": {true, environmentDigest(full,
			env(map[string]string{"PATH": filepath.Join(dir, "link") + ":" + bin + ":/none:/usr/bin"}), nil)},
		"unrelated variable": {true, environmentDigest(full, env(map[string]string{"EDITOR": "vi"}),
			[]string{"EDITOR=vi", "SANDBOX_RUN_TIMEOUT=5"})},
		"other executable":    {false, environmentDigest(bin, env(nil), nil)},
		"other order":         {false, environmentDigest(full, env(map[string]string{"PATH": "/usr/bin:" + bin}), nil)},
		"other home":          {false, environmentDigest(full, env(map[string]string{"HOME": "/"}), nil)},
		"virtual environment": {false, environmentDigest(full, env(map[string]string{"VIRTUAL_ENV": dir}), nil)},
		"other images":        {false, environmentDigest(full, env(nil), []string{"SANDBOX_RUN_IMAGE_PYTHON=python:3.13"})},
		"other store":         {false, environmentDigest(full, env(map[string]string{ImagesVariable: "/x"}), nil)},
	} {
		if (c.got == base) != c.same {
			t.Errorf("%s: same is %v", name, !c.same)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "sandbox-run"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sandbox-run", "languages.yaml"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if environmentDigest(full, env(nil), nil) == base {
		t.Error("languages of one's own make no difference")
	}
	if err := os.WriteFile(full, []byte("12"), 0o755); err != nil {
		t.Fatal(err)
	}
	if environmentDigest(full, env(nil), nil) == base {
		t.Error("an executable that was built anew makes no difference")
	}
}

package rootless

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// With any order for a file, the opened file lies in the scratch that came with the order, and no other file is touched.
func FuzzMountHelperFiles(f *testing.F) {
	for _, p := range []string{"workspace/f", "workspace/a/b/f", "workspace/link/f", "workspace/link", "../outside/secret", "/etc/passwd",
		"", ".", "..", "workspace/../../outside/f", "workspace/\xff", "a\x00b"} {
		for _, what := range []string{orderCreate, orderLink, orderOpen, orderRemove} {
			text, err := json.Marshal(order{What: what, Path: []byte(p), Perm: 0o644, Target: []byte(p), Owner: -1})
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Add([]byte(`{"what":"open file","path":"!"}`))
	top := f.TempDir()
	scratch, outside := filepath.Join(top, "scratch"), filepath.Join(top, "outside")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(scratch, "workspace"), 0o755), os.Mkdir(outside, 0o755),
		os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	fd, err := unix.Open(scratch, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var o order
		if json.Unmarshal(text, &o) != nil {
			t.Skip()
		}
		switch o.What {
		case orderCreate, orderLink, orderOpen, orderRemove:
		default:
			t.Skip("mounts are not made here")
		}
		o.Owner = -1
		_ = os.Symlink(outside, filepath.Join(scratch, "workspace", "link")) // again, if it was replaced
		out, _, err := carryOut(new(rootfs.MountHelper), &o, []int{fd})
		if err != nil && packError(err).unpack("test").Error() == "" {
			t.Errorf("%v comes through as nothing", err)
		}
		for _, got := range out {
			at, linkErr := os.Readlink("/proc/self/fd/" + strconv.Itoa(got))
			if linkErr != nil || at != scratch && !strings.HasPrefix(at, scratch+"/") {
				t.Errorf("%q opens %q, %v", o.Path, at, linkErr)
			}
		}
		CloseFDs(out)
		entries, err := os.ReadDir(outside)
		content, _ := os.ReadFile(filepath.Join(outside, "secret"))
		if err != nil || len(entries) != 1 || string(content) != "secret" {
			t.Fatalf("%q: outside there is %v, %v", o.Path, entries, err)
		}
	})
}

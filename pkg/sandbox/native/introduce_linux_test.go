package native

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// wholeRoot is a directory with a shell and these files.
func wholeRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	const shell = "/bin/busybox"
	data, err := os.ReadFile(shell)
	if err != nil {
		t.Skipf("needs a static shell (package busybox-static): %v", err)
	}
	dir := publicDir(t)
	files = maps.Clone(files)
	if files == nil {
		files = map[string]string{}
	}
	files["bin/busybox"] = string(data)
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, p)
		} else {
			err = os.WriteFile(p, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "cat", "id", "ls"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A whole root gets an entry for its user beside its own entries, whatever its /etc contains.
func TestIntroduced(t *testing.T) {
	needRoot(t)
	const script = "cat /etc/passwd; echo -; cat /etc/group; echo -; cat /etc/hosts /etc/hostname; echo -; id -un; cat /etc/other"
	const hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.0.1\tbox\nbox\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing": {nil, "root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n-\n" +
			"root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n-\n" + hosts + "-\nsandbox\n"},
		"its own": {
			map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/ash\nnode:x:1000:1000::/home/node:/bin/sh\n", "etc/group": "root:x:0:\n",
				"etc/other": "other\n", "etc/resolv.conf": "-> ../run/gone"},
			"root:x:0:0:root:/root:/bin/ash\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n-\nroot:x:0:\nsandbox:x:1000:\n-\n" + hosts +
				"-\nsandbox\nother\n",
		},
		// A path that is no plain file, or lies behind a link, is unchanged, and leads nowhere but into the root itself.
		"links": {map[string]string{"etc/passwd": "-> /elsewhere", "elsewhere": "mine\n",
			"etc/group": "-> ../../../../../../etc/group"}, "mine\n-\n-\n" + hosts + "-\n1000\n"},
		"etc is a link":  {map[string]string{"etc": "-> conf", "conf/passwd": "mine\n", "conf/hosts": "h\n"}, "mine\n-\n-\nh\n-\n1000\n"},
		"etc leads out":  {map[string]string{"etc": "-> /../../etc"}, "-\n-\n-\n1000\n"},
		"etc is no link": {map[string]string{"etc": "a file\n"}, "-\n-\n-\n1000\n"},
	} {
		t.Run(name, func(t *testing.T) {
			run := newSandbox(t, sandbox.Spec{Root: sandbox.Root{Dir: wholeRoot(t, c.files)}, Hostname: "box"})
			if got := string(run("run", script).Stdout.Bytes()); got != c.want {
				t.Errorf("%q\nwant %q", got, c.want)
			}
		})
	}
}

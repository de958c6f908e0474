package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A file that is written to a volume belongs to the volume's owner on the host, at once. No link in it, planted by the
// host or by the program, leads to other files of the host (F10). Files of other owners keep them, and no set-id bit
// appears.
func TestWritableVolume(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			const uid, gid = 4321, 4322
			base, err := os.MkdirTemp("/var/tmp", "sandboxtest-volume-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(base) })
			outside, dir := filepath.Join(base, "outside"), filepath.Join(base, "volume")
			for _, err := range []error{
				os.Chmod(base, 0o755), os.Mkdir(outside, 0o777), os.Chmod(outside, 0o777), os.Mkdir(dir, 0o755),
				os.WriteFile(filepath.Join(outside, "secret"), []byte("not yours\n"), 0o666),
				os.Symlink(outside, filepath.Join(dir, "planted")), os.Symlink("../outside/secret", filepath.Join(dir, "relative")),
				os.WriteFile(filepath.Join(dir, "roots"), []byte("root's\n"), 0o600),
				os.WriteFile(filepath.Join(dir, "given"), []byte("given\n"), 0o600), os.Lchown(dir, uid, gid),
				os.Lchown(filepath.Join(dir, "given"), uid, gid), os.Lchown(filepath.Join(dir, "planted"), uid, gid),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			m := sandbox.NewManager(b, sandbox.Options{VolumeRoots: []string{dir}})
			defer m.Close()
			if _, err := m.Create(t.Context(), sandbox.Spec{Volumes: []sandbox.Volume{{Source: outside, Target: "/data",
				Writable: true}}}); err == nil {
				t.Error("a volume from beyond the allowed roots was given")
			}
			id, err := m.Create(t.Context(), sandbox.Spec{Require: byName(runtime).tier,
				Volumes: []sandbox.Volume{{Source: dir, Target: "/data", Writable: true}}})
			if err != nil {
				t.Fatal(err)
			}
			script := `cd /data || exit 1
cat given; echo more >> given; mkdir new && echo made > new/file; echo x > tmp && mv tmp new/moved # what must go
for f in planted/secret relative ../outside/secret ` + outside + `/secret new/../../outside/secret; do
	cat $f && echo read $f; echo gotcha >> $f && echo wrote $f
done
ln -s ` + outside + ` mine; ln -s / top; cat mine/secret top` + outside + `/secret && echo through own
echo gotcha > mine/more && echo wrote own
cat roots && echo read roots; echo gotcha >> roots && echo wrote roots; chmod u+s given && echo set-uid; chown 0 given && echo given away
ln roots mine-too && echo gotcha > mine-too && echo wrote by another name; echo end`
			res, err := m.Run(t.Context(), id, sandbox.Process{Args: []string{"sh", "-c", "{ " + script + "; } 2>/dev/null"}}, sandbox.IO{})
			if err != nil {
				t.Fatal(err)
			}
			if got := string(res.Stdout.Bytes()); got != "given\nend\n" {
				t.Errorf("%q", got)
			}
			for name, want := range map[string]string{"volume/given": "given\nmore\n", "volume/new/file": "made\n", "volume/new/moved": "x\n"} {
				text, err := os.ReadFile(filepath.Join(base, name))
				if err != nil || string(text) != want || ownerOf(filepath.Join(base, name)) != fmt.Sprint(uid, gid, 0) {
					t.Errorf("control: %s: %q, %v, %s", name, text, err, ownerOf(filepath.Join(base, name)))
				}
			}
			if text, _ := os.ReadFile(filepath.Join(outside, "secret")); string(text) != "not yours\n" {
				t.Errorf("outside: %q", text)
			}
			if text, _ := os.ReadFile(filepath.Join(dir, "roots")); string(text) != "root's\n" ||
				ownerOf(filepath.Join(dir, "roots")) != fmt.Sprint(0, 0, 0) {
				t.Errorf("root's: %q", text)
			}
			if list, _ := os.ReadDir(outside); len(list) != 1 {
				t.Errorf("outside: %v", list)
			}
			// The host changes the volume meanwhile: the next phase sees the new state, and a volume that replaces a
			// link works like any other.
			if err := errors.Join(os.Remove(filepath.Join(dir, "given")),
				os.WriteFile(filepath.Join(dir, "given"), []byte("a longer text\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
			res, err = m.Run(t.Context(), id, sandbox.Process{Phase: "later", Args: []string{"cat", "/data/given", "/data/new/file"}}, sandbox.IO{})
			if err != nil || string(res.Stdout.Bytes()) != "a longer text\nmade\n" {
				t.Errorf("later: %q, %v", res.Stdout.Bytes(), err)
			}
			if err := m.Delete(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
}

// ownerOf returns the owner of a file, and its set-id bits.
func ownerOf(name string) string {
	var st syscall.Stat_t
	if err := syscall.Lstat(name, &st); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(fmt.Sprint(st.Uid, " ", st.Gid, " ", st.Mode&0o6000)), " ")
}

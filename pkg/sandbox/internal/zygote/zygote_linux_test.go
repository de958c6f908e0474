package zygote

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Python reads the encoded values.
func TestEncode(t *testing.T) {
	value := list{
		1, -1, 0, 1<<31 - 1, -1 << 31, 1 << 31, 1<<32 - 1, 1<<62 + 12345, -1<<62 - 1, -1 << 63, "text", []byte{0, 255, 10}, "", list{},
		list{list{7}, "x"}, unix.AT_FDCWD,
	}
	cmd := exec.Command("/usr/bin/python3", "-c", "import marshal, sys; print(marshal.loads(sys.stdin.buffer.read()))")
	cmd.Stdin = strings.NewReader(string(encode(nil, value)))
	out, err := cmd.CombinedOutput()
	want := `(1, -1, 0, 2147483647, -2147483648, 2147483648, 4294967295, 4611686018427400249, -4611686018427387905, ` +
		`-9223372036854775808, b'text', b'\x00\xff\n', b'', (), ((7,), b'x'), -100)` + "\n"
	if err != nil || string(out) != want {
		t.Errorf("%s, %v, want %s", out, err, want)
	}
}

// A process gets every control, in the order of an init's program as far as one depends on another: the namespace is
// that of its own cgroup, and the bounding set and the groups are dropped while it may still change them.
func TestWalls(t *testing.T) {
	p := &Place{PIDNS: 9, UserNS: 10, Init: 11, Cgroups: []int{15, 16}}
	r := &Request{
		Stdio: [3]int{12, 13, 14}, Ruleset: 17, UID: 1000, GID: 1001, Dir: "/workspace",
		Rlimits: []initproto.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: 1, Max: 2}},
	}
	for _, c := range []struct {
		walls list
		want  []string
	}{
		{p.walls(), []string{"identity", "cgroup", "session", "limits", "identity"}},
		{r.walls(), []string{"stdio", "limits", "identity", "workdir", "landlock"}},
	} {
		var stages []string
		for _, c := range c.walls {
			if s := c.(list)[0].(string); len(stages) == 0 || stages[len(stages)-1] != s {
				stages = append(stages, s)
			}
		}
		if !slices.Equal(stages, c.want) {
			t.Errorf("%q, want %q", stages, c.want)
		}
	}
	if _, fds := p.encode(); !slices.Equal(fds, []int{15, 16}) {
		t.Errorf("%v", fds)
	}
	if _, fds := r.encode(); !slices.Equal(fds, []int{12, 13, 14, 17}) {
		t.Errorf("%v", fds)
	}
	r.Ruleset = -1
	if _, fds := r.encode(); !slices.Equal(fds, []int{12, 13, 14}) {
		t.Errorf("%v", fds)
	}
}

// A filter with notifications is tried with a listener, newest way first, and at last without.
func TestFilters(t *testing.T) {
	tells := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF | 1}}
	silent := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	code := func(f []unix.SockFilter) []byte {
		return []byte{byte(f[0].Code), byte(f[0].Code >> 8), f[0].Jt, f[0].Jf, byte(f[0].K), byte(f[0].K >> 8), byte(f[0].K >> 16),
			byte(f[0].K >> 24)}
	}
	for _, c := range []struct {
		filter    []byte
		listening []int
	}{{code(tells), []int{1, 1, 0}}, {code(silent), []int{0}}, {nil, nil}} {
		var got []int
		for _, f := range (&Request{Filter: c.filter}).filters() {
			way := f.(list)
			got = append(got, way[4].(int))
			if way[4] == 0 && string(way[3].([]byte)) == string(code(tells)) {
				t.Error("it notifies without a listener")
			}
		}
		if !slices.Equal(got, c.listening) {
			t.Errorf("%v, want %v", got, c.listening)
		}
	}
}

func TestUnderstand(t *testing.T) {
	if c, err := parseAnswer(message{body: []byte("began 7 12345")}); err != nil || c.PID != 7 || c.At != 12345 {
		t.Errorf("%+v, %v", c, err)
	}
	for said, want := range map[string]string{
		"failed cgroup 13 system call 1": "fork: system call 1: permission denied (stage cgroup)",
		"failed site 0 packages":         "fork: packages (stage site)",
		"failed":                         `fork: the driver says "failed" (stage protocol)`,
		"failed x y z":                   `fork: the driver says "failed x y z" (stage protocol)`,
		"began 1 5":                      `fork: the driver says "began 1 5" (stage protocol)`,
		"began -7 5":                     `fork: the driver says "began -7 5" (stage protocol)`,
		"began":                          `fork: the driver says "began" (stage protocol)`,
		"\x00":                           `fork: the driver says "\x00" (stage protocol)`,
	} {
		r, w, err := os.Pipe() // a listener that comes with a failure is closed
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseAnswer(message{body: []byte(said), files: []*os.File{w}}); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", said, err, want)
		}
		if _, err := w.Write([]byte{1}); err == nil {
			t.Errorf("%q: the descriptor is still open", said)
		}
		_ = r.Close()
	}
}

func FuzzUnderstand(f *testing.F) {
	f.Add([]byte("began 7 12345"))
	f.Add([]byte("failed cgroup 13 x"))
	f.Fuzz(func(t *testing.T, said []byte) {
		c, err := parseAnswer(message{body: said})
		if (err == nil) != (c.PID > 1) {
			t.Errorf("%q: %+v, %v", said, c, err)
		}
	})
}

// Only root's own files, in root's own directories, are trusted.
func TestTrusted(t *testing.T) {
	testenv.NeedRoot(t)
	for _, file := range []string{"/usr/bin/python3", "/bin/sh"} {
		if err := trusted(file); err != nil {
			t.Error(err)
		}
	}
	// Where a path is missing, only root may be able to create it.
	if err := trusted("/usr/sandboxtest-none/x"); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	if untrusted := new(sandbox.Untrusted); !errors.As(trusted("/var/tmp/sandboxtest-none/x"), &untrusted) || untrusted.Path != "/var/tmp" {
		t.Errorf("what any user may make is trusted: %+v", untrusted)
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-trusted-") // its sticky bit keeps other users from replacing the directory
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Symlink("/bin/sh", dir+"/sh"), os.Mkdir(dir+"/open", 0o755), os.Symlink("/bin/sh", dir+"/open/sh"),
		os.Mkdir(dir+"/open/deep", 0o755), os.Symlink("open/deep", dir+"/deep"), os.Symlink("deep/../sh", dir+"/up"),
		os.Symlink("/var/tmp//", dir+"/tmp")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(trusted(dir+"/sh"), trusted(dir+"/open/sh"), trusted(dir+"/up")); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(dir+"/open", 0o775); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{dir + "/open/sh", dir + "/open", dir + "/up", dir + "/tmp", "/var/tmp", dir + "/none", "/no/such/file"} {
		if err := trusted(file); err == nil {
			t.Errorf("%s is trusted", file)
		}
	}
}

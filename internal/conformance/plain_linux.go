package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// PlainVariable names the variable of a test that runs as an ordinary user; its value is the kind of user.
const PlainVariable = "SANDBOXTEST_PLAIN"

// Plain is an ordinary user that a test makes: an unused id, known to the programs of a private mount namespace only.
type Plain struct {
	Cgroups bool // owns a subtree of every hierarchy
	SubIDs  bool // has subordinate ids
}

func (p Plain) String() string {
	name := "namespace"
	if p.Cgroups {
		name = "container"
	}
	if p.SubIDs {
		name += "-subids"
	}
	return name
}

// PlainUID is the user's id, and SubFirst the first subordinate one: in ranges that distributions do not use.
const PlainUID, SubFirst = 61234, 1610612736

// Run starts a test of this binary as such a user. The user finds the command and its init in a copy of the directory bin. obstacle is
// a shell script that runs first, as root of the private mount namespace. It may set wrap to a command that starts the
// rest, as root, or inner to one that the user starts it with.
func (p Plain) Run(t *testing.T, bin, obstacle, test string, more ...string) {
	t.Helper()
	testenv.NeedRoot(t)
	if p.SubIDs {
		if _, err := exec.LookPath("newuidmap"); err != nil {
			t.Skip("needs newuidmap (package uidmap)")
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-plain-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	script := p.prepare(t, dir, bin)
	args := []string{"--mount", "--propagation", "private", "sh", "-euc", script + "\nwrap= inner=\n" + obstacle + "\n" +
		`exec $wrap setpriv --reuid ` + strconv.Itoa(PlainUID) + ` --regid ` + strconv.Itoa(PlainUID) + ` --clear-groups $inner "$0" "$@"` + "\n"}
	timeout := "8m"
	if testenv.All() {
		timeout = "30m" // whole suites, with a runtime for each sandbox
	}
	args = append(args, filepath.Join(dir, "test"), "-test.run", test, "-test.v", "-test.timeout", timeout)
	// Counters of the user's own: in a public directory no user may replace the files of another.
	counters := ""
	if cover := os.Getenv("GOCOVERDIR"); cover != "" && testing.CoverMode() != "" {
		counters = filepath.Join(dir, "cover")
		args = append(args, "-test.gocoverdir", counters)
		defer func() { _ = exec.Command("sh", "-c", `mv "$0"/cov* "$1"`, counters, cover).Run() }()
	}
	cmd := exec.Command("unshare", args...)
	cmd.Dir = dir
	cmd.Env = append([]string{
		"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + dir + "/home", "TMPDIR=" + dir + "/home",
		"XDG_RUNTIME_DIR=" + dir + "/run",
		PlainVariable + "=" + p.String(), "SANDBOX_RUN_TEST_BIN=" + dir + "/bin", "GOCOVERDIR=" + counters,
		testenv.AllVariable + "=" + os.Getenv(testenv.AllVariable), "SANDBOXTEST_GUEST=" + os.Getenv("SANDBOXTEST_GUEST"),
	}, more...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: Test") {
		t.Errorf("as an ordinary user (%s): %v\n%s", p, err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
}

// prepare makes the user's files and returns a shell script that mounts them and joins the user's groups.
func (p Plain) prepare(t *testing.T, dir, bin string) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(dir, 0o755))
	exe, err := os.Executable()
	must(err)
	must(exec.Command("cp", exe, filepath.Join(dir, "test")).Run())
	probe := Probe(t)
	must(os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	must(exec.Command("cp", probe, filepath.Join(dir, "bin", "probe")).Run())
	for _, name := range []string{"sandbox-run", "sandbox-rund", "sandbox-init", "sandbox-net"} {
		must(exec.Command("cp", filepath.Join(bin, name), filepath.Join(dir, "bin", name)).Run())
	}
	must(exec.Command("chmod", "-R", "a+rX", dir+"/bin", dir+"/test").Run())
	var script strings.Builder
	for _, name := range []string{"home", "run", "cover"} {
		must(os.Mkdir(filepath.Join(dir, name), 0o700))
		must(os.Chown(filepath.Join(dir, name), PlainUID, PlainUID))
	}
	// The user's name and ids, for programs that look them up: newuidmap does.
	for _, d := range []string{"etc/upper", "etc/work"} {
		must(os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	add := func(name, line string) {
		old, _ := os.ReadFile("/etc/" + name)
		must(os.WriteFile(filepath.Join(dir, "etc/upper", name), append(old, line+"\n"...), 0o644))
	}
	add("passwd", fmt.Sprintf("sandboxplain:x:%d:%d::%s/home:/bin/sh", PlainUID, PlainUID, dir))
	add("group", fmt.Sprintf("sandboxplain:x:%d:", PlainUID))
	if p.SubIDs {
		add("subuid", fmt.Sprintf("sandboxplain:%d:65536", SubFirst))
		add("subgid", fmt.Sprintf("sandboxplain:%d:65536", SubFirst))
	}
	fmt.Fprintf(&script, "mount -t overlay overlay -o lowerdir=/etc,upperdir=%s/etc/upper,workdir=%s/etc/work /etc\n", dir, dir)
	if p.Cgroups {
		for _, group := range p.delegate(t) {
			fmt.Fprintf(&script, "echo $$ > %s/in/cgroup.procs\n", group)
		}
	}
	return script.String()
}

// delegate makes a subtree in every hierarchy that the user owns.
func (Plain) delegate(t *testing.T) []string {
	t.Helper()
	tree, err := cgroup.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	var groups []string
	t.Cleanup(func() {
		for _, g := range groups {
			for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				_ = os.Remove(g + "/in")
				if err := os.Remove(g); err == nil || errors.Is(err, os.ErrNotExist) {
					break
				} else if time.Now().After(end) {
					t.Errorf("left behind in an ordinary user's subtree: %v", err)
					break
				}
			}
		}
	})
	for _, root := range tree.Roots() {
		sweepPlain(filepath.Dir(root))
		group := filepath.Join(filepath.Dir(root), fmt.Sprintf("plain-%d-%d", os.Getpid(), time.Now().UnixNano()))
		_ = os.WriteFile(filepath.Dir(root)+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0) // v2 only
		if err := os.MkdirAll(group+"/in", 0o755); err != nil {
			t.Fatal(err)
		}
		groups = append(groups, group)
		for _, d := range []string{group, group + "/in"} {
			for _, f := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control", "/tasks"} {
				if err := os.Chown(d+f, PlainUID, PlainUID); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}
	}
	return groups
}

// sweepPlain removes the subtrees of killed tests: no other code removes them, and they keep the
// group above them from being removed. A subtree with a process, or of a running test, stays.
func sweepPlain(place string) {
	groups, _ := filepath.Glob(filepath.Join(place, "plain-*-*"))
	for _, g := range groups {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(g), "-")[1])
		if err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue
		}
		var dirs []string
		_ = filepath.WalkDir(g, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) { // parents came first
			_ = unix.Rmdir(d)
		}
	}
}

// EveryPlain runs a test for each kind of ordinary user. make test has two of the four: those of TwoPlain.
func EveryPlain(t *testing.T, test func(*testing.T, Plain)) {
	TwoPlain(t, test)
	for _, p := range []Plain{{Cgroups: true}, {SubIDs: true}} {
		t.Run(p.String(), func(t *testing.T) {
			testenv.NeedAll(t, "the users with both abilities and with none")
			test(t, p)
		})
	}
}

// TwoPlain runs a test for the ordinary user with both abilities and for the one with none. It is for suites that repeat: EveryPlain's
// shorter tests find what differs between all four.
func TwoPlain(t *testing.T, test func(*testing.T, Plain)) {
	for _, p := range []Plain{{Cgroups: true, SubIDs: true}, {}} {
		t.Run(p.String(), func(t *testing.T) { test(t, p) })
	}
}

// AsPlain is the tier that a test may expect that runs as an ordinary user, and whether that user has subordinate ids.
func AsPlain(t *testing.T) (tier sandbox.Tier, subIDs bool) {
	t.Helper()
	kind, sub := strings.CutSuffix(os.Getenv(PlainVariable), "-subids")
	if kind == "" {
		t.Skip("runs as an ordinary user: a test that makes one starts it")
	}
	return sandbox.Tier(kind), sub
}

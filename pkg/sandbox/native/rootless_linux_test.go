package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
)

// plainVariable tells a test that it was started as a plain user, and of which kind.
const plainVariable = "SANDBOXTEST_PLAIN"

// plain is a user that a test makes: an id that nobody has, known to the programs of a private mount namespace only.
type plain struct {
	cgroups bool // a subtree of every hierarchy is theirs
	subIDs  bool // they have subordinate ids
}

func (p plain) String() string {
	name := "namespace"
	if p.cgroups {
		name = "container"
	}
	if p.subIDs {
		name += "-subids"
	}
	return name
}

// plainUID is in a range that distributions leave alone.
const plainUID, subFirst = 61234, 1610612736

// run starts a test of this very binary as such a user.
func (p plain) run(t *testing.T, test string, more ...string) { p.behind(t, "", test, more...) }

// behind does so behind an obstacle: a shell script that is run first, as root of the private mount namespace, and may set
// wrap to a command that starts the rest, as root, or inner to one that the user starts it with.
func (p plain) behind(t *testing.T, obstacle, test string, more ...string) {
	t.Helper()
	needRoot(t)
	if p.subIDs {
		if _, err := exec.LookPath("newuidmap"); err != nil {
			t.Skip("needs newuidmap (package uidmap)")
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-plain-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	script := p.prepare(t, dir)
	args := []string{"--mount", "--propagation", "private", "sh", "-euc", script + "\nwrap= inner=\n" + obstacle + "\n" +
		`exec $wrap setpriv --reuid ` + strconv.Itoa(plainUID) + ` --regid ` + strconv.Itoa(plainUID) + ` --clear-groups $inner "$0" "$@"` + "\n"}
	args = append(args, filepath.Join(dir, "test"), "-test.run", test, "-test.v", "-test.timeout", "8m")
	// Counters of the user's own: nobody may replace somebody else's files in a directory for all.
	counters := ""
	if cover := os.Getenv("GOCOVERDIR"); cover != "" && testing.CoverMode() != "" {
		counters = filepath.Join(dir, "cover")
		args = append(args, "-test.gocoverdir", counters)
		defer func() { _ = exec.Command("sh", "-c", `mv "$0"/cov* "$1"`, counters, cover).Run() }()
	}
	cmd := exec.Command("unshare", args...)
	cmd.Dir = dir
	cmd.Env = append([]string{
		"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + dir + "/home", "TMPDIR=" + dir + "/home", "XDG_RUNTIME_DIR=" + dir + "/run",
		plainVariable + "=" + p.String(), "SANDBOX_RUN_TEST_BIN=" + dir + "/bin", "GOCOVERDIR=" + counters,
		"SANDBOX_RUN_TEST_ALL=" + os.Getenv("SANDBOX_RUN_TEST_ALL"), "SANDBOXTEST_GUEST=" + os.Getenv("SANDBOXTEST_GUEST"),
	}, more...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: Test") {
		t.Errorf("as a plain user (%s): %v\n%s", p, err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
}

// prepare makes the user's world and returns the shell script that puts whoever runs it into it.
func (p plain) prepare(t *testing.T, dir string) string {
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
	command, err := attackerPath()
	must(err)
	probe := sandboxtest.Probe(t)
	must(os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	must(exec.Command("cp", probe, filepath.Join(dir, "bin", "probe")).Run())
	for _, name := range []string{"sandbox-run", "sandbox-init"} {
		must(exec.Command("cp", filepath.Join(filepath.Dir(command), name), filepath.Join(dir, "bin", name)).Run())
	}
	must(exec.Command("chmod", "-R", "a+rX", dir+"/bin", dir+"/test").Run())
	var script strings.Builder
	for _, name := range []string{"home", "run", "cover"} {
		must(os.Mkdir(filepath.Join(dir, name), 0o700))
		must(os.Chown(filepath.Join(dir, name), plainUID, plainUID))
	}
	// Who the user is, for programs that ask: newuidmap does.
	for _, d := range []string{"etc/upper", "etc/work"} {
		must(os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	add := func(name, line string) {
		old, _ := os.ReadFile("/etc/" + name)
		must(os.WriteFile(filepath.Join(dir, "etc/upper", name), append(old, line+"\n"...), 0o644))
	}
	add("passwd", fmt.Sprintf("sandboxplain:x:%d:%d::%s/home:/bin/sh", plainUID, plainUID, dir))
	add("group", fmt.Sprintf("sandboxplain:x:%d:", plainUID))
	if p.subIDs {
		add("subuid", fmt.Sprintf("sandboxplain:%d:65536", subFirst))
		add("subgid", fmt.Sprintf("sandboxplain:%d:65536", subFirst))
	}
	fmt.Fprintf(&script, "mount -t overlay overlay -o lowerdir=/etc,upperdir=%s/etc/upper,workdir=%s/etc/work /etc\n", dir, dir)
	if p.cgroups {
		for _, group := range p.delegate(t) {
			fmt.Fprintf(&script, "echo $$ > %s/in/cgroup.procs\n", group)
		}
	}
	return script.String()
}

// delegate makes a subtree in every hierarchy that is the user's own.
func (plain) delegate(t *testing.T) []string {
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
					t.Errorf("left behind in a plain user's subtree: %v", err)
					break
				}
			}
		}
	})
	for _, root := range tree.Roots() {
		group := filepath.Join(filepath.Dir(root), fmt.Sprintf("plain-%d-%d", os.Getpid(), time.Now().UnixNano()))
		_ = os.WriteFile(filepath.Dir(root)+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0) // v2 only
		if err := os.MkdirAll(group+"/in", 0o755); err != nil {
			t.Fatal(err)
		}
		groups = append(groups, group)
		for _, d := range []string{group, group + "/in"} {
			for _, f := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control", "/tasks"} {
				if err := os.Chown(d+f, plainUID, plainUID); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}
	}
	return groups
}

func everyPlain(t *testing.T, test func(*testing.T, plain)) {
	for _, p := range []plain{{cgroups: true}, {}, {cgroups: true, subIDs: true}, {subIDs: true}} {
		t.Run(p.String(), func(t *testing.T) { test(t, p) })
	}
}

func TestRootless(t *testing.T) {
	everyPlain(t, func(t *testing.T, p plain) { p.run(t, "^TestPlainConformance$") })
}

func TestRootlessWalls(t *testing.T) {
	everyPlain(t, func(t *testing.T, p plain) {
		p.run(t, "^(TestPlainIdentity|TestPlainInitIsSafe|TestPlainRefusals|TestPlainPosture|TestPlainStewardKilled)$")
	})
}

func TestRootlessAttack(t *testing.T) {
	everyPlain(t, func(t *testing.T, p plain) {
		if p.subIDs && !sandboxtest.All() {
			t.Skip("the long form only: SANDBOX_RUN_TEST_ALL=1")
		}
		p.run(t, "^TestPlainAttack$")
	})
}

func TestRootlessPolled(t *testing.T) {
	plain{}.run(t, "^TestPlainPolled$")
}

func TestRootlessCrash(t *testing.T) {
	everyPlain(t, func(t *testing.T, p plain) {
		if p.subIDs && !sandboxtest.All() {
			t.Skip("the long form only: SANDBOX_RUN_TEST_ALL=1")
		}
		p.run(t, "^TestPlainCrash$")
	})
}

// asPlain is the tier that a test which runs as a plain user may expect.
func asPlain(t *testing.T) (tier sandbox.Tier, subIDs bool) {
	t.Helper()
	kind, sub := strings.CutSuffix(os.Getenv(plainVariable), "-subids")
	if kind == "" {
		t.Skip("is run by the TestRootless tests, as a plain user")
	}
	return sandbox.Tier(kind), sub
}

func plainBackend(t testing.TB) *Backend {
	t.Helper()
	b, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPlainConformance(t *testing.T) {
	tier, _ := asPlain(t)
	has := []sandboxtest.Claim{
		sandboxtest.Programs, sandboxtest.Walls, sandboxtest.Kernel, sandboxtest.Bare, sandboxtest.NoSetUID, sandboxtest.OneFilter, sandboxtest.Volumes, sandboxtest.Writable, sandboxtest.Anybody, sandboxtest.Roots, sandboxtest.Network, sandboxtest.PTY, sandboxtest.Phases,
		sandboxtest.OpenFiles, sandboxtest.CPUTime, sandboxtest.Disk, sandboxtest.Inodes, sandboxtest.Files,
	}
	if tier == sandbox.TierContainer {
		has = append(has, sandboxtest.Memory, sandboxtest.Processes, sandboxtest.Metrics, sandboxtest.Freeze)
	}
	sandboxtest.Run(t, func(t *testing.T) sandbox.Backend {
		b := plainBackend(t)
		if iso := b.Probe(context.Background()); iso.Tier != tier {
			t.Fatalf("%+v", iso)
		}
		return b
	}, sandboxtest.Claims{Tier: tier, Has: has})
}

func TestPlainCrash(t *testing.T) {
	tier, _ := asPlain(t)
	b := plainBackend(t)
	sandboxtest.Crash(t, b, tier)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

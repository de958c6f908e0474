//go:build linux

package cgroup

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// An ordinary user in groups that root has given it, or not. Root makes the groups and starts the test binary in them, as
// a user without a name or a right of any kind.

const someUser = 61234

// rootless is the action of that user: it opens the tree, prints what it has, tries the limits, and then closes the tree, or
// waits until it is killed.
func rootless(args []string) {
	var o Options
	o.MoveToLeaf = slices.Contains(args, "move")
	tree, err := Open(o)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	second, err := Open(o) // as another backend of the same process would
	if err != nil {
		fmt.Println("open again:", err)
		return
	}
	for _, root := range tree.Roots() {
		fmt.Println("root", root)
	}
	for _, gap := range tree.Missing() {
		fmt.Printf("missing %s: %s (%s)\n", gap.Control, gap.Reason, gap.Remedy)
	}
	g := tree.Group("user/1/run")
	l := Limits{}
	if tree.Has(Memory) {
		l.Memory = 64 << 20
	}
	if tree.Has(Pids) {
		l.Pids = 16
	}
	if tree.Has(CPU) {
		l.CPU = 2
	}
	if l != (Limits{}) {
		if err := g.Make(l); err != nil {
			fmt.Println("make:", err)
			return
		}
		for _, action := range []string{"alloc 32", "alloc 96", "fork 20", "spin 1000"} {
			if l.CPU > 0 && action == "spin 1000" { // so little that even a busy machine would give more
				if err := g.Set(Limits{CPU: 0.1}); err != nil {
					fmt.Println("set:", err)
				}
			}
			out, err := runIn(g, action)
			fmt.Printf("%s: %s (%v)\n", action, strings.ReplaceAll(strings.TrimSpace(out), "\n", "; "), err)
		}
		s, err := g.Stat()
		fmt.Printf("oom %d, pids hits %v, throttled %v (%v)\n", s.OOMKills, s.PidsLimitHits > 0, s.ThrottledPeriods > 0, err)
	}
	if slices.Contains(args, "hold") {
		fmt.Println("holding")
		time.Sleep(time.Minute)
	}
	if err := tree.Group("user").Remove(context.Background()); err != nil {
		fmt.Println("remove:", err)
	}
	if err := tree.Prune(); err != nil {
		fmt.Println("prune:", err)
	}
	tree.Close()
	if l != (Limits{}) {
		fmt.Println("the second:", second.Probe(context.Background()))
	}
	second.Close()
	fmt.Println("done")
}

// runIn is start outside a test: it runs the probe in g until it ends, and then kills the children of the probe.
func runIn(g *Group, action string) (string, error) {
	files, err := g.JoinFiles()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("/bin/sh", "-c", join, "sh", strconv.Itoa(len(files)), "/proc/"+strconv.Itoa(os.Getpid())+"/exe")
	cmd.Env = []string{childEnv + "=" + action, "GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0"}
	cmd.ExtraFiles = files
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.WaitDelay = 10 * time.Second // should a child of "fork" hold the pipe
	err = cmd.Run()
	for _, f := range files {
		_ = f.Close()
	}
	if err == exec.ErrWaitDelay { //nolint:errorlint // not wrapped
		err = nil
	}
	if killErr := g.Kill(); killErr != nil {
		return out.String(), killErr
	}
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
		if empty, emptyErr := g.Empty(); empty || emptyErr != nil {
			return out.String(), cmp.Or(err, emptyErr)
		}
	}
	return out.String(), errors.New("killed, and yet there")
}

// userProcess is a process of the user, in the groups given by directory.
type userProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

// asUser starts the probe as someUser, in the groups: it joins them before it gives up root's rights.
func asUser(t *testing.T, dirs []string, action string) *userProcess {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	// The user may not enter the directory in which go test builds, so it gets a copy in a public one.
	public, err := os.MkdirTemp("", "cgroup-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(public) })
	if err := os.Chmod(public, 0o755); err != nil { //nolint:gosec // meant to be public
		t.Fatal(err)
	}
	binary := filepath.Join(public, "probe")
	copied, err := os.OpenFile(binary, os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // as above
	if err == nil {
		_, err = io.Copy(copied, self)
		_ = copied.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	script := `for d; do echo $$ >"$d/cgroup.procs" || exit 3; done
exec setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all --bounding-set=-all "$binary"`
	p := &userProcess{t: t, cmd: exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, dirs...)...)}
	p.cmd.Env = append(os.Environ(), childEnv+"=rootless "+action, "user="+strconv.Itoa(someUser), "binary="+binary)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	pipe, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(pipe)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// until reads up to and with a line.
func (p *userProcess) until(line string) string {
	p.t.Helper()
	var all strings.Builder
	for {
		got, err := p.out.ReadString('\n')
		all.WriteString(got)
		if strings.TrimSpace(got) == line {
			return all.String()
		}
		if err != nil {
			_ = p.cmd.Wait()
			p.t.Fatalf("no %q in:\n%s", line, all.String())
		}
	}
}

func (p *userProcess) end() string {
	out := p.until("done")
	if strings.Contains(out, "\nalloc") && !strings.Contains(out, "the second: <nil>\n") {
		p.t.Errorf("the second tree of the process: %s", out)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Error(err)
	}
	return out
}

// enforced checks what rootless said about the limits.
func enforced(t *testing.T, out string) {
	t.Helper()
	for _, want := range []string{
		"alloc 32: joined; allocated (<nil>)", // the positive control
		"alloc 96: joined (signal: killed)",
		"fork 20: joined; refused after ", "spin 1000: joined; spun (<nil>)",
		"oom 1, pids hits true, throttled true (<nil>)",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// handMade makes groups below the root of the v2 tree, removed with the test, and gives some of their files away.
func handMade(t *testing.T, names []string, given ...string) (top string) {
	t.Helper()
	testenv.NeedRoot(t)
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	mounts := parseMountinfo(string(mountinfo))
	if len(mounts) != 1 || !mounts[0].v2 || mounts[0].root != "/" || mounts[0].readOnly {
		t.Skip("needs pure cgroup v2, as in the virtual machines of guest.sh and guest-systemd.sh")
	}
	mount := mounts[0].point
	if err := os.WriteFile(mount+"/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0); err != nil {
		t.Fatal(err)
	}
	top = mount + "/" + uniquePath()
	dirs := []string{top}
	for _, name := range names {
		dirs = append(dirs, top+"/"+name)
	}
	for i, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Rmdir(dir); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
		})
		if i == 0 && len(names) > 0 {
			if err := os.WriteFile(top+"/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range given {
		if err := os.Chown(top+"/"+name, someUser, someUser); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

// asBefore checks that a group has nothing in it and hands no controllers down.
func asBefore(t *testing.T, dir string) {
	t.Helper()
	names, err := subdirs(unix.AT_FDCWD, dir)
	if err != nil || len(names) != 0 {
		t.Errorf("%s has %v in it (%v)", dir, names, err)
	}
	if b, err := os.ReadFile(dir + "/cgroup.subtree_control"); err != nil || strings.TrimSpace(string(b)) != "" {
		t.Errorf("%s hands down %q (%v)", dir, b, err)
	}
}

// whole lists the files that the owner of a delegated group owns.
func whole(dir string) []string {
	return []string{dir, dir + "/cgroup.procs", dir + "/cgroup.subtree_control", dir + "/cgroup.threads"}
}

func TestRootlessSubtree(t *testing.T) {
	top := handMade(t, []string{"shell"}, append(whole("."), whole("shell")...)...)
	out := asUser(t, []string{top + "/shell"}, "").end()
	enforced(t, out)
	if !strings.Contains(out, "root "+top+"/sandbox-run\n") || strings.Contains(out, "missing memory") {
		t.Error(out)
	}
	if names, err := subdirs(unix.AT_FDCWD, top); err != nil || !slices.Equal(names, []string{"shell"}) {
		t.Errorf("left behind: %v (%v)", names, err)
	}
}

func TestRootlessMovesToLeaf(t *testing.T) {
	top := handMade(t, nil, whole(".")...)
	enforced(t, asUser(t, []string{top}, "move").end())
	asBefore(t, top)

	// It does not move unless Options allow it.
	out := asUser(t, []string{top}, "").end()
	if !strings.Contains(out, "missing memory: ") || strings.Contains(out, "alloc") {
		t.Errorf("without MoveToLeaf: %s", out)
	}
	asBefore(t, top)

	// It does not move while another process is in the group.
	other := exec.Command("/bin/sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(top+"/cgroup.procs", []byte(strconv.Itoa(other.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	out = asUser(t, []string{top}, "move").end()
	if !strings.Contains(out, "missing memory: ") || strings.Contains(out, "alloc") {
		t.Errorf("beside another process: %s", out)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	asBefore(t, top)
}

// A killed process leaves its leaf; collecting its roots restores the group.
func TestRootlessKilledInLeaf(t *testing.T) {
	top := handMade(t, nil, whole(".")...)
	p := asUser(t, []string{top}, "move hold")
	out := p.until("holding")
	enforced(t, out)

	// While the process runs, Prune removes nothing of it.
	tree, refused := At([]string{top + "/sandbox-run"})
	defer tree.Close()
	if err := tree.Prune(); err != nil || len(refused) != 0 {
		t.Error(err, refused)
	}
	if !existsAt(unix.AT_FDCWD, top+"/sandbox-run/"+leafName) {
		t.Fatal("the leaf of a running process is gone")
	}
	if names, err := tree.List(); err != nil || !slices.Equal(names, []string{"user"}) {
		t.Errorf("groups: %v (%v)", names, err)
	}

	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	if err := tree.Group("user").Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := tree.Prune(); err != nil {
		t.Error(err)
	}
	asBefore(t, top)
	enforced(t, asUser(t, []string{top}, "move").end()) // it can be entered again
	asBefore(t, top)
}

func TestRootlessUselessPlaces(t *testing.T) {
	t.Run("outside", func(t *testing.T) {
		top := handMade(t, []string{"given", "shell"}, whole("given")...)
		out := asUser(t, []string{top + "/shell"}, "move").end()
		if !strings.Contains(out, "missing memory: "+top+"/given is this user's, but this process is in "+top+"/shell, outside of it") {
			t.Error(out)
		}
		// The message is right: the user can make a group there, but only root can move a process into it.
		const script = `mkdir "$0/given/x" && sh -c 'echo $$ >"$0/cgroup.procs"' "$0/given/x" 2>/dev/null && echo moved; rmdir "$0/given/x"`
		for user, want := range map[int]string{0: "moved\n", someUser: ""} {
			cmd := exec.Command("setpriv", "--reuid", strconv.Itoa(user), "--clear-groups", "/bin/sh", "-c", script, top)
			cmd.Stderr = os.Stderr
			if b, err := cmd.Output(); err != nil || string(b) != want {
				t.Errorf("user %d: %q (%v)", user, b, err)
			}
		}
	})
	t.Run("half given", func(t *testing.T) {
		top := handMade(t, []string{"shell"}, ".")
		out := asUser(t, []string{top + "/shell"}, "move").end()
		if !strings.Contains(out, "missing memory: ") || strings.Contains(out, "alloc") {
			t.Error(out)
		}
	})
	t.Run("nothing given", func(t *testing.T) {
		top := handMade(t, []string{"shell"})
		out := asUser(t, []string{top + "/shell"}, "move").end()
		if !strings.Contains(out, "missing memory: cannot create groups in ") || strings.Contains(out, "alloc") {
			t.Error(out)
		}
	})
	t.Run("without cpu", func(t *testing.T) {
		top := handMade(t, []string{"shell"}, append(whole("."), whole("shell")...)...)
		mount := filepath.Dir(top)
		// A controller that the root does not hand down is missing in all groups below that are made from now on.
		for _, dir := range []string{top, mount} {
			if err := os.WriteFile(dir+"/cgroup.subtree_control", []byte("-cpu"), 0); err != nil {
				t.Skipf("others here need the cpu controller: %s: %v", dir, err)
			}
		}
		out := asUser(t, []string{top + "/shell"}, "").end()
		if !strings.Contains(out, "missing cpu: ") || strings.Contains(out, "missing memory") ||
			!strings.Contains(out, "oom 1, pids hits true, throttled false") {
			t.Error(out)
		}
	})
}

// On v1 the old group of a process does not matter: a directory per controller suffices.
func TestRootlessV1(t *testing.T) {
	testenv.NeedRoot(t)
	tree := realTree(t, Memory, Pids, CPU)
	if tree.Version() == "v2" {
		t.Skip("needs v1 controllers")
	}
	name := uniquePath()
	var dirs []string
	for i := range tree.hierarchies {
		h := &tree.hierarchies[i]
		dir := h.own + "/" + name
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Rmdir(dir); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
		})
		dirs = append(dirs, dir)
	}

	out := asUser(t, dirs, "").end()
	if !strings.Contains(out, "missing memory: cannot create groups in ") || strings.Contains(out, "alloc") {
		t.Errorf("not given: %s", out)
	}
	for _, dir := range dirs {
		if err := os.Chown(dir, someUser, someUser); err != nil {
			t.Fatal(err)
		}
	}
	out = asUser(t, dirs, "").end()
	enforced(t, out)
	for _, dir := range dirs {
		if names, err := subdirs(unix.AT_FDCWD, dir); err != nil || len(names) != 0 {
			t.Errorf("%s: left behind: %v (%v)", dir, names, err)
		}
	}
}

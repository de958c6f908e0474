package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/quota"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/pool"
)

// quotaDisk mounts a file system that was made for the test. Only the virtual machine of scripts/v2.sh is known to have all kinds.
func quotaDisk(t *testing.T, option string, mkfs ...string) string {
	t.Helper()
	missing := t.Skipf
	if os.Getenv("SANDBOXTEST_GUEST") != "" {
		missing = t.Fatalf
	}
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 512<<20))
	must(t, os.Mkdir(at, 0o700))
	if _, err := exec.LookPath(mkfs[0]); err != nil {
		missing("%v", err)
	}
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], image)...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", mkfs, err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop,"+option, image, at).CombinedOutput(); err != nil {
		missing("this kernel can not mount it with %s: %v: %s", option, err, out)
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
	return at
}

var mkfsExt4 = []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-O", "project,quota"}

// Caps by project quotas, on both file systems that are documented. In make test, scripts/v2.sh runs the first.
func TestQuota(t *testing.T) {
	if testenv.OwnMounts(t) {
		newQuotaTest(t, quotaDisk(t, "prjquota", mkfsExt4...)).all(t)
	}
}

func TestQuotaXFS(t *testing.T) {
	if testenv.OwnMounts(t) {
		newQuotaTest(t, quotaDisk(t, "pquota", "mkfs.xfs", "-q", "-f")).all(t)
	}
}

// quotaTest has a store on a file system with project quotas, and a backend.
type quotaTest struct {
	disk, store string
	m           *sandbox.Manager
}

func newQuotaTest(t *testing.T, disk string) *quotaTest {
	t.Helper()
	backend, err := native.New(native.Options{CacheDir: filepath.Join(t.TempDir(), "cache")})
	must(t, err)
	t.Cleanup(func() { must(t, backend.Close()) })
	m := sandbox.NewManager(backend, sandbox.Options{})
	t.Cleanup(func() { must(t, m.Close()) })
	return &quotaTest{disk: disk, store: filepath.Join(disk, "workspaces"), m: m}
}

func (q *quotaTest) all(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"writes", q.testWrites}, {"reserved space", q.testReservedSpace}, {"deleted files", q.testDeletedFiles},
		{"small files", q.testSmallFiles}, {"sparse files", q.testSparseFiles}, {"tenants", q.testTenants},
		{"leaving the project", q.testLeaving}, {"files from outside", q.testFilesFromOutside}, {"changed cap", q.testChangedCap},
		{"migration", q.testMigration}, {"copy", q.testCopy}, {"put", q.testPut}, {"remove", q.testRemove},
		{"foreign project", q.testForeignProject}, {"no privileges", q.testNoPrivileges}, {"pool", q.testPool},
	} {
		t.Run(c.name, c.run)
	}
}

const testCap = 16 * sandbox.MiB

// open opens a workspace whose cap must be enforced.
func (q *quotaTest) open(t *testing.T, name string, o Options) *Workspace {
	t.Helper()
	w := opened(t, q.store, name, o)
	if w.project == 0 || w.Volume().Quota == nil {
		t.Fatalf("the cap is not enforced: %+v", w.gap)
	}
	return w
}

// run runs a script in a sandbox with a workspace, as callers do.
func (q *quotaTest) run(t *testing.T, w *Workspace, script string) *sandbox.Result {
	t.Helper()
	return runIn(t, q.m, w, script)
}

func runIn(t *testing.T, m *sandbox.Manager, w *Workspace, script string) *sandbox.Result {
	t.Helper()
	spec := sandbox.Spec{Volumes: []sandbox.Volume{w.Volume()}, Scratch: sandbox.ScratchMemory, Limits: sandbox.Limits{Wall: 2 * time.Minute}}
	id, err := m.Create(t.Context(), spec)
	must(t, err)
	defer func() { must(t, m.Delete(context.Background(), id)) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watched := make(chan error, 1)
	go func() {
		watched <- w.Watch(ctx, func(u Usage) { t.Errorf("over its cap, which the kernel enforces: %+v", u) })
	}()
	r, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", script}}, sandbox.IO{})
	cancel()
	must(t, <-watched)
	must(t, err)
	return r
}

// said is what a script printed; the error says the rest.
func said(t *testing.T, r *sandbox.Result, want string) {
	t.Helper()
	if string(r.Stdout.Bytes()) != want {
		t.Errorf("%s, printed %q, not %q; %q", r.Verdict, r.Stdout.Bytes(), want, r.Stderr.Bytes())
	}
}

// within checks what the kernel counts against the cap.
func within(t *testing.T, w *Workspace, least, most sandbox.Size) {
	t.Helper()
	if u := usage(t, w); u.Bytes < least || u.Bytes > most+most/metadataShare {
		t.Errorf("%+v, not %s to %s", u, least, most)
	}
}

func diskGaps(r *sandbox.Result) []sandbox.Gap {
	return slices.DeleteFunc(slices.Clone(r.Isolation.Missing), func(g sandbox.Gap) bool { return g.Control != sandbox.ControlDisk })
}

func (q *quotaTest) testWrites(t *testing.T) {
	w := q.open(t, "writes", Options{Cap: testCap})
	r := q.run(t, w, "head -c 8m /dev/zero >fits && stat -c %s fits") // the control
	said(t, r, "8388608\n")
	if !r.Success() || len(r.Violations) > 0 || r.Isolation.Controls[sandbox.ControlDisk] != sandbox.Enforced || len(diskGaps(r)) > 0 {
		t.Errorf("%s %v %+v", r.Verdict, r.Violations, r.Isolation.Missing)
	}
	r = q.run(t, w, "head -c 64m /dev/zero >big")
	if r.Verdict != sandbox.VerdictDiskLimit || len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Allow, "--workspace-cap") {
		t.Errorf("%s %v %q", r.Verdict, r.Violations, r.Stderr.Bytes())
	}
	within(t, w, testCap-testCap/64, testCap)
	info, err := Show(t.Context(), q.store, "writes")
	must(t, err)
	if !info.Enforced || info.Usage.Bytes < testCap-testCap/64 {
		t.Errorf("%+v", info)
	}
	must(t, w.Close())
	w = q.open(t, "writes", Options{}) // a full one can be used, and emptied
	if r = q.run(t, w, "rm big && head -c 4m /dev/zero >fits"); !r.Success() || len(r.Violations) > 0 {
		t.Errorf("%s %v %q", r.Verdict, r.Violations, r.Stderr.Bytes())
	}
	within(t, w, 4*sandbox.MiB, 5*sandbox.MiB)

	// The control of the report: a store on another file system.
	polled := opened(t, newStore(t), "polled", Options{Cap: testCap})
	gaps := diskGaps(q.run(t, polled, "true"))
	if len(gaps) != 1 || gaps[0].State != sandbox.Polled || !strings.Contains(gaps[0].Reason, "no project quotas") {
		t.Errorf("%+v", gaps)
	}
}

func (q *quotaTest) testReservedSpace(t *testing.T) {
	w := q.open(t, "reserved", Options{Cap: testCap})
	said(t, q.run(t, w, "fallocate -l 8m fits && stat -c %s fits"), "8388608\n")
	for _, args := range []string{"-l 5g", "-n -l 5g", "-z -l 5g"} {
		r := q.run(t, w, "fallocate "+args+" big")
		if r.Exit.Code == 0 {
			t.Errorf("fallocate %s: %s", args, r.Verdict)
		}
		within(t, w, 8*sandbox.MiB, testCap)
		said(t, q.run(t, w, "rm -f big"), "")
	}
}

func (q *quotaTest) testDeletedFiles(t *testing.T) {
	w := q.open(t, "deleted", Options{Cap: testCap})
	r := q.run(t, w, `exec 3>gone; rm gone; head -c 64m /dev/zero >&3
		head -c 1m /dev/zero >more && exit 0; stat -c %b more || echo 0; exit 1`) // XFS has no room for the name either
	said(t, r, "0\n")
	if r.Verdict == sandbox.VerdictOK {
		t.Errorf("%s", r.Verdict)
	}
	// The kernel frees it with the last process, on XFS a moment later.
	for deadline := time.Now().Add(soon); usage(t, w).Bytes > sandbox.MiB && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	said(t, q.run(t, w, "head -c 8m /dev/zero >more; stat -c %s more"), "8388608\n")
}

func (q *quotaTest) testSmallFiles(t *testing.T) {
	w := q.open(t, "small", Options{Cap: testCap, Inodes: 100})
	r := q.run(t, w, `i=0; while true 2>/dev/null >f$i; do i=$((i + 1)); done; echo $i
		mkdir d || ln -s x l || ln f1 second && echo linked; exit 1`)
	said(t, r, "100\nlinked\n")
	if r.Verdict != sandbox.VerdictDiskLimit {
		t.Errorf("%s %v", r.Verdict, r.Violations)
	}
	if u := usage(t, w); u.Inodes != 100 {
		t.Errorf("%+v", u)
	}
}

func (q *quotaTest) testSparseFiles(t *testing.T) {
	w := q.open(t, "sparse", Options{Cap: testCap})
	// A size alone takes nothing, and is no reason for a refusal. What is written into the hole takes space.
	r := q.run(t, w, `truncate -s 1t big && stat -c %s big
		i=0; while dd if=/dev/zero of=big bs=1M count=2 seek=$i conv=notrunc status=none; do i=$((i + 4)); done; echo $i; exit 1`)
	var size, last int
	if _, err := fmt.Sscan(string(r.Stdout.Bytes()), &size, &last); err != nil || size != 1<<40 || last < 6*4 || last > 8*4 {
		t.Errorf("%v %q %q", err, r.Stdout.Bytes(), r.Stderr.Bytes())
	}
	within(t, w, testCap-2*sandbox.MiB, testCap)
}

func (q *quotaTest) testTenants(t *testing.T) {
	a, b := q.open(t, "tenant-a", Options{Cap: testCap}), q.open(t, "tenant-b", Options{Cap: testCap})
	if a.project == b.project {
		t.Fatalf("both have the project %d", a.project)
	}
	if r := q.run(t, a, "head -c 64m /dev/zero >big"); r.Verdict != sandbox.VerdictDiskLimit {
		t.Errorf("%s", r.Verdict)
	}
	if u := usage(t, b); u.Bytes > 64<<10 || u.Inodes != 0 {
		t.Errorf("%+v", u)
	}
	if r := q.run(t, b, "head -c 12m /dev/zero >fits"); !r.Success() || len(r.Violations) > 0 {
		t.Errorf("%s %v", r.Verdict, r.Violations)
	}
}

// leave tries to take files and directories out of their project by every call that could, and prints what came of it.
const leave = `import errno, fcntl, os, struct, sys
def attempt(fd, request, data):
    try:
        fcntl.ioctl(fd, request, data)
        print("set")
    except OSError as e:
        print(errno.errorcode[e.errno])
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    flags, extent, extents, project, copied = struct.unpack("5I8x", fcntl.ioctl(fd, 0x801c581f, bytes(28)))
    bits, = struct.unpack("I4x", fcntl.ioctl(fd, 0x80086601, bytes(8)))
    attempt(fd, 0x401c5820, struct.pack("5I8x", flags, extent, extents, project + 1, copied))
    if os.path.isdir(path):
        attempt(fd, 0x401c5820, struct.pack("5I8x", flags & ~0x200, extent, extents, project, copied))
        attempt(fd, 0x40086602, struct.pack("I4x", bits & ~0x20000000))
`

// A program can not leave its project: neither by our filter nor, where there is none, by the kernel in a user namespace.
func (q *quotaTest) testLeaving(t *testing.T) {
	w := q.open(t, "leaving", Options{Cap: testCap})
	path, free := w.Volume().Source, filepath.Join(q.disk, "free")
	must(t, os.Mkdir(free, 0o700))
	dir, err := os.Open(free)
	must(t, err)
	defer dir.Close()
	must(t, quota.SetProject(int(dir.Fd()), 5, true))
	for _, at := range []string{path, free} {
		must(t, os.Mkdir(filepath.Join(at, "d"), 0o700))
		must(t, os.WriteFile(filepath.Join(at, "f"), nil, 0o600))
	}
	must(t, w.Put(t.Context(), []sandbox.File{{Path: "/workspace/leave.py", Data: []byte(leave)}}))
	outside := func(at string, command ...string) string {
		command = append(command, "/usr/bin/python3", "-I", "-c", leave, filepath.Join(at, "f"), filepath.Join(at, "d"))
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return string(out)
	}
	said(t, q.run(t, w, "/usr/bin/python3 -I leave.py f d"), strings.Repeat("ENOTTY\n", 4))
	if out := outside(path, "unshare", "-U", "-r"); out != strings.Repeat("EINVAL\n", 4) {
		t.Errorf("in a user namespace: %q", out)
	}
	if out := outside(free); out != strings.Repeat("set\n", 4) { // the control
		t.Errorf("as root: %q", out)
	}
	for _, name := range []string{"f", "d"} {
		if project, inherited := projectOf(t, filepath.Join(path, name)); project != w.project || inherited != (name == "d") {
			t.Errorf("%s: %d, %v", name, project, inherited)
		}
	}
}

func projectOf(t *testing.T, path string) (uint32, bool) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	project, inherited, err := quota.Project(int(f.Fd()))
	must(t, err)
	return project, inherited
}

func setProject(t *testing.T, path string, project uint32) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	must(t, quota.SetProject(int(f.Fd()), project, false))
}

func (q *quotaTest) testFilesFromOutside(t *testing.T) {
	w := q.open(t, "outside", Options{Cap: testCap})
	path := w.Volume().Source
	must(t, os.WriteFile(filepath.Join(q.disk, "moved"), make([]byte, 1<<20), 0o600))
	for _, move := range []func(string, string) error{os.Rename, os.Link} {
		if err := move(filepath.Join(q.disk, "moved"), filepath.Join(path, "moved")); !errors.Is(err, unix.EXDEV) {
			t.Errorf("a file without the id was moved in: %v", err)
		}
	}
	// The owner has edited attributes between two runs: a file and a directory with one are out of the project.
	must(t, os.MkdirAll(filepath.Join(path, "d", "below"), 0o700))
	for _, name := range []string{"file", "d/file", "d/below/file"} {
		must(t, os.WriteFile(filepath.Join(path, name), make([]byte, 2<<20), 0o600))
	}
	before := usage(t, w)
	for _, name := range []string{"file", "d/below/file", "d/below"} {
		setProject(t, filepath.Join(path, name), 0)
	}
	if u := usage(t, w); u.Inodes != before.Inodes-3 || u.Bytes > before.Bytes-4<<20 {
		t.Fatalf("%+v, then %+v: they are not out of the project", before, u)
	}
	must(t, w.Close())
	w = q.open(t, "outside", Options{})
	if u := usage(t, w); u.Inodes != before.Inodes || u.Bytes < 6<<20 {
		t.Errorf("%+v, not %+v", u, before)
	}
	if project, inherited := projectOf(t, filepath.Join(path, "d/below")); project != w.project || !inherited {
		t.Errorf("%d, %v", project, inherited)
	}
	if r := q.run(t, w, "head -c 64m /dev/zero >big"); r.Verdict != sandbox.VerdictDiskLimit {
		t.Errorf("%s", r.Verdict)
	}
	within(t, w, testCap-testCap/64, testCap)
}

func (q *quotaTest) testChangedCap(t *testing.T) {
	w := q.open(t, "changed", Options{Cap: testCap, Inodes: 100})
	said(t, q.run(t, w, "head -c 12m /dev/zero >big; stat -c %s big"), "12582912\n")
	project := w.project
	must(t, w.Close())
	_, err := Open(t.Context(), q.store, "changed", Options{Cap: 8 * sandbox.MiB})
	if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "of at most 8 MiB") {
		t.Errorf("lowered below what it holds: %v", err)
	}
	w = q.open(t, "changed", Options{})
	if most, inodes := w.Cap(); most != testCap || inodes != 100 || w.project != project {
		t.Errorf("%s, %d, project %d, not %d", most, inodes, w.project, project)
	}
	must(t, w.Close())
	w = q.open(t, "changed", Options{Cap: 32 * sandbox.MiB, Inodes: 200})
	said(t, q.run(t, w, "head -c 12m /dev/zero >more; stat -c %s more"), "12582912\n")
	if r := q.run(t, w, "head -c 64m /dev/zero >more"); r.Verdict != sandbox.VerdictDiskLimit {
		t.Errorf("%s", r.Verdict)
	}
	within(t, w, 31*sandbox.MiB, 32*sandbox.MiB)
}

// A workspace of an earlier version, or of an ordinary user's time: its files get the id.
func (q *quotaTest) testMigration(t *testing.T) {
	path := filepath.Join(q.store, "old")
	must(t, os.Mkdir(path, 0o700))
	meta := fmt.Sprintf(`{"cap":%d,"inodes":1000,"created":"2026-01-01T00:00:00Z","last_used":"2026-01-01T00:00:00Z"}`, testCap)
	must(t, os.WriteFile(filepath.Join(q.store, ".old.json"), []byte(meta), 0o600))
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	plant(t, path, outside)
	must(t, os.WriteFile(filepath.Join(path, "closed/below/file"), make([]byte, 2<<20), 0))
	must(t, os.Link(filepath.Join(path, "closed/below/file"), filepath.Join(path, "second")))
	for range 2 { // what can have no id is there at every opening
		w := q.open(t, "old", Options{})
		for _, name := range []string{"", "closed", "closed/below", "closed/below/file"} {
			if project, _ := projectOf(t, filepath.Join(path, name)); project != w.project {
				t.Errorf("%q: %d, not %d", name, project, w.project)
			}
		}
		within(t, w, 2*sandbox.MiB, 3*sandbox.MiB)
		must(t, w.Close())
	}
	w := q.open(t, "old", Options{})
	if r := q.run(t, w, "head -c 64m /dev/zero >big"); r.Verdict != sandbox.VerdictDiskLimit {
		t.Errorf("%s", r.Verdict)
	}
	within(t, w, testCap-testCap/64, testCap)
	must(t, w.Close())
	must(t, Remove(t.Context(), q.store, "old"))
}

// A copy, with its metadata, is a workspace of its own.
func (q *quotaTest) testCopy(t *testing.T) {
	a := q.open(t, "copy-a", Options{Cap: testCap})
	must(t, os.WriteFile(filepath.Join(a.Volume().Source, "file"), make([]byte, 1<<20), 0o600))
	for from, to := range map[string]string{"copy-a": "copy-b", ".copy-a.json": ".copy-b.json"} {
		if out, err := exec.Command("cp", "-a", filepath.Join(q.store, from), filepath.Join(q.store, to)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	b := q.open(t, "copy-b", Options{})
	for _, w := range []*Workspace{a, b} {
		if u := usage(t, w); a.project == b.project || u.Inodes != 1 || u.Bytes < 1<<20 || u.Bytes >= 2<<20 {
			t.Errorf("%s: project %d, %+v", w.name, w.project, u)
		}
	}
}

func (q *quotaTest) testPut(t *testing.T) {
	w := q.open(t, "put", Options{Cap: testCap})
	must(t, w.Put(t.Context(), []sandbox.File{{Path: "/workspace/d/fits", Data: make([]byte, 8<<20)}}))
	within(t, w, 8*sandbox.MiB, 9*sandbox.MiB)
	// The kernel does not bind us on ext4.
	err := w.Put(t.Context(), []sandbox.File{{Path: "/workspace/d/more", Data: make([]byte, 10<<20)}})
	if !errors.Is(err, sandbox.ErrRefused) {
		t.Error(err)
	}
	if r := q.run(t, w, "head -c 10m /dev/zero >more"); r.Verdict != sandbox.VerdictDiskLimit {
		t.Errorf("%s", r.Verdict)
	}
	// A program that fails in a full workspace without writing to it fails for another reason.
	must(t, w.Close())
	w = q.open(t, "put", Options{Cap: testCap})
	if r := q.run(t, w, "exit 3"); r.Verdict != sandbox.VerdictNonzeroExit {
		t.Errorf("without a write: %s", r.Verdict)
	}
	// Small files and directories take whole blocks.
	deep := q.open(t, "deep", Options{Cap: sandbox.MiB})
	must(t, deep.Put(t.Context(), []sandbox.File{{Path: "/workspace/" + strings.Repeat("d/", 20) + "f", Data: []byte("x")}}))
	err = deep.Put(t.Context(), []sandbox.File{{Path: "/workspace/" + strings.Repeat("e/", 400) + "f", Data: []byte("x")}})
	if used, most, readErr := quota.Read(int(deep.dir.Fd()), deep.project); readErr != nil ||
		(used.Bytes > most.Bytes) != errors.Is(err, sandbox.ErrRefused) { // XFS keeps them in their inodes
		t.Errorf("400 directories: %v, %+v of %+v (%v)", err, used, most, readErr)
	}
}

func (q *quotaTest) testRemove(t *testing.T) {
	w := q.open(t, "removed", Options{Cap: testCap})
	project, path := w.project, w.Volume().Source
	must(t, os.MkdirAll(filepath.Join(path, "a/b/c"), 0o700))
	setProject(t, filepath.Join(path, "a/b"), 0) // it can not be moved into a directory with the id
	must(t, w.Close())
	f, err := os.Open(q.disk)
	must(t, err)
	defer f.Close()
	if _, most, err := quota.Read(int(f.Fd()), project); err != nil || most.Bytes != uint64(testCap) { // the control
		t.Errorf("%+v, %v", most, err)
	}
	must(t, Remove(t.Context(), q.store, "removed"))
	if _, most, err := quota.Read(int(f.Fd()), project); err != nil || most != (quota.Amount{}) {
		t.Errorf("%+v, %v", most, err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// A store that is itself limited by a project, as in a container's volume, stays in it.
func (q *quotaTest) testForeignProject(t *testing.T) {
	store := filepath.Join(q.disk, "foreign")
	must(t, os.Mkdir(store, 0o700))
	setProject(t, store, 7)
	w := opened(t, store, "w", Options{})
	if gap := w.Volume().CapGap; w.project != 0 || !strings.Contains(gap.Reason, "its id is 7") || gap.Remedy == "" {
		t.Errorf("%d %+v", w.project, gap)
	}
	if gap := ExplainCap(q.store); gap != nil { // the control
		t.Errorf("%+v", gap)
	}
}

func (q *quotaTest) testNoPrivileges(t *testing.T) {
	if gap := ExplainCap(filepath.Join(q.store, "not", "there")); gap != nil { // the control
		t.Errorf("%+v", gap)
	}
	gaps := make(chan *sandbox.Gap)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
		}
		gaps <- ExplainCap(q.store)
	}()
	if gap := <-gaps; gap == nil || gap.State != sandbox.Polled || !strings.Contains(gap.Remedy, "as root") {
		t.Errorf("%+v", gap)
	}
}

// Sandboxes of a pool: with a volume they are made for the request, and report the same.
func (q *quotaTest) testPool(t *testing.T) {
	backend, err := native.New(native.Options{CacheDir: filepath.Join(t.TempDir(), "cache")})
	must(t, err)
	p := pool.New(backend, pool.Options{})
	m := sandbox.NewManager(p, sandbox.Options{})
	defer func() { must(t, errors.Join(m.Close(), p.Close())) }()
	w := q.open(t, "pooled", Options{Cap: testCap})
	r := runIn(t, m, w, "head -c 64m /dev/zero >big")
	if r.Verdict != sandbox.VerdictDiskLimit || r.Isolation.Controls[sandbox.ControlDisk] != sandbox.Enforced || len(diskGaps(r)) > 0 {
		t.Errorf("%s %+v", r.Verdict, r.Isolation.Missing)
	}
}

// Quotas that count and refuse nothing are no caps.
func TestQuotaNotEnforced(t *testing.T) {
	if !testenv.OwnMounts(t) {
		return
	}
	store := filepath.Join(quotaDisk(t, "rw", mkfsExt4...), "workspaces")
	w := opened(t, store, "w", Options{})
	if gap := w.Volume().CapGap; w.project != 0 || !strings.Contains(gap.Reason, "not enforced") || !strings.Contains(gap.Remedy, "prjquota") {
		t.Errorf("%d %+v", w.project, gap)
	}
}

// Without project quotas there is a reason, and the cap is polled.
func TestNoQuota(t *testing.T) {
	w := opened(t, memoryStore(t), "w", Options{})
	v := w.Volume()
	if v.Quota != nil || v.Cap != DefaultCap || !strings.Contains(v.CapGap.Reason, "no project quotas") ||
		!strings.Contains(v.CapGap.Remedy, "prjquota") {
		t.Errorf("%+v", v)
	}
	if w.Full() {
		t.Error("a cap that is polled is full")
	}
	if gap := ExplainCap("/proc/self"); gap == nil || gap.State != sandbox.Polled {
		t.Errorf("%+v", gap)
	}
}

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
)

// FirstID begins the host ids of sandboxes: a range that no distribution assigns (systemd's documentation calls
// 0x70000000…0x7fffffff unused), divided into a block per supervisor and a pair per sandbox.
const FirstID = 0x70000000

// The division of the range.
const (
	idsPerSupervisor = 1 << 12
	idsPerSandbox    = 2
	MaxConcurrent    = idsPerSupervisor / idsPerSandbox // sandboxes of one supervisor alive at a time
	collectTimeout   = 5 * time.Second
	leftoverTimeout  = time.Second // of the former, for each
)

// RuntimeDir is the registry directory of this user's supervisors.
func RuntimeDir() string {
	if os.Geteuid() == 0 && FirstUserNS() {
		return "/run/sandbox-run"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "sandbox-run")
	}
	// In a user namespace ids do not identify a user, and all of them share this directory.
	return filepath.Join(os.TempDir(), fmt.Sprintf("sandbox-run-%d", OuterID(os.Geteuid())))
}

// OuterID translates an id of this process's user namespace to the one around it; -1 if it is not mapped there. The
// outer namespace may also map its own root to 0: a process that reads 0 can not know.
func OuterID(id int) int {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return -1
	}
	return outerID(string(text), id)
}

func outerID(idMap string, id int) int {
	for line := range strings.Lines(idMap) {
		var inside, outside, count int
		if n, err := fmt.Sscan(line, &inside, &outside, &count); n == 3 && err == nil && id >= inside && id-inside < count {
			return outside + id - inside
		}
	}
	return -1
}

// FirstUserNS reports whether this process is in the machine's first user namespace.
var FirstUserNS = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
})

// Supervisor is a registration. It owns its registry entry.
type Supervisor struct {
	Cgroups *cgroup.Tree
	entry   *registry.Entry
	groups  atomic.Uint64 // numbers cgroups and directories

	mu    sync.Mutex
	dir   *os.File                   // the parent of this supervisor's directories, locked from the first of them on
	taken [MaxConcurrent / 64]uint64 // bitmap of id pairs in use
}

// Open registers this process.
func Open(tree *cgroup.Tree) (*Supervisor, error) {
	e, err := registry.Register(RuntimeDir(), []byte(strings.Join(tree.Roots(), "\n")))
	if err != nil {
		return nil, err
	}
	return &Supervisor{Cgroups: tree, entry: e}, nil
}

// Record registers a directory of cgroups that this process is about to make, for a collector, in case this process is
// killed before or after its registration. forget removes the entry when the directory is gone.
func Record(root string) (forget func(), err error) {
	e, err := registry.Register(RuntimeDir(), []byte(root))
	if err != nil {
		return nil, err
	}
	return func() { _ = e.Close() }, nil // the next collector removes a leftover entry
}

// NewGroup names a cgroup that no other sandbox has; it makes nothing yet.
func (s *Supervisor) NewGroup() *cgroup.Group {
	return s.Cgroups.Group(fmt.Sprintf("%s/%d", s.entry.Name(), s.groups.Add(1)))
}

// NewPhaseCgroup names a phase cgroup that no other sandbox has, for an init with the id owner and its programs; it
// makes nothing yet.
func (s *Supervisor) NewPhaseCgroup(owner int) *cgroup.PhaseGroup {
	return s.Cgroups.PhaseGroup(fmt.Sprintf("%s/%d", s.entry.Name(), s.groups.Add(1)), owner)
}

// IDs reserves a pair of host ids that no other living sandbox has: for the root and the user of its user namespace. The
// caller returns them with Release.
func (s *Supervisor) IDs() (root, user int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w, word := range s.taken {
		if free := ^word; free != 0 {
			bit := bits.TrailingZeros64(free)
			s.taken[w] |= 1 << bit
			root = FirstID + s.entry.Slot()*idsPerSupervisor + (w*64+bit)*idsPerSandbox
			if weakenIDs {
				root = FirstID + s.entry.Slot()*idsPerSupervisor
			}
			return root, root + 1, nil
		}
	}
	return 0, 0, fmt.Errorf("%d sandboxes of this supervisor are alive already", MaxConcurrent)
}

// Release returns a pair of ids.
func (s *Supervisor) Release(root int) {
	n := (root - FirstID - s.entry.Slot()*idsPerSupervisor) / idsPerSandbox
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[n/64] &^= 1 << (n % 64)
}

// dirName is the parent of a supervisor's directories. It is derived from its name, so that a collector finds those of a
// dead one.
func dirName(name string) string {
	return filepath.Join(dirsAt, dirPrefix()+name)
}

// NameOfDir returns the name of the supervisor of this user, dead or alive, whose directory has that path; "" for other paths.
func NameOfDir(dir string) string {
	name, ok := strings.CutPrefix(dir, dirName(""))
	if !ok || name == "" || strings.Contains(name, "/") {
		return ""
	}
	return name
}

// dirsAt is the directory with all of them, and dirPrefix the prefix of a user's names.
const dirsAt = "/var/tmp"

func dirPrefix() string { return fmt.Sprintf("sandbox-run-%d-", os.Geteuid()) }

// NewDir makes a directory with a new name. The caller removes it.
func (s *Supervisor) NewDir() (string, error) {
	parent := dirName(s.entry.Name())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == nil {
		dir, err := makeHeld(parent)
		if err != nil {
			return "", err
		}
		s.dir = dir
	}
	dir := filepath.Join(parent, strconv.FormatUint(s.groups.Add(1), 10))
	return dir, os.Mkdir(dir, 0o700)
}

// makeHeld makes a directory and locks it. It replaces a directory of an earlier supervisor with that name; a directory
// of another user, in a place where every user may write, is an error.
func makeHeld(name string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), leftoverTimeout)
	defer cancel()
	for {
		made := os.Mkdir(name, 0o700)
		if made != nil && !errors.Is(made, os.ErrExist) {
			return nil, made
		}
		dir, err := hold(name)
		switch {
		case err == nil && made == nil:
			return dir, nil
		case err == nil:
			err = removal.Tree(ctx, name)
			_ = dir.Close()
			if err != nil {
				return nil, err
			}
		case (errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ENOENT)) && ctx.Err() == nil:
			time.Sleep(time.Millisecond) // a collector has it, and finishes soon
		default:
			if made == nil {
				_ = os.Remove(name)
			}
			return nil, errors.Join(made, err)
		}
	}
}

// hold locks a directory of this user that no other process has locked. A supervisor keeps the lock until its end, so
// that a collector need not know where it is registered: another environment of the same user has another runtime
// directory. ENOENT means that the directory is gone, or replaced.
func hold(name string) (*os.File, error) {
	dir, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*os.File, error) {
		_ = dir.Close()
		return nil, &os.PathError{Op: "hold", Path: name, Err: err}
	}
	var held, named unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &held); err != nil {
		return fail(err)
	}
	if int(held.Uid) != os.Geteuid() { // in a directory where every user may write, the owner decides
		return fail(unix.EPERM)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fail(err)
	}
	if err := unix.Lstat(name, &named); err != nil || named.Dev != held.Dev || named.Ino != held.Ino {
		return fail(unix.ENOENT)
	}
	return dir, nil
}

// Close ends the registration. Every sandbox must be gone. A leftover that can not be removed is left to the next
// collector, and is an error. Close may be called twice.
func (s *Supervisor) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	err := s.Cgroups.Group(s.entry.Name()).Remove(ctx)
	// The directory that all supervisors share is removed with its last user; other supervisors may still use it.
	_ = s.Cgroups.Prune()
	s.mu.Lock()
	if s.dir != nil {
		err = errors.Join(err, removal.Tree(ctx, dirName(s.entry.Name())))
		_ = s.dir.Close()
		s.dir = nil
	}
	s.mu.Unlock()
	if err != nil {
		return errors.Join(err, s.entry.Abandon()) // the next collector finds it, and tries again
	}
	return s.entry.Close()
}

// Found is a leftover of a dead supervisor.
type Found struct {
	Kind    string // "cgroup", "directory" or "registration"
	Name    string
	Removed bool
	Problem error
}

// Collect finds the leftovers of dead supervisors and, unless dryRun, removes them. It does not touch living
// supervisors.
func Collect(ctx context.Context, dryRun bool) ([]Found, error) {
	leftovers, err := registry.Dead(RuntimeDir()) // both, if some could not be read
	var found []Found
	for _, name := range forgotten() {
		if dryRun {
			found = append(found, Found{Kind: "directory", Name: dirName(name)})
			continue
		}
		o, failed := registry.Adopt(RuntimeDir(), name)
		if err = errors.Join(err, failed); o != nil {
			leftovers = append(leftovers, o)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	for _, o := range leftovers {
		// A leftover that can not be removed must not use up the time of the others.
		own, done := context.WithTimeout(ctx, leftoverTimeout)
		found = append(found, collect(own, o, dryRun)...)
		done()
	}
	return found, err
}

// forgotten lists the names without a supervisor that still have a directory. A program of the supervisor that was still
// running during the collection may have made it again: runc makes its root, with all parents. Or the supervisor was
// registered in a runtime directory that is gone, as after the logout of its user.
func forgotten() (names []string) {
	at, err := os.Open(dirsAt)
	if err != nil {
		return nil // without the directory there are none
	}
	defer at.Close()
	files, _ := at.Readdirnames(-1)
	for _, file := range files {
		name, ok := strings.CutPrefix(file, dirPrefix())
		if !ok || registry.Alive(RuntimeDir(), name) {
			continue
		}
		if dir, err := hold(dirName(name)); err == nil {
			_ = dir.Close()
			names = append(names, name)
		}
	}
	return names
}

func collect(ctx context.Context, o *registry.Leftover, dryRun bool) []Found {
	var found []Found
	clean := true
	var roots []string
	if record := strings.TrimSpace(string(o.Record)); record != "" {
		roots = strings.Split(record, "\n")
	}
	tree, _ := cgroup.At(roots) // cgroups of other users have no leftovers of this user
	defer tree.Close()
	group := tree.Group(o.Name)
	if group.Exists() {
		f := Found{Kind: "cgroup", Name: o.Name}
		if !dryRun {
			f.Problem = group.Remove(ctx)
			f.Removed = f.Problem == nil
		}
		clean = f.Removed
		found = append(found, f)
	}
	// A locked directory belongs to a living supervisor with the same name in another registry.
	if dir, err := hold(dirName(o.Name)); err == nil {
		f := Found{Kind: "directory", Name: dirName(o.Name)}
		if !dryRun {
			f.Problem = removal.Tree(ctx, f.Name)
			f.Removed = f.Problem == nil
		}
		_ = dir.Close()
		clean = clean && f.Removed
		found = append(found, f)
	}
	f := Found{Kind: "registration", Name: o.Name}
	if dryRun || !clean {
		f.Problem = o.Release()
	} else {
		_ = tree.Prune() // the shared directory, if no other supervisor uses it
		f.Problem = o.Remove()
		f.Removed = f.Problem == nil
	}
	return append(found, f)
}

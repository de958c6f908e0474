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

// FirstID begins the host ids for sandboxes: a range that no distribution hands out (systemd's documentation calls
// 0x70000000…0x7fffffff unused), cut into a block per supervisor and a pair per sandbox.
const FirstID = 0x70000000

// How it is cut.
const (
	idsPerClaim    = 1 << 12
	idsPerSandbox  = 2
	MaxConcurrent  = idsPerClaim / idsPerSandbox // sandboxes of one supervisor alive at a time
	collectTimeout = 5 * time.Second
	orphanTimeout  = time.Second // of the former, for each
)

// RuntimeDir is where supervisors of this user register.
func RuntimeDir() string {
	if os.Geteuid() == 0 && FirstUserNS() {
		return "/run/sandbox-run"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "sandbox-run")
	}
	// In a user namespace anybody may be called anything, and all share this directory.
	return filepath.Join(os.TempDir(), fmt.Sprintf("sandbox-run-%d", OuterID(os.Geteuid())))
}

// OuterID is what an id of this process's user namespace is in the one around it; -1 if it is nothing there. The namespace
// around may call its own root 0 too: whoever is told 0 can not know.
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

// FirstUserNS reports whether this process's ids are what they are: it is in no user namespace but the machine's.
var FirstUserNS = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
})

// Supervisor is a claim. It owns its registry entry.
type Supervisor struct {
	Cgroups *cgroup.Tree
	entry   *registry.Entry
	groups  atomic.Uint64 // numbers groups and directories

	mu    sync.Mutex
	dir   *os.File                   // the directory all of ours are in, held from the first of them on
	taken [MaxConcurrent / 64]uint64 // bitmap of id pairs in use
}

// Open claims a place for this process.
func Open(tree *cgroup.Tree) (*Supervisor, error) {
	e, err := registry.Register(RuntimeDir(), []byte(strings.Join(tree.Roots(), "\n")))
	if err != nil {
		return nil, err
	}
	return &Supervisor{Cgroups: tree, entry: e}, nil
}

// Record notes a directory of cgroups that this process is about to make, for whoever collects should it be killed before it
// has a claim, or after. It is forgotten when the directory is gone.
func Record(root string) (forget func(), err error) {
	e, err := registry.Register(RuntimeDir(), []byte(root))
	if err != nil {
		return nil, err
	}
	return func() { _ = e.Close() }, nil // what is left of it the next collector removes
}

// NewGroup names a cgroup nobody else has; nothing is made yet.
func (s *Supervisor) NewGroup() *cgroup.Group {
	return s.Cgroups.Group(fmt.Sprintf("%s/%d", s.entry.Name(), s.groups.Add(1)))
}

// NewNest names a place nobody else has for an init that is owner and its programs; nothing is made yet.
func (s *Supervisor) NewNest(owner int) *cgroup.PhaseGroup {
	return s.Cgroups.PhaseGroup(fmt.Sprintf("%s/%d", s.entry.Name(), s.groups.Add(1)), owner)
}

// IDs takes a pair of host ids that no other living sandbox has: for the root and the user of its
// user namespace. The caller gives them back with Release.
func (s *Supervisor) IDs() (root, user int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w, word := range s.taken {
		if free := ^word; free != 0 {
			bit := bits.TrailingZeros64(free)
			s.taken[w] |= 1 << bit
			root = FirstID + s.entry.Slot()*idsPerClaim + (w*64+bit)*idsPerSandbox
			if weakenIDs {
				root = FirstID + s.entry.Slot()*idsPerClaim
			}
			return root, root + 1, nil
		}
	}
	return 0, 0, fmt.Errorf("%d sandboxes of this supervisor are alive already", MaxConcurrent)
}

// Release gives back a pair of ids.
func (s *Supervisor) Release(root int) {
	n := (root - FirstID - s.entry.Slot()*idsPerClaim) / idsPerSandbox
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[n/64] &^= 1 << (n % 64)
}

// dirName is where the directories of a claim are. Its place follows from its name, so that whoever
// collects a dead supervisor finds it without being told where to look.
func dirName(claim string) string {
	return filepath.Join(dirsAt, dirPrefix()+claim)
}

// dirsAt is where all of them are, and dirPrefix what the names of a user's begin with.
const dirsAt = "/var/tmp"

func dirPrefix() string { return fmt.Sprintf("sandbox-run-%d-", os.Geteuid()) }

// NewDir makes a directory nobody else has. The caller removes it.
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

// makeHeld makes a directory and holds it. What is there already is of one who had the name before, and goes; it stays if it is somebody else's, in a
// directory everybody may write to.
func makeHeld(name string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), orphanTimeout)
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
			time.Sleep(time.Millisecond) // a collector has it, and is done soon
		default:
			if made == nil {
				_ = os.Remove(name)
			}
			return nil, errors.Join(made, err)
		}
	}
}

// hold takes a directory of ours that nobody else holds. A supervisor holds its own until it ends, so that whoever would remove it need not
// know where it is registered: another environment of the same user has another runtime directory. ENOENT is of one that is gone, or another by now.
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
	if int(held.Uid) != os.Geteuid() { // in a directory everybody may write to, only what is ours is ours
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

// Close gives up the claim. Every sandbox must be gone. What can not be removed is left for the next collector, and is an
// error. Twice is fine.
func (s *Supervisor) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	err := s.Cgroups.Group(s.entry.Name()).Remove(ctx)
	// The directory all supervisors share goes with its last user; others may still be in it.
	_ = s.Cgroups.Prune()
	s.mu.Lock()
	if s.dir != nil {
		err = errors.Join(err, removal.Tree(ctx, dirName(s.entry.Name())))
		_ = s.dir.Close()
		s.dir = nil
	}
	s.mu.Unlock()
	if err != nil {
		return errors.Join(err, s.entry.Abandon()) // the next to collect finds it, and tries again
	}
	return s.entry.Close()
}

// Found is something a dead supervisor left.
type Found struct {
	Kind    string // "cgroup", "directory" or "registration"
	Name    string
	Removed bool
	Problem error
}

// Collect finds what dead supervisors left and, unless dryRun, removes it. Living ones are not touched.
func Collect(ctx context.Context, dryRun bool) ([]Found, error) {
	orphans, err := registry.Dead(RuntimeDir()) // both, when some could not be looked at
	var found []Found
	for _, name := range forgotten() {
		if dryRun {
			found = append(found, Found{Kind: "directory", Name: dirName(name)})
			continue
		}
		o, failed := registry.Adopt(RuntimeDir(), name)
		if err = errors.Join(err, failed); o != nil {
			orphans = append(orphans, o)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	for _, o := range orphans {
		// One that can not be removed must not use up the time of those that can.
		own, done := context.WithTimeout(ctx, orphanTimeout)
		found = append(found, collect(own, o, dryRun)...)
		done()
	}
	return found, err
}

// forgotten are the names of claims that nobody has and that have a directory all the same. A program that a supervisor had started, and that was
// still at work when everything was collected, may have made it again: runc makes its root, with all above it. Or the supervisor was registered where
// nothing is any more, as of a user who has logged out.
func forgotten() (names []string) {
	at, err := os.Open(dirsAt)
	if err != nil {
		return nil // then there is none
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

func collect(ctx context.Context, o *registry.Orphan, dryRun bool) []Found {
	var found []Found
	clean := true
	var roots []string
	if record := strings.TrimSpace(string(o.Record)); record != "" {
		roots = strings.Split(record, "\n")
	}
	tree, _ := cgroup.At(roots) // roots that are not ours to touch hold nothing of ours
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
	// One that somebody holds is of a supervisor that lives, and has the same name elsewhere.
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
		_ = tree.Prune() // the directory they shared, if nobody else is in it
		f.Problem = o.Remove()
		f.Removed = f.Problem == nil
	}
	return append(found, f)
}

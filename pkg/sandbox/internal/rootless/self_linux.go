package rootless

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/delegate"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/subid"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Identity has the host ids of a sandbox's root and user. As root, two ids that no other sandbox and no user has:
//
//	inside   root   user
//	host     a      a+1      as root
//	host     own    sub      an ordinary user with subordinate ids: what runs is not them
//	host     sub    own      the same, when the sandbox has volumes: what runs acts on them as their owner
//	host     -      own      an ordinary user without
//
// In the last two rows the init has the user's id as well: the cgroup files it needs belong to that user.
type Identity struct {
	Root       int // the argument of Release: as root, the host id of the sandbox's root
	UIDs, GIDs []syscall.SysProcIDMap
	Init       int    // the init, on the host
	Owner      int    // the sandbox's user, as the mount helper numbers ids
	Namespaces uint32 // host id that the namespaces belong to; 0: their maker's
	Stay       bool   // the init has the user's id
	KeepGroups bool   // groups can not be dropped
	Mapper     func(pid int, uids, gids []syscall.SysProcIDMap) error
}

// Self describes the ids that this process can give to sandboxes.
type Self struct {
	Privileged bool
	UID, GID   int          // own
	Grant      *subid.Grant // an ordinary user's, or nil
	NoGrant    error        // why there is none
	// NProc: RLIMIT_NPROC enforces the number of processes of a sandbox. It never stops the machine's root, and a
	// sandbox without an id of its own may run as that user.
	NProc bool
}

// Look determines the ids and rights of this process. Root without the capability to mount, or root of a user namespace
// only, counts as an ordinary user.
func Look() Self {
	w := Self{Privileged: os.Geteuid() == 0 && hasCapability(unix.CAP_SYS_ADMIN) &&
		supervisor.FirstUserNS(), UID: os.Geteuid(), GID: os.Getegid()}
	if !w.Privileged {
		w.Grant, w.NoGrant = subid.Lookup()
	}
	// Since Linux 5.14 RLIMIT_NPROC counts the processes of an id in its user namespace, before that in the whole machine.
	w.NProc = cgroup.KernelIsAtLeast(5, 14) && (w.Privileged || supervisor.OuterID(w.UID) > 0)
	return w
}

// NeedsOwn reports whether the user of a sandbox must be the supervisor's own: the sandbox uses that user's files.
func NeedsOwn(spec *sandbox.Spec) bool {
	return len(spec.Volumes) > 0 || spec.Root.Dir != "" || len(spec.Root.HostPaths) > 0
}

// Identify reserves ids for a sandbox. The caller releases them.
func (w Self) Identify(s *supervisor.Supervisor, user sandbox.User, own bool) (*Identity, error) {
	root, userID, err := s.IDs()
	if err != nil {
		return nil, fmt.Errorf("take ids: %w", err)
	}
	one := func(inside, host int) syscall.SysProcIDMap {
		return syscall.SysProcIDMap{ContainerID: inside, HostID: host, Size: 1}
	}
	id := &Identity{Root: root, Init: w.UID}
	if w.Privileged {
		id.Init, id.Owner, id.Namespaces = root, userID, uint32(root)
		id.UIDs = []syscall.SysProcIDMap{one(0, root), one(user.UID, userID)}
		id.GIDs = []syscall.SysProcIDMap{one(0, root), one(user.GID, userID)}
		return id, nil
	}
	if w.Grant == nil {
		id.Stay, id.KeepGroups = true, true
		id.UIDs, id.GIDs = []syscall.SysProcIDMap{one(user.UID, w.UID)}, []syscall.SysProcIDMap{one(user.GID, w.GID)}
		return id, nil
	}
	id.Mapper = w.Grant.Map
	nth := (root - supervisor.FirstID) / 2 % min(w.Grant.UIDs.Count, w.Grant.GIDs.Count)
	subUID, subGID := w.Grant.UIDs.First+nth, w.Grant.GIDs.First+nth
	if own {
		id.Stay = true
		id.UIDs = []syscall.SysProcIDMap{one(0, subUID), one(user.UID, w.UID)}
		id.GIDs = []syscall.SysProcIDMap{one(0, subGID), one(user.GID, w.GID)}
		return id, nil
	}
	id.Owner = 1 + nth
	id.UIDs = []syscall.SysProcIDMap{one(0, w.UID), one(user.UID, subUID)}
	id.GIDs = []syscall.SysProcIDMap{one(0, w.GID), one(user.GID, subGID)}
	return id, nil
}

// helperMaps are the ids of a mount helper's user namespace: it is root there, and has every id that a sandbox may have.
func (w Self) helperMaps() (o spawn.Options) {
	o.UIDs = []syscall.SysProcIDMap{{ContainerID: 0, HostID: w.UID, Size: 1}}
	o.GIDs = []syscall.SysProcIDMap{{ContainerID: 0, HostID: w.GID, Size: 1}}
	if w.Grant == nil {
		o.KeepGroups = true
		return o
	}
	o.Map = w.Grant.Map
	o.UIDs = append(o.UIDs, syscall.SysProcIDMap{ContainerID: 1, HostID: w.Grant.UIDs.First, Size: w.Grant.UIDs.Count})
	o.GIDs = append(o.GIDs, syscall.SysProcIDMap{ContainerID: 1, HostID: w.Grant.GIDs.First, Size: w.Grant.GIDs.Count})
	return o
}

func hasCapability(c int) bool {
	var header unix.CapUserHeader
	var data [2]unix.CapUserData
	header.Version = unix.LINUX_CAPABILITY_VERSION_3
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}

// readNumber reads a sysctl; -1 when there is none.
func readNumber(file string) int {
	text, err := os.ReadFile(file)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return n
}

// Groups says how this process may get cgroups that limit; move allows this process to be moved for it. Root needs no
// help.
func (w Self) Groups(move bool) cgroup.Options {
	groups := cgroup.Options{MoveToLeaf: move, Record: supervisor.Record}
	if !w.Privileged {
		groups.Ask = func() error { return delegate.Obtain(context.Background()) }
	}
	return groups
}

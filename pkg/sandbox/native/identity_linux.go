package native

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/subid"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// identity is who a sandbox's root and user are outside. As root, two ids that nobody else has:
//
//	inside   root   user
//	host     a      a+1      as root
//	host     own    sub      an ordinary user with subordinate ids: what runs is not them
//	host     sub    own      the same, when the sandbox has volumes: what runs acts on them as their owner
//	host     -      own      an ordinary user without
//
// In the last two the init has the user's id as well: the cgroup files it needs are that user's.
type identity struct {
	root       int // what Release wants back: as root, the host id of the sandbox's root
	uids, gids []syscall.SysProcIDMap
	init       int    // the init, on the host
	owner      int    // the sandbox's user, as the workshop numbers ids
	namespaces uint32 // host id that the namespaces belong to; 0: whoever makes them
	stay       bool   // the init has the user's id
	keepGroups bool   // groups can not be dropped
	mapper     func(pid int, uids, gids []syscall.SysProcIDMap) error
}

// who says what ids this process has to give.
type who struct {
	privileged bool
	uid, gid   int          // own
	grant      *subid.Grant // an ordinary user's, or nil
	noGrant    error        // why there is none
	// nproc: RLIMIT_NPROC keeps the number of processes of a sandbox. Of all users, the machine's root is the one that it
	// never stops, and a sandbox of ours that has no other id may be that.
	nproc bool
}

// lookAtSelf finds out who we are. Root without the capability to mount, or of a user namespace only, is an ordinary user
// whatever it is called.
func lookAtSelf() who {
	w := who{privileged: os.Geteuid() == 0 && hasCapability(unix.CAP_SYS_ADMIN) && supervisor.FirstUserNS(), uid: os.Geteuid(), gid: os.Getegid()}
	if !w.privileged {
		w.grant, w.noGrant = subid.Lookup()
	}
	w.nproc = countsPerNamespace() && (w.privileged || supervisor.OuterID(w.uid) > 0)
	return w
}

// needsOwn says that the user of a sandbox must be ourselves: it is to use what is ours.
func needsOwn(spec *sandbox.Spec) bool {
	return len(spec.Volumes) > 0 || spec.Root.Dir != "" || len(spec.Root.HostPaths) > 0
}

// identify takes ids for a sandbox. The caller releases them.
func (w who) identify(s *supervisor.Supervisor, user sandbox.User, own bool) (*identity, error) {
	root, userID, err := s.IDs()
	if err != nil {
		return nil, failure("take ids", "supervisor", err)
	}
	one := func(inside, host int) syscall.SysProcIDMap {
		return syscall.SysProcIDMap{ContainerID: inside, HostID: host, Size: 1}
	}
	id := &identity{root: root, init: w.uid}
	if w.privileged {
		id.init, id.owner, id.namespaces = root, userID, uint32(root)
		id.uids = []syscall.SysProcIDMap{one(0, root), one(user.UID, userID)}
		id.gids = []syscall.SysProcIDMap{one(0, root), one(user.GID, userID)}
		return id, nil
	}
	if w.grant == nil {
		id.stay, id.keepGroups = true, true
		id.uids, id.gids = []syscall.SysProcIDMap{one(user.UID, w.uid)}, []syscall.SysProcIDMap{one(user.GID, w.gid)}
		return id, nil
	}
	id.mapper = w.grant.Map
	nth := (root - supervisor.FirstID) / 2 % min(w.grant.UIDs.Count, w.grant.GIDs.Count)
	subUID, subGID := w.grant.UIDs.First+nth, w.grant.GIDs.First+nth
	if own {
		id.stay = true
		id.uids = []syscall.SysProcIDMap{one(0, subUID), one(user.UID, w.uid)}
		id.gids = []syscall.SysProcIDMap{one(0, subGID), one(user.GID, w.gid)}
		return id, nil
	}
	id.owner = 1 + nth
	id.uids = []syscall.SysProcIDMap{one(0, w.uid), one(user.UID, subUID)}
	id.gids = []syscall.SysProcIDMap{one(0, w.gid), one(user.GID, subGID)}
	return id, nil
}

// start clones an init into fresh namespaces, and into its nest.
func (id *identity) start(nest *cgroup.Nest) (*spawn.Init, error) {
	cradle, err := nest.Cradle()
	if err != nil {
		return nil, failure("make cgroup of init", "cgroup", err)
	}
	defer cradle.Close() // nil is fine
	init, err := spawn.Start(spawn.Options{
		Namespaces: cloneFlags, UIDs: id.uids, GIDs: id.gids, Owner: id.namespaces, KeepGroups: id.keepGroups, Map: id.mapper, Cgroup: cradle,
	})
	return init, failure("start init", "namespaces", err)
}

// stewardMaps are the ids of a steward's user namespace: it is root there, and has every id that one of our sandboxes
// may have.
func (w who) stewardMaps() (o spawn.Options) {
	o.UIDs = []syscall.SysProcIDMap{{ContainerID: 0, HostID: w.uid, Size: 1}}
	o.GIDs = []syscall.SysProcIDMap{{ContainerID: 0, HostID: w.gid, Size: 1}}
	if w.grant == nil {
		o.KeepGroups = true
		return o
	}
	o.Map = w.grant.Map
	o.UIDs = append(o.UIDs, syscall.SysProcIDMap{ContainerID: 1, HostID: w.grant.UIDs.First, Size: w.grant.UIDs.Count})
	o.GIDs = append(o.GIDs, syscall.SysProcIDMap{ContainerID: 1, HostID: w.grant.GIDs.First, Size: w.grant.GIDs.Count})
	return o
}

package box

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

func (h *Host) scratchOptions(l sandbox.Limits) scratch.Options {
	return scratch.Options{Bytes: uint64(l.Disk), Inodes: uint64(l.Inodes), CacheDir: h.Options.CacheDir, Floor: uint64(h.Options.DiskFloor)}
}

// scratchMode is what a scratch is made of where that was left to us, and why it is not a disk.
func (h *Host) scratchMode(asked sandbox.ScratchMode) (mode sandbox.ScratchMode, shared string) {
	if asked != sandbox.ScratchAuto {
		return asked, ""
	}
	if err := scratch.DiskAvailable(h.Options.CacheDir); err != nil {
		return sandbox.ScratchMemory, err.Error()
	}
	return sandbox.ScratchDisk, ""
}

// earlyScratch is a scratch that is made before its size is known: most have the default size.
type earlyScratch struct {
	wanted scratch.Options
	owner  int

	made    chan struct{} // closed when the rest is known
	mode    sandbox.ScratchMode
	shared  string // why it is not on disk
	scratch *scratch.Scratch
	err     error
}

// MakeEarlyScratch makes the scratch of an eager backend's first sandbox, in the background and once, for the user with that id.
func (h *Host) MakeEarlyScratch(mounts rootless.MountHelper, owner int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.begun {
		return
	}
	e := &earlyScratch{wanted: h.scratchOptions(sandbox.DefaultLimits()), owner: owner, made: make(chan struct{})}
	h.begun, h.early = true, e
	go func() {
		defer close(e.made)
		e.mode, e.shared = h.scratchMode(sandbox.ScratchAuto)
		e.scratch, e.err = mounts.Scratch(e.mode, e.wanted, e.owner)
	}()
}

// takeEarlyScratch returns the early scratch if it fits the options, and nil otherwise. It drops one that does not fit
// in the background.
func (h *Host) takeEarlyScratch(mode sandbox.ScratchMode, o scratch.Options, owner int) *earlyScratch {
	h.mu.Lock()
	e := h.early
	h.early = nil
	h.mu.Unlock()
	if e == nil {
		return nil
	}
	if e.wanted == o && e.owner == owner {
		<-e.made
		if e.err == nil && (mode == sandbox.ScratchAuto || mode == e.mode) {
			return e
		}
	}
	h.dropLater(func() error {
		if <-e.made; e.err != nil {
			return nil // the sandbox that needs one tries again, and its caller gets the error
		}
		return h.Failure("drop scratch", "scratch", e.scratch.Close())
	})
	return nil
}

// DropEarlyScratch drops an early scratch that no sandbox has taken.
func (h *Host) DropEarlyScratch() { h.takeEarlyScratch("", scratch.Options{}, 0) }

// EarlyScratch waits until the early scratch is made, and returns it; nil if there is none, or a sandbox has taken it.
func (h *Host) EarlyScratch() *scratch.Scratch {
	h.mu.Lock()
	e := h.early
	h.mu.Unlock()
	if e == nil {
		return nil
	}
	<-e.made
	return e.scratch
}

// MakeScratch makes the scratch of the sandbox.
func (i *Instance) MakeScratch() (err error) {
	h, o := i.Host, i.Host.scratchOptions(i.Spec.Limits)
	var shared string
	if e := h.takeEarlyScratch(i.Spec.Scratch, o, i.ID.Owner); e != nil {
		i.Scratch, shared = e.scratch, e.shared
	} else {
		var mode sandbox.ScratchMode
		mode, shared = h.scratchMode(i.Spec.Scratch)
		if i.Scratch, err = i.Mounts.Scratch(mode, o, i.ID.Owner); err != nil {
			return err
		}
	}
	// A mode that was asked for by name is no gap; and a resource that the machine had at the capability check may be
	// gone.
	err = i.Revise(func(iso *sandbox.Isolation) error {
		iso.Missing = slices.DeleteFunc(iso.Missing, func(g sandbox.Gap) bool { return g.Control == sandbox.ControlDisk })
		if shared != "" {
			addDiskGap(iso, shared)
		}
		return nil
	})
	i.Scratch.OnFloor(i.stopAll)
	return err
}

// OpenDisk keeps a descriptor of the scratch's mount for the first init.
func (i *Instance) OpenDisk() (err error) {
	i.Disk, err = unix.FcntlInt(i.Scratch.File().Fd(), unix.F_DUPFD_CLOEXEC, 3)
	return i.Host.Failure("make scratch", "scratch", err)
}

// RemakeScratch replaces the scratch after an init died with the first one: it has no data yet.
func (i *Instance) RemakeScratch() error {
	for _, fd := range []*int{&i.Disk, &i.WritableRoot} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	if err := i.Scratch.Close(); err != nil {
		return i.Host.Failure("drop scratch", "scratch", err)
	}
	if err := i.MakeScratch(); err != nil {
		return err
	}
	return i.OpenDisk()
}

// CopyRoot returns a copy of the sandbox's root for one init.
func (i *Instance) CopyRoot() (int, error) {
	if !i.Spec.WritableRoot {
		return i.Mounts.Root(i.Spec)
	}
	if i.WritableRoot < 0 {
		root, rest, err := i.Mounts.WritableRoot(i.Spec, i.ID.Owner, i.Disk)
		if err != nil {
			return -1, err
		}
		_ = unix.Close(i.Disk)
		i.WritableRoot, i.Disk = root, rest
	}
	return i.cloneMount(&i.WritableRoot)
}

// CopyDisk returns the scratch's mount for one init, and whether it is the first. The first init takes the mount itself and sends back a
// clone for KeepDisk. Later ones get a copy, which the caller closes.
func (i *Instance) CopyDisk() (disk int, first bool, err error) {
	if !i.Inhabited {
		return i.Disk, true, nil
	}
	disk, err = i.cloneMount(&i.Disk)
	return disk, false, err
}

// KeepDisk keeps the clone of the scratch's mount that the first init has sent back, and owns it.
func (i *Instance) KeepDisk(clone int) {
	_ = unix.Close(i.Disk)
	i.Disk, i.Inhabited = clone, true
}

// cloneMount makes a second mount of a detached one, which the supervisor keeps: the mount that an init gets is gone
// when the init dies.
func (i *Instance) cloneMount(mount *int) (int, error) {
	one, other, err := i.Mounts.CloneMount(*mount)
	if other >= 0 {
		_ = unix.Close(*mount)
		*mount = other
	}
	return one, err
}

// addDiskGap reports that the disk limit is enforced, but takes from the memory limit.
func addDiskGap(iso *sandbox.Isolation, why string) {
	iso.Lack(sandbox.ControlDisk, sandbox.Enforced, "shared with memory: "+why, "see the reason, or ask for --scratch memory")
}

// addOvercommit reports that scratches may take more than the host's disk has, as a gap of the disk limit.
func (i *Instance) addOvercommit(iso *sandbox.Isolation) {
	over, floor := i.Scratch.Overcommitted()
	if over == 0 {
		return
	}
	iso.Lack(sandbox.ControlDisk, sandbox.Enforced,
		fmt.Sprintf("overcommitted: the scratches on the host's disk may take %v more than it has above its floor of %v;"+
			" sandboxes are stopped when it is reached",
			sandbox.Size(over), sandbox.Size(floor)),
		"free some space below "+i.Host.Options.CacheDir+", or ask for a smaller --disk")
}

package native

import (
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// disk is a scratch that is being made before anybody has said how large it should be: most want the default.
type disk struct {
	wanted scratch.Options
	owner  int

	made    chan struct{} // closed when the rest is known
	mode    sandbox.ScratchMode
	shared  string // why it is not on disk
	scratch *scratch.Scratch
	err     error
}

// beginDisk makes the disk of the newborn that an eager backend keeps, once. With mu held.
func (b *Backend) beginDisk(shop rootless.Workshop) {
	if b.begun || b.nursery.next == nil {
		return
	}
	b.begun = true
	d := &disk{wanted: b.diskOptions(sandbox.DefaultLimits()), owner: b.nursery.next.id.Owner, made: make(chan struct{})}
	b.ahead = d
	go func() {
		defer close(d.made)
		d.mode, d.shared = b.scratchMode(sandbox.ScratchAuto)
		d.scratch, d.err = shop.Scratch(d.mode, d.wanted, d.owner)
	}()
}

// takeDisk returns the disk that was begun, if it is what is wanted. One that is not is dropped beside whatever comes next.
func (b *Backend) takeDisk(mode sandbox.ScratchMode, o scratch.Options, owner int) *disk {
	b.mu.Lock()
	d := b.ahead
	b.ahead = nil
	b.mu.Unlock()
	if d == nil {
		return nil
	}
	if d.wanted == o && d.owner == owner {
		<-d.made
		if d.err == nil && (mode == sandbox.ScratchAuto || mode == d.mode) {
			return d
		}
	}
	b.dropLater(func() error {
		if <-d.made; d.err != nil {
			return nil // whoever needs one tries again, and has somebody to tell
		}
		return failure("drop scratch", "scratch", d.scratch.Close())
	})
	return nil
}

// dropLater has Close wait for the end of a disk and what goes with it, and tell what became of them.
func (b *Backend) dropLater(drop func() error) {
	b.dropping.Go(func() {
		if err := drop(); err != nil {
			b.leftMu.Lock()
			defer b.leftMu.Unlock()
			b.left = append(b.left, err)
		}
	})
}

func (b *Backend) diskOptions(l sandbox.Limits) scratch.Options {
	return scratch.Options{Bytes: uint64(l.Disk), Inodes: uint64(l.Inodes), CacheDir: b.opts.CacheDir, Floor: uint64(b.opts.DiskFloor)}
}

// scratchMode is what a scratch is made of where it was left to us, and why it is not a disk.
func (b *Backend) scratchMode(asked sandbox.ScratchMode) (mode sandbox.ScratchMode, shared string) {
	if asked != sandbox.ScratchAuto {
		return asked, ""
	}
	if err := scratch.DiskAvailable(b.opts.CacheDir); err != nil {
		return sandbox.ScratchMemory, err.Error()
	}
	return sandbox.ScratchDisk, ""
}

package scratch

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrFloor says that a file system has less space left than its floor.
	ErrFloor = errors.New("the host's disk is below its floor of free space")
	// ErrLost says that what was written to a scratch did not reach the file behind it.
	ErrLost = errors.New("the host's disk has lost what was written to the scratch")
)

// The default floor is the smaller of these.
const (
	floorBytes    = 1 << 30
	floorFraction = 20 // of the file system's size
)

// How often free space is looked at: the less there is above the floor, the sooner again.
const (
	fillRate      = 4 << 30 // bytes a second that sandboxes may write
	lookSoonest   = time.Millisecond
	lookLatest    = 250 * time.Millisecond
	refreshPeriod = time.Second // of what this process's disks may still take
)

// hostDisk is a file system with the disks that this process has on it. Guarded by the mutex of hostDisks.
type hostDisk struct {
	dev       uint64
	disks     map[*share]struct{}
	left      uint64 // the sum of theirs
	refreshed time.Time
	timer     *time.Timer // looks at the free space; nil without disks
}

// share is what one disk has of its host's.
type share struct {
	backing     *os.File
	size, floor uint64
	left        uint64    // that it may still take, when it was last looked at
	over        uint64    // the most by which the file system was overcommitted
	seen        time.Time // when that was looked at
	stop        func(error)
}

// Space is what the file system of a descriptor has free, and its floor where none was set.
func Space(fd int) (free, floor uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs of the host's disk: %w", err)
	}
	unit := uint64(st.Bsize)
	return st.Bavail * unit, min(floorBytes, st.Blocks*unit/floorFraction), nil
}

// admit enters a disk of that size into the account of its file system. It is refused where the file system, once it
// has the first bytes of the disk, would have less free space than the floor, 0 being the default.
func admit(backing *os.File, size, first, floor uint64) (*hostDisk, *share, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(backing.Fd()), &st); err != nil {
		return nil, nil, fmt.Errorf("stat the backing file: %w", err)
	}
	hostDisks.Lock()
	defer hostDisks.Unlock()
	free, usual, err := Space(int(backing.Fd()))
	if err != nil {
		return nil, nil, err
	}
	if floor == 0 {
		floor = usual
	}
	if free < first || free-first < floor {
		return nil, nil, fmt.Errorf("%w: %d bytes are free, the disk floor is %d: %w", ErrFloor, free, floor, unix.ENOSPC)
	}
	h := hostDisks.open[st.Dev]
	if h == nil {
		h = &hostDisk{dev: st.Dev, disks: map[*share]struct{}{}}
	}
	d := &share{backing: backing, size: size, floor: floor, left: size}
	others, err := h.note(h.left + size)
	if err != nil {
		return nil, nil, err
	}
	h.left += size
	h.disks[d] = struct{}{}
	d.over, d.seen = overcommit(free, floor, h.left, others), time.Now()
	if hostDisks.open == nil {
		hostDisks.open = map[uint64]*hostDisk{}
	}
	hostDisks.open[st.Dev] = h
	if h.timer == nil {
		h.refreshed, h.timer = time.Now(), time.AfterFunc(pause(free, floor), h.watch)
	}
	return h, d, nil
}

// note writes to the ledger what the disks of this process may still take, and returns what those of others may.
func (h *hostDisk) note(left uint64) (others uint64, err error) {
	l := hostDisks.ledger
	if l == nil || !l.linked() {
		if l, err = openLedger(); err != nil {
			return 0, err
		}
		if hostDisks.ledger != nil {
			_ = hostDisks.ledger.file.Close()
		}
		hostDisks.ledger = l
	}
	return l.exchange(h.dev, left)
}

func overcommit(free, floor, left, others uint64) uint64 {
	return left + others - min(left+others, free-min(free, floor))
}

// leave takes a disk out of the account.
func (h *hostDisk) leave(d *share) {
	hostDisks.Lock()
	defer hostDisks.Unlock()
	h.left -= d.left
	delete(h.disks, d)
	if len(h.disks) == 0 {
		h.timer.Stop()
		h.timer = nil
	}
	_, _ = h.note(h.left) // at worst others count it until this process notes something else, or ends
	_ = d.backing.Close()
}

// Overcommitted is by how much the disks that are on the same file system, those of other processes included, may still take
// more than it has above its floor: the most that was seen when the disk was made, and now. What was seen less than a second ago is not
// looked at again.
func (s *Scratch) Overcommitted() (bytes, floor uint64) {
	if s.share == nil {
		return 0, 0
	}
	d := s.share
	_ = s.Use(func(int) error {
		hostDisks.Lock()
		defer hostDisks.Unlock()
		if time.Since(d.seen) < refreshPeriod {
			return nil
		}
		free, _, err := Space(int(d.backing.Fd()))
		if err != nil {
			return err
		}
		s.host.refresh()
		others, err := s.host.note(s.host.left)
		if err == nil {
			d.over, d.seen = max(d.over, overcommit(free, d.floor, s.host.left, others)), time.Now()
		}
		return err
	})
	hostDisks.Lock()
	defer hostDisks.Unlock()
	return d.over, d.floor
}

// OnFloor has stop called whenever the file system below the disk is found to have less free space than the floor, until
// Close. It is called from a goroutine that is not the caller's, again and again while that is so, and must not block.
func (s *Scratch) OnFloor(stop func(error)) {
	if s.share == nil {
		return
	}
	hostDisks.Lock()
	defer hostDisks.Unlock()
	s.share.stop = stop
}

// refresh looks how much the disks of this process may still take, at most once in a while.
func (h *hostDisk) refresh() (changed bool) {
	if time.Since(h.refreshed) < refreshPeriod {
		return false
	}
	before := h.left
	h.left = 0
	for d := range h.disks {
		var st unix.Stat_t
		if unix.Fstat(int(d.backing.Fd()), &st) == nil {
			d.left = d.size - min(d.size, uint64(st.Blocks)*512)
		}
		h.left += d.left
	}
	h.refreshed = time.Now()
	return h.left != before
}

// pause is how long free space need not be looked at.
func pause(free, floor uint64) time.Duration {
	left := time.Duration(float64(free-min(free, floor)) / fillRate * float64(time.Second))
	return min(max(left, lookSoonest), lookLatest)
}

// watch looks at the free space of a file system, and has itself called again while there are disks on it.
func (h *hostDisk) watch() {
	for _, stop := range h.look() {
		stop()
	}
}

// look finds the disks whose floor was crossed, and says when to look again.
func (h *hostDisk) look() (stops []func()) {
	hostDisks.Lock()
	defer hostDisks.Unlock()
	if h.timer == nil {
		return nil // the last disk is gone
	}
	next := lookLatest
	defer func() { h.timer.Reset(next) }()
	free, known := uint64(0), false
	for d := range h.disks {
		if !known {
			var err error
			if free, _, err = Space(int(d.backing.Fd())); err != nil {
				return nil
			}
			known = true
		}
		next = min(next, pause(free, d.floor))
		if stop := d.stop; free < d.floor && stop != nil {
			err := fmt.Errorf("%w: %d bytes are free, the disk floor is %d", ErrFloor, free, d.floor)
			stops = append(stops, func() { stop(err) })
		}
	}
	if h.refresh() {
		_, _ = h.note(h.left) // admission counts too much until the next time
	}
	return stops
}

// CheckBacking returns an error that wraps ErrLost when something that was written to the disk did not reach the host's. Nothing is
// written back for it: what waits in memory has not failed, and is what a reader gets. So what was read from the disk before
// a check that finds nothing is what was written.
func (s *Scratch) CheckBacking() error {
	if s.share == nil {
		return nil
	}
	// A disk that is closed was checked by Close.
	_ = s.Use(func(fd int) error { s.checkBacking(fd); return nil })
	if s.lost.Load() {
		return fmt.Errorf("scratch: %w", ErrLost)
	}
	return nil
}

// checkBacking sets lost. With mu held, for reading at least.
func (s *Scratch) checkBacking(fd int) {
	// The kernel tells of an earlier failure whatever part of a file is asked about. No page is beyond the end: nothing is waited for.
	const beyond = math.MaxInt64 - blockSize
	for _, f := range []*os.File{s.share.backing, s.device} {
		if err := unix.SyncFileRange(int(f.Fd()), beyond, blockSize, unix.SYNC_FILE_RANGE_WAIT_BEFORE); err != nil {
			s.lost.Store(true) // it is told once
		}
	}
	ext4 := "/sys/fs/ext4/loop" + strconv.Itoa(s.loop.number)
	if s.lost.Load() || isZero(ext4+"/warning_count") && isZero(ext4+"/errors_count") {
		return
	}
	// A failed write is among what ext4 warns of; so is a directory that is too full. Only syncfs tells them apart.
	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Syncfs(root)
		_ = unix.Close(root)
	}
	if err != nil || !isZero(ext4+"/errors_count") {
		s.lost.Store(true)
	}
}

// isZero reports whether a counter of the kernel's is 0; one that can not be read is not.
func isZero(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var buf [4]byte
	n, err := unix.Read(fd, buf[:])
	return err == nil && string(buf[:n]) == "0\n"
}

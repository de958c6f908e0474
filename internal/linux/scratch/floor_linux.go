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
	// ErrFloor says that the free space of a file system is below its floor.
	ErrFloor = errors.New("the host's disk is below its floor of free space")
	// ErrLost says that data that was written to a scratch did not reach the file behind it.
	ErrLost = errors.New("the host's disk has lost what was written to the scratch")
)

// The default floor is the smaller of these.
const (
	floorBytes    = 1 << 30
	floorFraction = 20 // of the file system's size
)

// The intervals of the checks of free space: the less there is above the floor, the sooner the next.
const (
	fillRate      = 4 << 30 // bytes a second that sandboxes may write
	lookSoonest   = time.Millisecond
	lookLatest    = 250 * time.Millisecond
	refreshPeriod = time.Second // of what this process's disks may still take
)

// hostDisk is a file system with this process's disks on it. Guarded by the mutex of hostDisks.
type hostDisk struct {
	dev       uint64
	disks     map[*share]struct{}
	left      uint64 // the sum of theirs
	refreshed time.Time
	timer     *time.Timer // looks at the free space; nil without disks
}

// share is the part of one disk in its file system.
type share struct {
	backing     *os.File
	size, floor uint64
	left        uint64    // that it may still take, at the last check
	over        uint64    // the most by which the file system was overcommitted
	seen        time.Time // time of that check
	stop        func(error)
}

// Space returns the free space of the file system of a descriptor, and its default floor.
func Space(fd int) (free, floor uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs of the host's disk: %w", err)
	}
	unit := uint64(st.Bsize)
	return st.Bavail * unit, min(floorBytes, st.Blocks*unit/floorFraction), nil
}

// admit enters a disk of that size into the account of its file system. It refuses the disk if its first bytes would
// leave less free space than the floor, 0 being the default.
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

// note writes to the ledger how much the disks of this process may still take, and returns how much those of other
// processes may.
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

// leave removes a disk from the account.
func (h *hostDisk) leave(d *share) {
	hostDisks.Lock()
	defer hostDisks.Unlock()
	h.left -= d.left
	delete(h.disks, d)
	if len(h.disks) == 0 {
		h.timer.Stop()
		h.timer = nil
	}
	_, _ = h.note(h.left) // at worst other processes count it until this one writes its next note, or ends
	_ = d.backing.Close()
}

// Overcommitted is the amount by which the disks on the same file system, those of other processes included, may still
// exceed the space above its floor: the maximum of the value at the creation of the disk and of the present one. A value
// that is less than a second old is not refreshed.
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

// OnFloor sets stop, which is called whenever the free space of the disk's file system is below the floor, until Close.
// It is called from another goroutine, repeatedly while that is so, and must not block.
func (s *Scratch) OnFloor(stop func(error)) {
	if s.share == nil {
		return
	}
	hostDisks.Lock()
	defer hostDisks.Unlock()
	s.share.stop = stop
}

// refresh checks how much the disks of this process may still take, at most once per refreshPeriod.
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

// pause is the time until the next check of the free space.
func pause(free, floor uint64) time.Duration {
	left := time.Duration(float64(free-min(free, floor)) / fillRate * float64(time.Second))
	return min(max(left, lookSoonest), lookLatest)
}

// watch checks the free space of a file system, and reschedules itself while there are disks on it.
func (h *hostDisk) watch() {
	for _, stop := range h.look() {
		stop()
	}
}

// look finds the disks whose floor was crossed, and returns the time of the next check.
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
		_, _ = h.note(h.left) // admission counts too much until the next note
	}
	return stops
}

// CheckBacking returns an error that wraps ErrLost if data that was written to the disk did not reach the host's. It
// writes nothing back: dirty pages in memory have not failed, and readers get them. So data that was read from the disk
// before a successful check is the data that was written.
func (s *Scratch) CheckBacking() error {
	if s.share == nil {
		return nil
	}
	// Close has checked a closed disk.
	_ = s.Use(func(fd int) error { s.checkBacking(fd); return nil })
	if s.lost.Load() {
		return fmt.Errorf("scratch: %w", ErrLost)
	}
	return nil
}

// checkBacking sets lost. With mu held, at least for reading.
func (s *Scratch) checkBacking(fd int) {
	// The kernel reports an earlier failure for any part of a file. This range is beyond the end and has no pages: the
	// call does not wait.
	const beyond = math.MaxInt64 - blockSize
	for _, f := range []*os.File{s.share.backing, s.device} {
		if err := unix.SyncFileRange(int(f.Fd()), beyond, blockSize, unix.SYNC_FILE_RANGE_WAIT_BEFORE); err != nil {
			s.lost.Store(true) // the kernel reports it once
		}
	}
	ext4 := "/sys/fs/ext4/loop" + strconv.Itoa(s.loop.number)
	if s.lost.Load() || isZero(ext4+"/warning_count") && isZero(ext4+"/errors_count") {
		return
	}
	// ext4 warns of a failed write, and also of a directory that is too full. Only syncfs distinguishes them.
	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Syncfs(root)
		_ = unix.Close(root)
	}
	if err != nil || !isZero(ext4+"/errors_count") {
		s.lost.Store(true)
	}
}

// isZero reports whether a counter of the kernel is 0; an unreadable one is not.
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

package scratch

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	loopControl = "/dev/loop-control"
	// loopTries bounds the retries when other processes take the offered device. Each retry means that another process
	// made progress.
	loopTries = 1000
)

// loopMu keeps the goroutines of this process from racing each other for the same free device.
var loopMu sync.Mutex

// loopDevice is one binding of a loop device. The number is reused by others afterwards, the sequence number never is.
type loopDevice struct {
	number   int
	sequence uint64
}

func (d *loopDevice) path() string { return "/dev/loop" + strconv.Itoa(d.number) }

// attachLoop binds a free loop device to a file. The kernel unbinds it when the last descriptor and mount of the device
// are gone; the returned descriptor, which the caller closes, is the first of them.
func attachLoop(backing int) (*loopDevice, int, error) {
	control, err := unix.Open(loopControl, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("scratch: open %s: %w%s", loopControl, err, absent(err, "; load the loop module or use a scratch of memory"))
	}
	defer unix.Close(control)
	loopMu.Lock()
	defer loopMu.Unlock()
	for range loopTries {
		d, fd, err := tryLoop(control, backing)
		switch {
		case err == nil:
			return d, fd, nil
		case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EAGAIN):
			continue // another process was faster, or removed the device
		}
		return nil, -1, err
	}
	return nil, -1, fmt.Errorf("scratch: find a free loop device: taken by others %d times: %w", loopTries, unix.EBUSY)
}

// absent returns advice for a device that is missing or not accessible.
func absent(err error, advice string) string {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EPERM) ||
		errors.Is(err, unix.EACCES) {
		return advice
	}
	return ""
}

func tryLoop(control, backing int) (*loopDevice, int, error) {
	number, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, -1, fmt.Errorf("scratch: LOOP_CTL_GET_FREE: %w", err)
	}
	d := &loopDevice{number: number}
	fd, err := unix.Open(d.path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("scratch: open %s: %w%s", d.path(), err, absent(err, "; in a container /dev needs the loop devices' nodes"))
	}
	// Not LO_FLAGS_DIRECT_IO: measurements show no faster writes under a memory limit (the pages of the backing are
	// charged to the writer too, but reclaimed as easily as the disk's own) and twice the time of an fsync. With a block
	// size other than the file system's, mounting would drop the device's pages.
	config := unix.LoopConfig{Fd: uint32(backing), Size: blockSize}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	copy(config.Info.File_name[:], "sandbox-run scratch") // losetup shows this name
	if err := unix.IoctlLoopConfigure(fd, &config); err != nil {
		_ = unix.Close(fd)
		return nil, -1, fmt.Errorf("scratch: LOOP_CONFIGURE %s: %w", d.path(), err)
	}
	d.sequence = diskSequence(fd)
	return d, fd, nil
}

// diskSequence is the kernel's sequence number of this binding of the device; 0 on kernels before 5.15.
func diskSequence(fd int) uint64 {
	var n uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKGETDISKSEQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return n
}

// bound reports whether the device still has the binding of attachLoop. It does not open the device, because that would
// keep it bound.
func (d *loopDevice) bound() bool {
	block := "/sys/block/loop" + strconv.Itoa(d.number)
	if unix.Access(block+"/loop", unix.F_OK) != nil {
		return false // the directory exists only while the device is bound
	}
	fd, err := unix.Open(block+"/diskseq", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var buf [24]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return false
	}
	var now uint64
	for _, c := range buf[:n] {
		if c < '0' || c > '9' {
			break
		}
		now = now*10 + uint64(c-'0')
	}
	return now == d.sequence
}

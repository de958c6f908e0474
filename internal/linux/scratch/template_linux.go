package scratch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	blockSize = 4096
	// maxDiskBytes and maxDiskInodes keep an image file small: its group descriptors are copied for every disk.
	maxDiskBytes  = 4 << 40
	maxDiskInodes = 1 << 28
	// minDiskBlocks is the least that mkfs accepts; a smaller limit is rounded up to these 256 KiB.
	minDiskBlocks = 64
	// reservedInodes are numbers 1 to 10 of an ext4.
	reservedInodes = 10
	// inodesPerGroup fits the bitmap of one block, with some space for rounding up.
	inodesPerGroup = blockSize*8 - 512
	blocksPerGroup = blockSize * 8
)

// template is an empty ext4 without its zeroes.
type template struct {
	size    uint64 // of the image
	extents []extent
}

type extent struct {
	offset uint64
	data   []byte
}

// copyTo writes the file system to a device over an empty file: a handful of writes of a few blocks. It writes to the
// device, not to the file, for two reasons. The mount does not have to read pages that are in the device's cache. And
// binding a device makes the kernel (6.14 and later) sync the file: an empty one is quickly synced, and has no blocks on
// the host's disk to free. The disk of a short sandbox is never written back, so copyTo does not detect that the host's
// disk is full.
func (t *template) copyTo(device int) error {
	for _, e := range t.extents {
		if _, err := unix.Pwrite(device, e.data, int64(e.offset)); err != nil {
			return err
		}
	}
	return nil
}

// used is the number of bytes of an empty disk.
func (t *template) used() (n uint64) {
	for _, e := range t.extents {
		n += uint64(len(e.data))
	}
	return n
}

// template returns the template for a size: from memory, from the directory, or newly made.
func (d *cacheDir) template(bytes, inodes uint64) (*template, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := [2]uint64{bytes, inodes}
	if t := d.templates[key]; t != nil {
		return t, nil
	}
	name := fmt.Sprintf("scratch-%d-%d-v%d.ext4", bytes, inodes, formatVersion)
	t, err := d.load(name)
	if err != nil { // missing, of an older format, incomplete or corrupt: made again
		if t, err = d.build(bytes, inodes); err != nil {
			return nil, err
		}
		if err := d.store(name, t); err != nil {
			return nil, fmt.Errorf("scratch: store template %s/%s: %w%s", d.path, name, err, hintFor(err))
		}
	}
	if len(d.templates) >= maxTemplates {
		clear(d.templates) // callers choose sizes; this bounds the memory for them
	}
	d.templates[key] = t
	return t, nil
}

// maxTemplates is how many templates are kept in memory, and in the directory.
const maxTemplates = 64

// trim removes all templates when there are too many: clients may choose sizes, and each template is remade in a few
// milliseconds.
func (d *cacheDir) trim() {
	list, err := os.ReadDir("/proc/self/fd/" + strconv.Itoa(int(d.at.Fd())))
	if err != nil || len(list) < maxTemplates {
		return
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), "scratch-") && strings.HasSuffix(e.Name(), ".ext4") {
			_ = unix.Unlinkat(int(d.at.Fd()), e.Name(), 0)
		}
	}
}

// The file of a template, little-endian:
//
//	magic[8] size u64 count u32 { offset u64 length u32 }… data… crc32 u32
//
// It is not an image: an image would be sparse, and only a checksum over all of it could distinguish a block that was
// never written from a lost one.
var templateMagic = [8]byte{'s', 'b', 'r', 'e', 'x', 't', '4', formatVersion}

// formatVersion is part of the name and changes with the content of templates.
const formatVersion = 2

const maxTemplateFile = 64 << 20

func (t *template) encode() []byte {
	b := append([]byte(nil), templateMagic[:]...)
	b = binary.LittleEndian.AppendUint64(b, t.size)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.extents)))
	for _, e := range t.extents {
		b = binary.LittleEndian.AppendUint64(b, e.offset)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(e.data)))
	}
	for _, e := range t.extents {
		b = append(b, e.data...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

var errTemplate = errors.New("not a whole template")

func decode(b []byte) (*template, error) {
	const header, each = 8 + 8 + 4, 8 + 4
	if len(b) < header+4 || !bytes.Equal(b[:8], templateMagic[:]) {
		return nil, errTemplate
	}
	b, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.ChecksumIEEE(b) != sum {
		return nil, errTemplate
	}
	t := &template{size: binary.LittleEndian.Uint64(b[8:])}
	count := binary.LittleEndian.Uint32(b[16:])
	table := b[header:]
	if uint64(len(table)) < uint64(count)*each {
		return nil, errTemplate
	}
	data := table[count*each:]
	for ; count > 0; count-- {
		e := extent{offset: binary.LittleEndian.Uint64(table)}
		n := binary.LittleEndian.Uint32(table[8:])
		if uint64(n) > uint64(len(data)) || e.offset > t.size || uint64(n) > t.size-e.offset {
			return nil, errTemplate
		}
		e.data, data, table = data[:n:n], data[n:], table[each:]
		t.extents = append(t.extents, e)
	}
	if len(data) != 0 || len(t.extents) == 0 {
		return nil, errTemplate
	}
	return t, nil
}

func (d *cacheDir) load(name string) (*template, error) {
	fd, err := unix.Openat(int(d.at.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != unix.Geteuid() || st.Mode&0o022 != 0 || st.Size > maxTemplateFile {
		return nil, errTemplate
	}
	b := make([]byte, st.Size)
	for read := 0; read < len(b); {
		n, err := unix.Pread(fd, b[read:], int64(read))
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, errTemplate
		}
		read += n
	}
	return decode(b)
}

// store gives the file its name only when it is complete. It is not synced: the checksum detects the result of a power
// failure.
func (d *cacheDir) store(name string, t *template) error {
	f, err := d.unnamed()
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(t.encode()); err != nil {
		return err
	}
	d.trim()
	return d.link(f, name)
}

// build formats images until one has the requested size. The kernel reports that size: it reserves blocks of its own
// beside those that mkfs reports.
func (d *cacheDir) build(bytes, inodes uint64) (*template, error) {
	mkfs, err := findMkfs()
	if err != nil {
		return nil, err
	}
	wanted := max(minDiskBlocks, (bytes+blockSize-1)/blockSize)
	// A first guess, which mostly needs no second: the kernel's reserve for its own metadata (2 %, at most 4096 blocks),
	// bitmaps and descriptors, inode tables.
	blocks := wanted + min(wanted/49, 4096) + wanted/8192 + (inodes+reservedInodes+15)/16 + 16
	further := uint64(0) // mkfs rounds: a few blocks more may be none more, so each step is longer than the last
	for range 12 {
		t, available, err := d.format(mkfs, blocks, inodes)
		if err != nil {
			return nil, err
		}
		if available >= wanted && available <= wanted+wanted/100+16 {
			return t, nil
		}
		if available >= wanted {
			blocks -= available - wanted
			continue
		}
		blocks += wanted - available + further
		further = 2*further + 1
	}
	return nil, fmt.Errorf("scratch: format a disk of %d bytes and %d inodes: no image size gives that: %w; ask for another size",
		bytes, inodes, unix.EINVAL)
}

// format makes one image and returns the number of blocks that an unprivileged user finds free on it.
func (d *cacheDir) format(mkfs string, blocks, inodes uint64) (*template, uint64, error) {
	image, err := d.unnamed()
	if err != nil {
		return nil, 0, err
	}
	defer image.Close()
	if err := image.Truncate(int64(blocks * blockSize)); err != nil {
		return nil, 0, fmt.Errorf("scratch: size a file of %d blocks below %s: %w%s", blocks, d.path, err, hintFor(err))
	}
	if err := runMkfs(mkfs, image, blocks, inodes); err != nil {
		return nil, 0, err
	}
	s, err := mountLoop(image, nil)
	if err != nil {
		return nil, 0, err
	}
	defer s.Close()
	// mkfs always makes this directory; a sandbox would see it in its workspace.
	if err := unix.Unlinkat(int(s.file.Fd()), "lost+found", unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, 0, fmt.Errorf("scratch: remove lost+found from a new template: %w", err)
	}
	available := s.emptyBytes / blockSize
	if err := s.Close(); err != nil {
		return nil, 0, err
	}
	t, err := readTemplate(image, blocks*blockSize)
	return t, available, err
}

// runMkfs formats a file that is handed over as a descriptor.
func runMkfs(mkfs string, image *os.File, blocks, inodes uint64) error {
	args := []string{
		"-q", "-F", "-t", "ext4",
		"-b", strconv.Itoa(blockSize),
		"-m", "0", // nothing kept back for root
		"-I", "256",
		"-N", strconv.FormatUint(inodes+reservedInodes, 10),
		// Only features that files need, and that are fast. No journal: this disk is never recovered. uninit_bg: unused
		// groups need no bitmap, so the template is small.
		"-O", "none,extent,flex_bg,uninit_bg,sparse_super2,dir_index,filetype,large_file,huge_file,dir_nlink,extra_isize",
		"-E", "lazy_itable_init=1,num_backup_sb=0,nodiscard,root_owner=0:0",
	}
	if groups := (inodes + reservedInodes + inodesPerGroup - 1) / inodesPerGroup; groups*blocksPerGroup > blocks {
		// Many inodes on a small disk: make groups smaller, as each has room for a limited number.
		args = append(args, "-g", strconv.FormatUint(max(256, blocks/groups/8*8), 10))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mkfs, append(args, "/proc/self/fd/3", strconv.FormatUint(blocks, 10))...)
	cmd.ExtraFiles = []*os.File{image}
	// The host's configuration must not change a template.
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MKE2FS_CONFIG=/dev/null"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("scratch: %s of %d blocks and %d inodes: %w", mkfs, blocks, inodes, mkfsFailure(out, err))
	}
	return nil
}

// mkfsFailure is the cause of mkfs's failure: its last line, after warnings about a missing configuration.
func mkfsFailure(out []byte, err error) error {
	out = bytes.TrimSpace(out)
	out = bytes.TrimSpace(out[bytes.LastIndexByte(out, '\n')+1:])
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EMFILE} {
		// The message begins with a capital letter, as messages of C programs do.
		if said := errno.Error(); bytes.Contains(bytes.ToLower(out), []byte(said)) {
			return fmt.Errorf("%w: %s: %w%s", err, out, errno, hintFor(errno))
		}
	}
	if len(out) == 0 { // it never ran
		return err
	}
	return fmt.Errorf("%w: %s", err, out)
}

// readTemplate takes from an image all blocks that are not zero.
func readTemplate(image *os.File, size uint64) (*template, error) {
	t := &template{size: size}
	fail := func(op string, err error) (*template, error) {
		return nil, fmt.Errorf("scratch: %s new template: %w", op, err)
	}
	fd := int(image.Fd())
	var block, zero [blockSize]byte
	for at := int64(0); ; {
		start, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return fail("find the data of the", err)
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return fail("find the holes of the", err)
		}
		for start -= start % blockSize; start < end; start += blockSize {
			if _, err := io.ReadFull(io.NewSectionReader(image, start, blockSize), block[:]); err != nil {
				return fail("read the", err)
			}
			if block == zero {
				continue
			}
			if n := len(t.extents); n > 0 && t.extents[n-1].offset+uint64(len(t.extents[n-1].data)) == uint64(start) {
				t.extents[n-1].data = append(t.extents[n-1].data, block[:]...)
			} else {
				t.extents = append(t.extents, extent{uint64(start), bytes.Clone(block[:])})
			}
		}
		at = end
	}
	return decode(t.encode()) // one allocation instead of many, and a proof that the next process can read it
}

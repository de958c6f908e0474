//go:build linux

package cgroup

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Cgroup files are opened with bare system calls: os.OpenFile would register each with the runtime's poller, which
// costs more than the read itself. Paths are relative to the directory of `sandbox-run` (hierarchy.place), which the Tree
// keeps open: walking /sys/fs/cgroup/memory/… anew for each of twenty files is a tenth of a run's cost here.

// retry calls f until no signal interrupts it. The error is a raw errno.
func retry(f func() error) (err error) {
	for err = f(); err == unix.EINTR; err = f() { //nolint:errorlint // raw errno
	}
	return err
}

func openRetry(at int, path string, flags int) (fd int, err error) {
	err = retry(func() error { fd, err = unix.Openat(at, path, flags|unix.O_CLOEXEC, 0); return err })
	return fd, err
}

func mkdirRetry(h *hierarchy, path string) error {
	return retry(func() error { return unix.Mkdirat(h.at, path, 0o755) })
}

func rmdirRetry(h *hierarchy, path string) error {
	return retry(func() error { return unix.Unlinkat(h.at, path, unix.AT_REMOVEDIR) })
}

func existsAt(at int, path string) bool { return unix.Faccessat(at, path, unix.F_OK, 0) == nil }

// writeFile writes one value. A cgroup file takes a value in one write or not at all.
func writeFile(at int, path, value string) error {
	// No O_TRUNC: it means nothing to a cgroup file, but makes the kernel allocate attributes for it.
	fd, err := openRetry(at, path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // nothing is buffered
	n := 0
	err = retry(func() error { n, err = unix.Write(fd, []byte(value)); return err })
	if err == nil && n != len(value) {
		err = unix.EIO
	}
	return err
}

// buffers holds scratch space for reads. 4 KiB takes every counter file in one read; longer lists read on.
var buffers = sync.Pool{New: func() any { b := make([]byte, 4096); return &b }}

// readCounter reads a small file into buf; the result is a part of buf. A counter is far smaller than a page and complete
// after the first read, so the read that would only return "end of file" is saved.
func readCounter(at int, path string, buf *[]byte) ([]byte, error) {
	return readFile(at, path, buf, false)
}

// readList reads a file of any length, such as cgroup.procs, growing buf when needed.
func readList(at int, path string, buf *[]byte) ([]byte, error) {
	return readFile(at, path, buf, true)
}

func readFile(at int, path string, buf *[]byte, toEnd bool) ([]byte, error) {
	fd, err := openRetry(at, path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) // read only
	n := 0
	for {
		if n == len(*buf) {
			if n >= maxFile {
				return nil, unix.EFBIG
			}
			*buf = append(*buf, make([]byte, len(*buf))...)
		}
		m := 0
		if err := retry(func() error { m, err = unix.Read(fd, (*buf)[n:]); return err }); err != nil {
			return nil, err
		}
		n += m
		if m == 0 || !toEnd {
			return (*buf)[:n], nil
		}
	}
}

// maxFile bounds a list of processes: 4 million pids of 7 digits.
const maxFile = 32 << 20

// putBuffer puts a buffer back into the pool unless a long list has made it large.
func putBuffer(buf *[]byte) {
	if len(*buf) <= 64<<10 {
		buffers.Put(buf)
	}
}

// subdirs names the directories in a directory; one that does not exist has none.
func subdirs(at int, path string) ([]string, error) {
	// A cgroup directory has two links and one more for each below it, so nearly always this one call answers "none" and
	// forty of the kernel's files need not be listed. File systems that do not count links like that (1) are listed.
	var st unix.Stat_t
	if unix.Fstatat(at, path, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Nlink == 2 {
		return nil, nil
	}
	fd, err := openRetry(at, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		if err == unix.ENOENT { //nolint:errorlint // raw errno
			err = nil
		}
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close() // read only
	entries, err := dir.ReadDir(-1)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errno(err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// parseUint reads a decimal number and ignores what follows it; "max" and garbage give ok == false.
func parseUint(b []byte) (n uint64, ok bool) {
	for i, c := range b {
		if c < '0' || c > '9' {
			return n, i > 0
		}
		d := uint64(c - '0')
		if n > (1<<64-1-d)/10 {
			return 1<<64 - 1, true // a counter beyond 64 bits does not exist; saturate rather than wrap
		}
		n = n*10 + d
	}
	return n, len(b) > 0
}

// flatKeyed calls f for each "name number" line.
func flatKeyed(b []byte, f func(name []byte, value uint64)) {
	for line := range bytes.Lines(b) {
		name, number, _ := bytes.Cut(line, []byte(" "))
		if v, ok := parseUint(number); ok && len(name) > 0 {
			f(name, v)
		}
	}
}

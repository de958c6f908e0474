package oci

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// bundle is a bundle that is being made, in the mount namespace of root's mount thread or of a runtime helper.
type bundle struct {
	*bundleParts
	mounts []string    // in the order in which they were made
	names  []string    // of files and directories that are no mounts
	pipe   [2]*os.File // both ends of the config of a runtime that was started early
}

// makeDir makes the bundle's directory. A runtime that is started early finds a pipe there in place of its config: it
// does all the work that needs no config, reads from the pipe, and waits. If the supervisor ends before it writes the
// config, the runtime ends too, at the end of the pipe. The pipe has no name of its own: a runtime that comes only after
// the supervisor's end finds nothing behind the link, whereas the open of a FIFO would wait for a writer for ever.
func (b *bundle) makeDir(early bool) error {
	if err := os.Mkdir(b.Dir, 0o711); err != nil {
		return err
	}
	b.names = append(b.names, b.Dir)
	if !early {
		return nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	for n, fd := range ends {
		b.pipe[n] = os.NewFile(uintptr(fd), b.config())
	}
	b.names = append(b.names, b.config())
	return os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ends[0]), b.config())
}

func (b *bundle) config() string { return filepath.Join(b.Dir, "config.json") }

// write makes the config. With a pipe, a file takes the pipe's place before write writes to the pipe: a runtime that has
// found the pipe reads the whole config from it, and a runtime that opens the path later reads it from the file. A
// runtime may have found the pipe and not opened it yet: the supervisor's ends stay open until the container runs. The
// config ends with its last bracket, not with the pipe.
func (b *bundle) write() error {
	if b.pipe[1] == nil {
		b.names = append(b.names, b.config())
		return os.WriteFile(b.config(), b.Config, 0o600)
	}
	next := b.config() + ".next"
	err := os.WriteFile(next, b.Config, 0o600)
	if err == nil {
		err = os.Rename(next, b.config())
	}
	if err != nil {
		_ = os.Remove(next)
		return err
	}
	// There may be no reader yet that empties the pipe: all of the config must fit.
	if size, err := unix.FcntlInt(b.pipe[1].Fd(), unix.F_GETPIPE_SZ, 0); err == nil && size < len(b.Config) {
		if _, err := unix.FcntlInt(b.pipe[1].Fd(), unix.F_SETPIPE_SZ, len(b.Config)); err != nil {
			return fmt.Errorf("config of %d bytes: %w", len(b.Config), err)
		}
	}
	n, err := unix.Write(int(b.pipe[1].Fd()), b.Config)
	if err == nil && n < len(b.Config) {
		err = io.ErrShortWrite
	}
	return err
}

// fill puts a root, the volumes and a config into the bundle's directory. It uses the mount of root up; the caller still
// closes the descriptor.
func (b *bundle) fill(root int, volumes []int) error {
	if len(volumes) != len(b.Targets) {
		return fmt.Errorf("%d volumes for %d targets", len(volumes), len(b.Targets))
	}
	if err := b.put(root, rootfsDir); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	if b.Shm > 0 {
		if err := b.shareMemory(); err != nil {
			return fmt.Errorf("mount shared memory: %w", err)
		}
	}
	if err := b.mountVolumes(volumes); err != nil {
		return err
	}
	return b.write()
}

// put makes a directory in the bundle and attaches a mount there.
func (b *bundle) put(mount int, name string) error {
	at := filepath.Join(b.Dir, name)
	if err := os.Mkdir(at, 0o711); err != nil {
		return err
	}
	b.names = append(b.names, at)
	if err := unix.MoveMount(mount, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	b.mounts = append(b.mounts, at)
	return nil
}

// closePipe ends the pipe of an early start. Without one, and the second time, it only returns an error.
func (b *bundle) closePipe() error { return errors.Join(b.pipe[0].Close(), b.pipe[1].Close()) }

// remove undoes makeDir and fill, however far they have come. It removes nothing below a mount: a volume may be one.
func (b *bundle) remove() error {
	_ = b.closePipe()
	var errs []error
	for _, at := range slices.Backward(b.mounts) {
		errs = append(errs, unix.Unmount(at, unix.MNT_DETACH))
	}
	for _, name := range slices.Backward(b.names) {
		if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// mountVolumes attaches volumes to their places in the root or in a copy of the scratch's mounts. The runtime gets them
// with the rest, and looks up no path that a program may be changing (F6).
func (b *bundle) mountVolumes(volumes []int) error {
	root := filepath.Join(b.Dir, rootfsDir)
	for _, d := range []string{"/proc", "/dev", sandbox.WorkspaceDir, sandbox.TmpDir, sandbox.HomeDir} {
		fd, err := place(root, d, unix.O_DIRECTORY) // a program may have changed a writable root (F3)
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
		_ = unix.Close(fd)
	}
	for _, p := range files.Parts {
		if own := filepath.Join(b.Dir, p.Name); b.Parts[p.Name] == own {
			if err := b.copyPart(filepath.Join(b.Scratch, p.Name), p.Name); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
	}
	for n := range b.Targets {
		if err := b.mountVolume(n, volumes[n]); err != nil {
			return &sandbox.Error{Backend: Name, Op: "mount " + b.Targets[n].Path, Stage: "volumes", Err: err}
		}
	}
	for _, p := range namesOfIDs {
		if err := plainFile(root, p); err != nil {
			return &sandbox.Error{Backend: Name, Op: "look at " + p, Stage: "rootfs", Kind: sandbox.ErrRefused, Err: err,
				Hint: "a root in which it is a plain file, or nothing"}
		}
	}
	return nil
}

// namesOfIDs are files of the root that a runtime reads to the end, even for a user given by number, in its own init,
// before any limit is in force. An endless file would take the host's memory, and a FIFO would block the runtime.
var namesOfIDs = []string{"/etc/passwd", "/etc/group"}

// maxNames is larger than any usual file of them.
const maxNames = 16 << 20

// plainFile refuses a path of a root that is, or links to, anything but a plain file of reasonable size; a missing file
// is allowed. A link to a missing file is refused, because the target may appear in the container: /proc, and /dev/pts.
func plainFile(root, p string) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		there, direct := place(root, p, 0)
		if direct == nil {
			_ = unix.Close(there)
		}
		if errors.Is(direct, unix.ENOENT) || errors.Is(direct, unix.ENOTDIR) {
			return nil
		}
		return fmt.Errorf("a link leads astray: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("it is not a plain file")
	case st.Size > maxNames:
		return fmt.Errorf("it has %v, and %v would be read at most", sandbox.Size(st.Size), sandbox.Size(maxNames))
	}
	return nil
}

// mountVolume attaches the volume of a target to its place.
func (b *bundle) mountVolume(n, volume int) error {
	t := b.Targets[n]
	top, rest := filepath.Join(b.Dir, rootfsDir), t.Path
	if inScratch, ok := files.Beneath(t.Path); ok {
		part, below, _ := strings.Cut(inScratch, "/")
		top, rest = b.Parts[part], "/"+below
	} else if t.Apart != "" {
		top, rest = t.Apart, ""
		if err := t.make(); err != nil {
			return err
		}
		b.names = append(b.names, t.Apart)
	} else if outer := around(b.Targets[:n], t.Path); outer != nil {
		top, rest = outer.Apart, strings.TrimPrefix(t.Path, outer.Path)
	}
	fd, err := place(top, rest, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(volume, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	if t.Apart != "" {
		b.mounts = append(b.mounts, t.Apart)
	}
	return nil
}

// make makes the place of a volume that is a mount of its own.
func (t *target) make() error {
	if t.File {
		return os.WriteFile(t.Apart, nil, 0o600)
	}
	return os.Mkdir(t.Apart, 0o711)
}

// place opens a path below a directory, and follows no link.
func place(top, p string, flags uint64) (int, error) {
	dir, err := unix.Open(top, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if p = strings.TrimPrefix(p, "/"); p == "" {
		return dir, nil
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, p, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// copyPart mounts a part of the scratch a second time, as the place for mounts of this container.
func (b *bundle) copyPart(from, name string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return b.put(fd, name)
}

// shareMemory makes the container's /dev/shm.
func (b *bundle) shareMemory() error {
	fd, err := rootfs.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"mode", "1777"}, [2]string{"size", strconv.FormatUint(b.Shm, 10)}, [2]string{"nr_inodes", "16384"})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return b.put(fd, shmDir)
}

// bundleFailure returns the error of a bundle that could not be made.
func bundleFailure(err error) error {
	if said := new(*sandbox.Error); errors.As(err, said) {
		return err
	}
	return failure("make bundle", "rootfs", err)
}

// makeTarget makes the place of a volume in the scratch, and refuses a path that a program has replaced with a link.
func (i *instance) makeTarget(p string, isFile bool) error {
	rest, inScratch := files.Beneath(p)
	if !inScratch {
		return nil
	}
	err := i.Scratch.Use(func(at int) error { return makePlace(at, rest, isFile, i.targets) })
	if err == nil {
		return nil
	}
	return &sandbox.Error{Backend: Name, Op: "mount " + p, Stage: "volumes", Err: err,
		Hint: "another target, or a sandbox whose program has not been there"}
}

func makePlace(at int, p string, isFile bool, owner int) error {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(at, p, how)
	if err == nil {
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if isFile == (st.Mode&unix.S_IFMT == unix.S_IFDIR) {
			return errors.New("a directory goes on a directory, and a file on a file")
		}
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	dir, name := filepath.Split(p)
	dir = filepath.Clean(dir)
	if dir != "." {
		if err := makePlace(at, dir, false, owner); err != nil {
			return err
		}
	}
	parent, err := unix.Openat2(at, dir, how)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if !isFile {
		if err := unix.Mkdirat(parent, name, 0o755); err != nil {
			return err
		}
	} else {
		fd, err := unix.Openat(parent, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
	}
	return unix.Fchownat(parent, name, owner, owner, unix.AT_SYMLINK_NOFOLLOW)
}

// volume is an opened volume that is not mounted yet.
type volume struct {
	sandbox.Volume
	mount  *os.File
	isFile bool
}

// openVolumes opens all volumes, outer ones before those that lie in them.
func (i *instance) openVolumes() (list []volume, err error) {
	all := slices.Clone(i.Spec.Volumes)
	slices.SortStableFunc(all, func(a, b sandbox.Volume) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
	maker := 0
	if i.b.runtime.kernel { // gVisor's kernel writes as root of the sandbox, and gives new files to the user
		maker = i.ID.Root
	}
	for _, v := range all {
		f, isFile, err := i.Mounts.Volume(v, i.ID.Owner, maker)
		if err == nil {
			list = append(list, volume{v, f, isFile})
			if v.Writable && i.b.runtime.kernel && i.ns.helper == nil { // files that its kernel makes are not mapped to the user
				err = needsRoot("a volume that can be written to", i.b.runtime.name)
			} else {
				err = i.makeTarget(v.Target, isFile)
			}
		}
		if err != nil {
			closeVolumes(list)
			return nil, err
		}
	}
	return list, nil
}

// mounts returns the descriptors of volumes.
func mounts(list []volume) (fds []int) {
	for _, v := range list {
		fds = append(fds, int(v.mount.Fd()))
	}
	return fds
}

func closeVolumes(list []volume) {
	for _, v := range list {
		_ = v.mount.Close()
	}
}

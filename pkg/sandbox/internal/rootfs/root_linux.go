package rootfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/idmap"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/etc"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
)

// part is a mount in a root: a directory of the host, or /dev.
type part struct {
	at    string
	mount int // detached
}

// layout is a root before its assembly.
type layout struct {
	backend string // whose root it is
	base    *skeleton
	lower   int // descriptor of a whole root to lie below base, or -1
	parts   []part
	// confined: assembled by the root of a user namespace only.
	confined bool
}

func (l *layout) close() {
	l.base.close()
	if l.lower >= 0 {
		_ = unix.Close(l.lower)
	}
	for _, p := range l.parts {
		_ = unix.Close(p.mount)
	}
}

// lay collects the parts of a spec's root, for a backend of that name. With a writable root, owner is the host id of the
// sandbox's user: the files of an image are shown as that user's own, so that the user may change them (in a layer that
// is dropped). -1 is a read-only root.
func lay(backend string, spec *sandbox.Spec, owner int, confined bool) (_ *layout, err error) {
	if spec.Root.Image != "" {
		return nil, &sandbox.Error{
			Backend: backend, Op: "lay out root", Kind: sandbox.ErrUnsupported, Stage: "rootfs",
			Err: fmt.Errorf("image %q: this backend keeps no images, and is given the directory of an unpacked one", spec.Root.Image),
		}
	}
	// Only an image's files may be shown as the user's own: files of the host, or of a given directory, that only root
	// may read would become readable. A confined helper shows a directory's files with their owners.
	if owner >= 0 && spec.Root.From.Reference == "" && (!confined || spec.Root.Dir == "") {
		return nil, &sandbox.Error{
			Backend: backend, Op: "writable root", Kind: sandbox.ErrUnsupported, Stage: "rootfs",
			Err:  errors.New("only an image's root can be writable: files of this host that only root may read would become readable"),
			Hint: "an image (--image REF), or a read-only root; /workspace, /tmp and $HOME are always writable",
		}
	}
	l := &layout{backend: backend, lower: -1, confined: confined}
	if l.base, err = newSkeleton(); err != nil {
		return nil, faults.Wrap(backend, "lay out root", "rootfs", err)
	}
	l.base.owner = owner
	if confined {
		owner = -1 // a confined helper can not change the owners of files
	}
	defer func() {
		if err != nil {
			l.close()
			if said := new(*sandbox.Error); !errors.As(err, said) {
				err = faults.Wrap(backend, "lay out root", "rootfs", err)
			}
		}
	}()
	for _, d := range baseDirs {
		if err := l.base.dir(d); err != nil {
			return nil, err
		}
	}
	if spec.Root.Dir != "" {
		err = l.layDir(spec, owner)
	} else {
		err = l.layHostPaths(spec)
	}
	if err == nil {
		err = l.layAdded(spec.Root.Add)
	}
	if err != nil {
		return nil, err
	}
	for _, v := range spec.Volumes {
		if err := l.volumeTarget(v); err != nil {
			return nil, err
		}
	}
	return l, l.layDev()
}

func (l *layout) layDir(spec *sandbox.Spec, owner int) (err error) {
	dir := spec.Root.Dir
	if l.lower, _, err = l.openHost(dir, owner); err != nil {
		return err
	}
	targets := slices.Clone(baseDirs)
	for _, v := range spec.Volumes {
		targets = append(targets, v.Target)
	}
	for _, a := range spec.Root.Add {
		targets = append(targets, a.Target)
	}
	for _, t := range targets {
		if err := plainTarget(l.lower, &spec.Root, t); err != nil {
			return err
		}
	}
	if err := l.introduce(spec); err != nil {
		return err
	}
	// The root has nothing of the machine that it was made on.
	if !l.confined {
		return l.base.opaque("/sys")
	}
	// Not every user can set the mark of an opaque directory; every user can make an empty one.
	empty, err := NewMount("tmpfs", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"mode", "0755"})
	if err != nil {
		return err
	}
	l.parts = append(l.parts, part{at: "/sys", mount: empty})
	return nil
}

// introduce adds the sandbox's user to the passwd and group files of a whole root, and the name of its machine, as
// container engines do. Where /etc is no directory of the root, or one of these is no plain file, the root is unchanged.
func (l *layout) introduce(spec *sandbox.Spec) error {
	files := map[string]string{
		"/etc/hosts": etc.Hosts(spec.Hostname), "/etc/hostname": spec.Hostname + "\n", "/etc/resolv.conf": etc.Resolver,
	}
	for name, merge := range map[string]func([]byte, sandbox.User) []byte{"/etc/passwd": etc.Passwd, "/etc/group": etc.Group} {
		own, err := l.read(name)
		switch {
		case err == nil:
			files[name] = string(merge(own, spec.User))
		case errors.Is(err, unix.ENOENT):
			files[name] = string(merge(nil, spec.User))
		}
	}
	switch fd, err := beneath(l.lower, "/etc"); {
	case err == nil:
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		_ = unix.Close(fd)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return err
		}
	case !errors.Is(err, unix.ENOENT):
		return nil
	}
	return l.base.files(files)
}

// read reads a small plain file of the whole root, and follows no link.
func (l *layout) read(p string) ([]byte, error) {
	fd, err := unix.Openat2(l.lower, rel(p), &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > etc.MaxFile {
		return nil, unix.EINVAL
	}
	return io.ReadAll(io.LimitReader(f, etc.MaxFile))
}

// plainTarget refuses a root in which a mount point is, or lies behind, anything but a directory (F3). An image may have
// links in the places of the scratch: base has directories there, which cover them, so that no link is followed. In a
// user's own directory, the target of such a link would not be found.
func plainTarget(root int, of *sandbox.Root, target string) error {
	fd, err := beneath(root, target)
	if err == nil {
		return unix.Close(fd)
	}
	what := "root " + of.Dir
	if of.From.Reference != "" {
		what = "image " + of.From.Reference
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil // the directory will be made
	case errors.Is(err, unix.ELOOP) && of.From.Reference != "" && inScratch(target):
		return nil
	case errors.Is(err, unix.ELOOP):
		link, leads := linkIn(root, target)
		return &sandbox.Error{Op: what, Kind: sandbox.ErrRefused,
			Err: fmt.Errorf("%s is, or lies behind, a symbolic link: %s leads to %q", target, link, leads), Stage: "rootfs",
			Hint: "one in which it is a directory, or nothing"}
	}
	return &sandbox.Error{Op: what, Kind: sandbox.ErrRefused, Err: fmt.Errorf("%s: %w", target, err), Stage: "rootfs"}
}

// inScratch reports whether a path is mounted from the scratch, or lies in such a path.
func inScratch(target string) bool {
	return slices.ContainsFunc([]string{sandbox.WorkspaceDir, sandbox.TmpDir, sandbox.HomeDir},
		func(d string) bool { return target == d || strings.HasPrefix(target, d+"/") })
}

// linkIn finds the link in a path, and its target, for the message.
func linkIn(root int, target string) (link, leads string) {
	for i := 1; i <= len(target); i++ {
		if i < len(target) && target[i] != '/' {
			continue
		}
		text := make([]byte, unix.PathMax)
		if n, err := unix.Readlinkat(root, rel(target[:i]), text); err == nil {
			return target[:i], string(text[:n])
		}
	}
	return target, ""
}

func (l *layout) layHostPaths(spec *sandbox.Spec) error {
	required := spec.Root.HostPaths
	dirs := required
	if len(required) == 0 {
		dirs = sandbox.HostDirs()
		if err := l.base.identity(spec); err != nil {
			return err
		}
		for _, f := range configFiles {
			if err := l.base.copyConfig(f); err != nil {
				return err
			}
		}
	}
	for _, p := range dirs {
		err := l.layHostPath(p)
		if errors.Is(err, unix.ENOENT) && len(required) == 0 {
			continue
		}
		if err != nil {
			return err
		}
	}
	if len(required) > 0 {
		return l.base.identity(spec)
	}
	return nil
}

// layHostPath shows one path of the host: a link as the link it is, all else as a mount.
func (l *layout) layHostPath(p string) error {
	st, err := os.Lstat(p)
	if err != nil {
		return &sandbox.Error{Op: "root", Kind: sandbox.ErrInvalid, Err: err, Stage: "rootfs"}
	}
	if st.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(p)
		if err != nil {
			return err
		}
		return l.base.symlink(target, p)
	}
	fd, isFile, err := l.openHost(p, -1)
	if err != nil {
		return err
	}
	l.parts = append(l.parts, part{at: p, mount: fd})
	if isFile {
		return l.base.file(p, "")
	}
	return l.base.dir(p)
}

// openHost opens a path of the host as a detached, read-only mount.
func (l *layout) openHost(p string, owner int) (fd int, isFile bool, err error) {
	o := idmap.Options{}
	if owner >= 0 {
		o.Map = &idmap.Mapping{FromUID: 0, ToUID: uint32(owner), FromGID: 0, ToGID: uint32(owner)}
	}
	f, isFile, err := idmap.Open(p, o)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, idmap.ErrSource) {
			return -1, false, &sandbox.Error{
				Backend: l.backend, Op: "root " + p, Stage: "rootfs", Kind: sandbox.ErrInvalid, Err: err,
				Hint: "a directory that exists, by a path without symbolic links",
			}
		}
		return -1, false, faults.Wrap(l.backend, "root "+p, "rootfs", err)
	}
	defer f.Close()
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	return fd, isFile, err
}

// layAdded shows the added mounts of a root, outer places before those that lie in them. They stay read-only in a
// writable root.
func (l *layout) layAdded(added []sandbox.Mount) error {
	added = slices.Clone(added)
	slices.SortStableFunc(added, func(a, b sandbox.Mount) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
	for _, m := range added {
		fd, isFile, err := l.openHost(m.Source, -1)
		if err != nil {
			return err
		}
		err = l.place(m.Target, isFile)
		for _, p := range l.parts {
			if err == nil && (p.at == m.Target || strings.HasPrefix(p.at, m.Target+"/")) {
				err = fmt.Errorf("%s: it would cover %s, which the root has already", m.Target, p.at)
			}
		}
		l.parts = append(l.parts, part{at: m.Target, mount: fd})
		if err != nil {
			return &sandbox.Error{Backend: l.backend, Op: "root " + m.Source, Kind: sandbox.ErrInvalid, Err: err, Stage: "rootfs",
				Hint: "another target"}
		}
	}
	return nil
}

// place makes a mount point for a file or directory, unless it lies in a part of the host, which must have it.
func (l *layout) place(target string, isFile bool) error {
	var in *part // the innermost part that contains it
	for i, p := range l.parts {
		if strings.HasPrefix(target, p.at+"/") && (in == nil || len(p.at) > len(in.at)) {
			in = &l.parts[i]
		}
	}
	var err error
	switch {
	case in != nil:
		var fd int
		if fd, err = beneath(in.mount, strings.TrimPrefix(target, in.at)); err == nil {
			var there unix.Stat_t
			err = unix.Fstat(fd, &there)
			_ = unix.Close(fd)
			if err == nil && isFile == (there.Mode&unix.S_IFMT == unix.S_IFDIR) {
				return fmt.Errorf("%s: a directory goes on a directory, and a file on a file", target)
			}
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("%s: there is no such place in %s, and none can be made", target, in.at)
		}
	case isFile:
		err = l.base.file(target, "")
	default:
		err = l.base.dir(target)
	}
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%s is, or lies behind, a symbolic link; name the place that it leads to: %w", target, err)
	}
	return err
}

// volumeTarget makes the place a volume is mounted on, unless it lies in the scratch, where the init
// makes it, or in a part of the host, which must have it.
func (l *layout) volumeTarget(v sandbox.Volume) error {
	if inScratch(v.Target) {
		return nil
	}
	invalid := func(err error, hint string) error {
		return &sandbox.Error{Backend: l.backend, Op: "volume " + v.Source, Kind: sandbox.ErrInvalid, Err: err, Stage: "volumes", Hint: hint}
	}
	st, err := os.Lstat(v.Source)
	if err != nil {
		return invalid(err, "--volume with a path of the host that exists")
	}
	if err := l.place(v.Target, !st.IsDir()); err != nil {
		return invalid(err, "another target")
	}
	return nil
}

// templateKey identifies equal roots. Writable ones are never shared.
func templateKey(spec *sandbox.Spec) string {
	var b strings.Builder
	for _, p := range append(slices.Clone(spec.Root.HostPaths), "dir:"+spec.Root.Dir, strconv.FormatBool(spec.Root.From.Reference != ""),
		spec.Hostname, strconv.Itoa(spec.User.UID), strconv.Itoa(spec.User.GID)) {
		b.WriteString(strconv.Quote(p))
	}
	shown := append(slices.Clone(spec.Root.HostPaths), spec.Root.Dir)
	for _, m := range spec.Root.Add {
		fmt.Fprintf(&b, "%q:%q", m.Source, m.Target)
		shown = append(shown, m.Source)
	}
	// A directory that was made anew under the same name is another one. (The kept root holds the old one, so its inode
	// number is not reused meanwhile.)
	for _, p := range shown {
		var st unix.Stat_t
		if p != "" && unix.Lstat(p, &st) == nil {
			fmt.Fprintf(&b, "%x.%x.%x ", st.Dev, st.Ino, st.Mode&unix.S_IFMT)
		}
	}
	for _, v := range spec.Volumes {
		var st unix.Stat_t
		_ = unix.Lstat(v.Source, &st) // the later open reports a missing file
		fmt.Fprintf(&b, "%q%q%x", v.Source, v.Target, st.Mode&unix.S_IFMT)
	}
	return b.String()
}

// assemble assembles a read-only root in the thread's namespace and returns its path.
func (k *mountThread) assemble(l *layout) (string, error) {
	if err := l.base.seal(unix.MOUNT_ATTR_NODEV); err != nil {
		return "", err
	}
	at, err := k.attachAnywhere(l.base.fd)
	if err != nil {
		return "", err
	}
	if l.lower >= 0 {
		if at, err = k.overlay(at, l.lower, "", l.confined); err != nil {
			return "", err
		}
	}
	for _, p := range l.parts {
		if err := k.attach(at, p); err != nil {
			k.drop(at)
			return "", err
		}
	}
	return at, nil
}

func (k *mountThread) attach(root string, p part) error {
	fd, err := openBeneath(root, p.at)
	if err != nil {
		return named(p.at, err)
	}
	defer unix.Close(fd)
	return named(p.at, unix.MoveMount(p.mount, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// beneath opens a path below a directory, and follows no link (F6).
func beneath(dir int, p string) (int, error) {
	return unix.Openat2(dir, rel(p), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// openBeneath opens a place in a root without following links (F6).
func openBeneath(root, p string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return beneath(dir, p)
}

// overlay mounts the tree at top, and a writable layer if there is one, over a whole root. The mount at top is gone
// afterwards: the overlay keeps the parts that it needs.
func (k *mountThread) overlay(top string, lower int, layer string, confined bool) (string, error) {
	under := ""
	if lower >= 0 {
		var err error
		if under, err = k.attachAnywhere(lower); err != nil {
			return "", err
		}
		defer k.drop(under)
	}
	if top != "" {
		defer k.drop(top)
	}
	fd, err := newOverlay(top, under, layer, confined)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return k.attachAnywhere(fd)
}

func newOverlay(top, under, layer string, confined bool) (int, error) {
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	options := [][2]string{{"lowerdir", strings.Trim(top+":"+under, ":")}}
	if layer == "" {
		attrs |= unix.MOUNT_ATTR_RDONLY
	} else {
		options = append(options, [2]string{"upperdir", path.Join(layer, "upper")}, [2]string{"workdir", path.Join(layer, "work")})
	}
	if confined {
		options = append(options, [2]string{"userxattr", ""}) // the marks that every user may set
	}
	return NewMount("overlay", attrs, options...)
}

// NewMount makes a file system with a detached mount.
func NewMount(fstype string, attrs int, options ...[2]string) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, named(fstype, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fs, o[0])
		} else {
			err = unix.FsconfigSetString(fs, o[0], o[1])
		}
		if err != nil {
			return -1, fmt.Errorf("%s: %s: %w", fstype, o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, named(fstype, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	return fd, named(fstype, err)
}

// layersDir is the directory of a scratch with the changes of a writable root.
const layersDir = ".root"

// assembleWritable assembles a root whose changes go to the scratch. It returns a detached copy of the root and one of
// the scratch, because it consumes the given one.
func (k *mountThread) assembleWritable(l *layout, scratch int, owner int) (root, rest int, err error) {
	disk, err := k.attachAnywhere(scratch)
	if err != nil {
		return -1, -1, named("scratch", err)
	}
	defer k.drop(disk)
	layers := path.Join(disk, layersDir)
	if err := unix.Mkdir(layers, 0o700); err != nil {
		return -1, -1, named("scratch", err)
	}
	for _, d := range []string{path.Join(layers, "upper"), path.Join(layers, "work")} {
		if err := unix.Mkdir(d, 0o755); err != nil {
			return -1, -1, named(d, err)
		}
	}
	// The user sees the upper layer's own directory as /.
	if err := giveDir(path.Join(layers, "upper"), owner); err != nil {
		return -1, -1, err
	}
	base, err := k.attachAnywhere(l.base.fd)
	if err != nil {
		return -1, -1, err
	}
	at, err := k.overlay(base, l.lower, layers, l.confined)
	if err != nil {
		return -1, -1, err
	}
	defer k.drop(at)
	for _, p := range l.parts {
		if err := k.attach(at, p); err != nil {
			return -1, -1, err
		}
	}
	if root, err = copyTree(at); err != nil {
		return -1, -1, err
	}
	if rest, err = copyTree(disk); err != nil {
		_ = unix.Close(root)
		return -1, -1, err
	}
	return root, rest, nil
}

// giveDir makes a directory that every user may read, and gives it to its owner, with any umask.
func giveDir(dir string, owner int) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return named(dir, err)
	}
	defer unix.Close(fd)
	if err := unix.Fchmod(fd, 0o755); err != nil {
		return named(dir, err)
	}
	return named(dir, unix.Fchown(fd, owner, owner))
}

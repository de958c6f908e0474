package workspace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/quota"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// Project ids of workspaces are random ones of this range. Docker, Kubernetes, LXD and /etc/projects count from small numbers.
	firstProject = 1 << 30
	projectRange = 1 << 30
	projectTries = 16

	// metadataShare is the part of the cap that a workspace may take beyond it: ext4 refuses no block that describes a file's
	// extents.
	metadataShare = 128
	// limitRounding is the largest block of a file system, to which limits are rounded up.
	limitRounding = 64 << 10
	// fullSlack is the size of the largest folio a file system writes into, as for scratches.
	fullSlack = 2 << 20
)

// errProject means that the store already has a project id: the operator, or a container engine, has set a limit on its files.
var errProject = errors.New("the store belongs to a project")

// ExplainCap returns why the caps of workspaces in a store are polled, and what would change that; nil if the kernel enforces
// them. An empty store is DefaultStore. For a store that does not exist, ExplainCap checks the directory above it.
func ExplainCap(store string) *sandbox.Gap {
	err := func() (err error) {
		if store == "" {
			if store, err = DefaultStore(); err != nil {
				return err
			}
		}
		fd, err := unix.Open(store, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		for errors.Is(err, unix.ENOENT) && store != filepath.Dir(store) {
			store = filepath.Dir(store)
			fd, err = unix.Open(store, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", store, err)
		}
		defer unix.Close(fd)
		return checkQuota(fd)
	}()
	if err == nil {
		return nil
	}
	return explainGap(err)
}

// explainGap returns the reason for a polled cap as a gap with a remedy.
func explainGap(err error) *sandbox.Gap {
	g := &sandbox.Gap{Control: sandbox.ControlDisk, State: sandbox.Polled, Reason: err.Error()}
	switch {
	case errors.Is(err, quota.ErrUnsupported), errors.Is(err, quota.ErrNotEnforced):
		g.Remedy = "keep workspaces on ext4 (mkfs.ext4 -O project,quota; mount -o prjquota) or XFS (mount -o pquota), and run as root"
	case errors.Is(err, unix.EPERM):
		g.Remedy = "run as root in the initial user namespace"
	case errors.Is(err, errProject):
		g.Remedy = "keep workspaces in a directory without a project id"
	}
	return g
}

// checkQuota returns nil if the kernel can enforce the caps of workspaces in a store and this process may set them.
func checkQuota(store int) error {
	if err := quota.Check(store); err != nil {
		return err
	}
	project, _, err := quota.Project(store)
	if err != nil {
		return err
	}
	if project != 0 {
		return fmt.Errorf("%w: its id is %d", errProject, project)
	}
	_, _, err = quota.Read(store, firstProject)
	return err
}

// enforceCap makes the kernel enforce the cap, or records why it does not. It returns only errors of ctx.
func (w *Workspace) enforceCap(ctx context.Context) error {
	err := w.limitProject(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		w.gap = *explainGap(err)
	default:
		w.project = w.meta.Project
	}
	return nil
}

// limitProject gives all files of the workspace its project id, chooses an id if it has none, and sets the limits of that id.
func (w *Workspace) limitProject(ctx context.Context) error {
	if err := checkQuota(w.store.Fd()); err != nil {
		return err
	}
	dir := int(w.dir.Fd())
	own, inherited, err := quota.Project(dir)
	if err != nil {
		return err
	}
	whole := false
	if own == w.meta.Project && own != 0 {
		used, _, err := quota.Read(dir, own)
		if err != nil {
			return err
		}
		// Every file that was made here has the id. The count lacks files that were there before, and files that have lost the id.
		whole = inherited && used.Inodes == uint64(w.used.Inodes-w.used.again)+1
	} else {
		// The metadata is written first, so that Remove drops the id. The id of the directory shows whether it is this workspace's: a
		// directory that was copied with its metadata has another id.
		if w.meta.Project, err = chooseProject(dir); err != nil {
			return err
		}
		if err := writeMetadata(w.store, w.name, w.meta); err != nil {
			return err
		}
	}
	if !whole {
		if err := tagTree(ctx, dir, w.meta.Project, w.bound()); err != nil {
			return err
		}
	}
	// The directory of the workspace does not count as one of its files.
	want := quota.Amount{Bytes: uint64(w.meta.Cap), Inodes: uint64(w.meta.Inodes) + 1}
	if err := quota.SetLimits(dir, w.meta.Project, want); err != nil {
		return err
	}
	return w.verifyProject(want)
}

// verifyProject reads the id and the limits back and compares them.
func (w *Workspace) verifyProject(want quota.Amount) error {
	project, inherited, err := quota.Project(int(w.dir.Fd()))
	if err != nil {
		return err
	}
	used, most, err := quota.Read(int(w.dir.Fd()), project)
	switch {
	case err != nil:
		return err
	case project != w.meta.Project || !inherited || used.Inodes == 0:
		return fmt.Errorf("the directory has the project %d with %d files, not %d", project, used.Inodes, w.meta.Project)
	case most.Bytes < want.Bytes/1024*1024 || most.Bytes > want.Bytes+limitRounding || most.Inodes != want.Inodes:
		return fmt.Errorf("the limits of project %d are %+v, not %+v", project, most, want)
	}
	return nil
}

// chooseProject finds an id that has neither files nor limits on the file system of a descriptor.
func chooseProject(fd int) (uint32, error) {
	for range projectTries {
		project := firstProject + rand.Uint32N(projectRange)
		used, most, err := quota.Read(fd, project)
		if err != nil {
			return 0, err
		}
		if used == (quota.Amount{}) && most == (quota.Amount{}) {
			return project, nil
		}
	}
	return 0, fmt.Errorf("%d random project ids are all in use", projectTries)
}

// tagTree gives an id to all directories and regular files of a tree, and to the topmost directory last, so that a partly tagged
// tree is recognised.
func tagTree(ctx context.Context, dir int, project uint32, most bound) error {
	u, err := walkTree(dir, &treeCounter{ctx: ctx, most: most, project: project})
	switch {
	case err != nil:
		return err
	case u.Partial || u.Hidden > 0:
		return fmt.Errorf("not all of its files could be given the project %d", project)
	}
	return quota.SetProject(dir, project, true)
}

// tagFile gives an id to a regular file. It opens only a file that stat reports as regular.
func tagFile(at int, name string, project uint32) error {
	fd, err := openat2(at, name, unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath})
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	file, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	return quota.SetProject(file, project, false)
}

// Full reports whether the workspace has grown since it was opened or filled by Put, and so little is left below an enforced cap that a
// write may have failed. It is false for a polled cap, which Watch observes.
func (w *Workspace) Full() bool {
	if w.project == 0 {
		return false
	}
	used, most, err := quota.Read(int(w.dir.Fd()), w.project)
	if err != nil {
		return false
	}
	w.mu.Lock()
	grown := used.Bytes > uint64(w.used.Bytes) || used.Inodes > uint64(w.used.Inodes)+1 // the directory itself is not one of its files
	w.mu.Unlock()
	return grown && (used.Inodes >= most.Inodes || most.Bytes-min(most.Bytes, used.Bytes) < min(fullSlack, most.Bytes/64))
}

// readProject returns the kernel's count for a project. The directory itself is not one of its files.
func readProject(dir *os.File, project uint32) (u Usage, limited bool, err error) {
	used, most, err := quota.Read(int(dir.Fd()), project)
	return Usage{Bytes: sandbox.Size(used.Bytes), Inodes: int(used.Inodes - min(used.Inodes, 1))}, most.Bytes != 0 && most.Inodes != 0, err
}

// ownsProject reports whether a directory has the project id of its metadata, and the kernel enforces its limits.
func ownsProject(dir *os.File, m metadata) bool {
	if m.Project == 0 || quota.Check(int(dir.Fd())) != nil {
		return false
	}
	own, _, err := quota.Project(int(dir.Fd()))
	return err == nil && own == m.Project
}

// dropProject drops the limits of a workspace before its removal, and clears the id of the directory: removal moves directories
// into it, and the kernel refuses a directory with another id. A failure here leaves an id in use and does no harm.
func dropProject(store *userdir.Dir, name string) {
	m, err := readMetadata(store, name)
	if err != nil || m.Project == 0 {
		return
	}
	dir, err := openTree(store, name, false)
	if err != nil {
		return
	}
	defer dir.Close()
	if !ownsProject(dir, m) {
		return
	}
	_ = quota.SetLimits(int(dir.Fd()), m.Project, quota.Amount{})
	_ = quota.SetProject(int(dir.Fd()), 0, false)
}

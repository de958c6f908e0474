package rootfs

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// mountThread is a thread in a mount namespace of its own, in which roots are assembled and kept. Nothing of it is
// visible on the host, and all of it is gone with this process, however it ends: the namespace ends with its last
// thread.
//
// A thread is needed because the kernel copies mount trees only from the caller's own namespace.
type mountThread struct {
	backend string
	dir     string // a directory that this namespace covers with a tmpfs
	mode    string // of that
	work    chan func()
	quit    chan struct{}
	next    int // number of the next place
}

func startMountThread(backend, dir, mode string) (*mountThread, error) {
	k := &mountThread{backend: backend, dir: dir, mode: mode, work: make(chan func()), quit: make(chan struct{})}
	ready := make(chan error)
	Apart(func() { k.run(ready) })
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("private mount namespace: %w", err)
	}
	return k, nil
}

// Apart runs f on a thread of its own, which ends with f and with the changes of f to it: namespaces, cgroups. The main
// thread would not end: it lives as long as the process, and /proc/self shows its namespaces. While this goroutine is
// locked to the main thread, the next one gets another.
func Apart(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

func (k *mountThread) run(ready chan<- error) {
	err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount("tmpfs", k.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode="+k.mode)
	}
	ready <- err
	if err != nil {
		return
	}
	for {
		select {
		case f := <-k.work:
			f()
		case <-k.quit:
			return
		}
	}
}

func (k *mountThread) close() { close(k.quit) }

// do runs f on the thread, in its namespace.
func (k *mountThread) do(f func() error) error {
	done := make(chan error, 1)
	select {
	case k.work <- func() { done <- f() }:
		return <-done
	case <-k.quit:
		return &sandbox.Error{Backend: k.backend, Op: "create", Kind: sandbox.ErrState, Err: errors.New("the backend is closed")}
	}
}

// place makes an empty directory as a mount point. Only on the mount thread.
func (k *mountThread) place() (string, error) {
	k.next++
	p := path.Join(k.dir, strconv.Itoa(k.next))
	return p, unix.Mkdir(p, 0o700)
}

// attachAnywhere attaches a detached mount somewhere in the namespace. Only on the mount thread.
func (k *mountThread) attachAnywhere(mount int) (string, error) {
	p, err := k.place()
	if err != nil {
		return "", err
	}
	return p, unix.MoveMount(mount, "", unix.AT_FDCWD, p, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// drop unmounts what attachAnywhere attached. Only on the mount thread.
func (k *mountThread) drop(p string) {
	_ = unix.Unmount(p, unix.MNT_DETACH)
	_ = unix.Rmdir(p)
}

// copyTree makes a detached copy of everything mounted at p. Only on the mount thread.
func copyTree(p string) (int, error) {
	return unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
}

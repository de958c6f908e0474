package helper

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// fileWorker opens the files of the scratch as the sandbox's user: on a thread of its own whose file system id is that user's, so that
// it can reach only what the user can reach.
type fileWorker struct {
	jobs chan func()
	dirs map[string]int // by name
}

// newFileWorker makes the user the owner of the directories, and starts the worker.
func newFileWorker(setup *containerproto.Setup) (*fileWorker, error) {
	c := &fileWorker{jobs: make(chan func()), dirs: map[string]int{}}
	for _, d := range setup.Dirs {
		fd, err := unix.Open(d.At, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", d.At, err)
		}
		// Docker mounts them with that owner; Podman can not, but leaves us the capability.
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && (st.Uid != setup.OuterUID || st.Gid != setup.OuterGID) {
			err = unix.Fchown(fd, int(setup.OuterUID), int(setup.OuterGID))
		}
		if err != nil {
			return nil, fmt.Errorf("chown %s: %w", d.At, err)
		}
		c.dirs[d.Name] = fd
	}
	ready := make(chan error)
	go c.work(setup, ready)
	return c, <-ready
}

func (c *fileWorker) work(setup *containerproto.Setup, ready chan<- error) {
	uid, gid := int(setup.OuterUID), int(setup.OuterGID)
	runtime.LockOSThread() // never unlocked: no other goroutine may run on this thread
	_, _ = unix.SetfsgidRetGid(gid)
	_, _ = unix.SetfsuidRetUid(uid)
	// Setfsuid and setfsgid report no failure; a second call with an invalid id returns the current one.
	nowGID, errGID := unix.SetfsgidRetGid(-1)
	nowUID, errUID := unix.SetfsuidRetUid(-1)
	if err := errors.Join(errGID, errUID); err != nil || nowGID != gid || nowUID != uid {
		ready <- fmt.Errorf("become user %d for files: %w", uid, errors.Join(unix.EPERM, err))
		return
	}
	// Engines give a mount the mode that the directory has in the image. This thread is its owner for files and may change it.
	for _, d := range setup.Dirs {
		if err := unix.Fchmod(c.dirs[d.Name], d.Mode); err != nil {
			ready <- fmt.Errorf("chmod %s: %w", d.At, err)
			return
		}
	}
	ready <- nil
	var once sync.Once // at the first job: the helper has dropped capabilities in all threads by then
	for job := range c.jobs {
		once.Do(raise)
		job()
	}
}

// raise sets a capability that lets this thread ignore modes, which the change of its file system id has cleared: it opens only files
// beneath the scratch's directories, in their own file systems.
func raise() {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if unix.Capget(&header, &have[0]) != nil {
		return
	}
	have[0].Effective |= have[0].Permitted & (1 << unix.CAP_DAC_OVERRIDE)
	_ = unix.Capset(&header, &have[0]) // without it, unreadable directories stay unreadable
}

// do runs a job on the worker's thread.
func (c *fileWorker) do(job func() error) (err error) {
	done := make(chan struct{})
	c.jobs <- func() { err = job(); close(done) }
	<-done
	return err
}

// at splits a path of the scratch into its directory and the rest.
func (c *fileWorker) at(p string) (files.Dir, string, error) {
	name, rest, _ := strings.Cut(p, "/")
	fd, ok := c.dirs[name]
	if !ok || path.Clean(p) != p || len(p) > 4096 {
		return files.Dir{}, "", unix.EINVAL
	}
	if rest == "" {
		rest = "."
	}
	return files.Dir{FD: fd, Owner: -1}, rest, nil
}

// serveFile serves a request about a file.
func (s *server) serveFile(kind containerproto.Kind, id, mode uint32, p string, in *containerproto.Inlet) {
	var err error
	switch kind {
	case containerproto.KindCreate:
		err = s.create(in, mode, p)
	case containerproto.KindOpen:
		err = s.open(id, p)
	case containerproto.KindList:
		err = s.list(id, p)
	case containerproto.KindRemove:
		err = s.fileWorker.do(func() error {
			d, rest, err := s.fileWorker.at(p)
			if err != nil {
				return err
			}
			return d.Remove(rest)
		})
	}
	_ = s.conn.Send(containerproto.KindDone, id, containerproto.Done(errnoOf(err)))
}

// create writes a file from a stream, or makes a link whose target is in the stream.
func (s *server) create(in *containerproto.Inlet, mode uint32, p string) error {
	defer in.Close()
	isLink := mode == containerproto.LinkMode
	var target []byte
	var err error
	if isLink {
		if target, err = io.ReadAll(io.LimitReader(in, unix.PathMax)); err != nil {
			return err
		}
	}
	var fd int
	err = s.fileWorker.do(func() error {
		d, rest, err := s.fileWorker.at(p)
		if err != nil || rest == "." {
			return errors.Join(err, unix.EISDIR)
		}
		if isLink {
			return d.Link(rest, string(target))
		}
		fd, err = d.Create(rest, mode)
		return err
	})
	if err != nil || isLink {
		return err
	}
	f := os.NewFile(uintptr(fd), p)
	_, err = io.CopyBuffer(onlyWriter{f}, onlyReader{in}, make([]byte, containerproto.MaxData))
	return errors.Join(err, f.Close())
}

// Types that hide the other methods from io.CopyBuffer: with them it would not use the buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// open sends the type of a file and, of a regular file, its content.
func (s *server) open(id uint32, p string) error {
	var c *files.Content
	err := s.fileWorker.do(func() error {
		d, rest, err := s.fileWorker.at(p)
		if err == nil {
			c, err = files.Tree{Opener: d}.Open(rest)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	out := s.conn.Outlet(containerproto.Stream(id, 1))
	defer out.Close()
	if err := s.conn.Send(containerproto.KindOpened, id, containerproto.Opened(c.Mode, c.Size)); err != nil || !c.Mode.IsRegular() {
		return err
	}
	// One byte more, so that the reader notices a file that grows.
	_, err = io.CopyBuffer(onlyWriter{out}, io.LimitReader(c, c.Size+1), make([]byte, containerproto.MaxData))
	if errors.Is(err, unix.EPIPE) {
		return nil // the reader has all it needs
	}
	return err
}

// entriesAtOnce is the size of a list at which it is sent.
const entriesAtOnce = 16 << 10

// maxListed bounds the entries of one answer; the backend stops before.
const maxListed = 1 << 20

// list sends the entries of a directory.
func (s *server) list(id uint32, p string) error {
	var batches [][]byte
	var batch []byte
	listed := 0
	err := s.fileWorker.do(func() error {
		d, rest, err := s.fileWorker.at(p)
		if err != nil {
			return err
		}
		return files.Tree{Opener: d}.List(rest, func(e files.Entry) bool {
			batch = containerproto.AppendEntry(batch, e.Type&fs.ModeType, e.Name)
			if len(batch) >= entriesAtOnce {
				batches, batch = append(batches, batch), nil
			}
			listed++
			return listed < maxListed
		})
	})
	if err != nil {
		return err
	}
	for _, b := range append(batches, batch) {
		if len(b) == 0 {
			continue
		}
		if err := s.conn.Send(containerproto.KindEntries, id, b); err != nil {
			return err
		}
	}
	return nil
}

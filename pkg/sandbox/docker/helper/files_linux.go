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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// clerk opens the files of the scratch as the sandbox's user: on a thread of its own whose file system id is that user's, so that
// nothing can be reached that the user could not reach.
type clerk struct {
	jobs chan func()
	dirs map[string]int // by name
}

// newClerk makes the directories the user's own, and hires the clerk.
func newClerk(setup *wire.Setup) (*clerk, error) {
	c := &clerk{jobs: make(chan func()), dirs: map[string]int{}}
	for _, d := range setup.Dirs {
		fd, err := unix.Open(d.At, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", d.At, err)
		}
		// Docker mounts them so; Podman can not, and lets us.
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && (st.Uid != setup.OuterUID || st.Gid != setup.OuterGID) {
			err = unix.Fchown(fd, int(setup.OuterUID), int(setup.OuterGID))
		}
		if err != nil {
			return nil, fmt.Errorf("chown %s: %w", d.At, err)
		}
		c.dirs[d.Name] = fd
	}
	hired := make(chan error)
	go c.work(setup, hired)
	return c, <-hired
}

func (c *clerk) work(setup *wire.Setup, hired chan<- error) {
	uid, gid := int(setup.OuterUID), int(setup.OuterGID)
	runtime.LockOSThread() // for good: nobody else is to have this thread
	_, _ = unix.SetfsgidRetGid(gid)
	_, _ = unix.SetfsuidRetUid(uid)
	// These report no failure; asking for what can not be tells what is.
	nowGID, errGID := unix.SetfsgidRetGid(-1)
	nowUID, errUID := unix.SetfsuidRetUid(-1)
	if err := errors.Join(errGID, errUID); err != nil || nowGID != gid || nowUID != uid {
		hired <- fmt.Errorf("become user %d for files: %w", uid, errors.Join(unix.EPERM, err))
		return
	}
	// Engines give a mount the mode that the directory has in the image. Its owner, whom this thread is for files, may change that.
	for _, d := range setup.Dirs {
		if err := unix.Fchmod(c.dirs[d.Name], d.Mode); err != nil {
			hired <- fmt.Errorf("chmod %s: %w", d.At, err)
			return
		}
	}
	hired <- nil
	var once sync.Once // at the first job: what the helper drops for all its threads is gone by then
	for job := range c.jobs {
		once.Do(raise)
		job()
	}
}

// raise lets this thread pass modes, which a change of its file system id has taken from it: what it opens lies beneath the
// scratch's directories, in their own file systems.
func raise() {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if unix.Capget(&header, &have[0]) != nil {
		return
	}
	have[0].Effective |= have[0].Permitted & (1 << unix.CAP_DAC_OVERRIDE)
	_ = unix.Capset(&header, &have[0]) // without it, what is shut stays shut
}

// do has the clerk do something.
func (c *clerk) do(job func() error) (err error) {
	done := make(chan struct{})
	c.jobs <- func() { err = job(); close(done) }
	<-done
	return err
}

// at splits a path of the scratch into its directory and the rest.
func (c *clerk) at(p string) (files.Dir, string, error) {
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

// file serves a request about a file.
func (s *server) file(kind wire.Kind, id, mode uint32, p string, in *wire.Inlet) {
	var err error
	switch kind {
	case wire.KindCreate:
		err = s.create(in, mode, p)
	case wire.KindOpen:
		err = s.open(id, p)
	case wire.KindList:
		err = s.list(id, p)
	case wire.KindRemove:
		err = s.clerk.do(func() error {
			d, rest, err := s.clerk.at(p)
			if err != nil {
				return err
			}
			return d.Remove(rest)
		})
	}
	_ = s.conn.Send(wire.KindDone, id, wire.Done(errnoOf(err)))
}

// create makes a file of what comes in.
func (s *server) create(in *wire.Inlet, mode uint32, p string) error {
	defer in.Close()
	var fd int
	err := s.clerk.do(func() error {
		d, rest, err := s.clerk.at(p)
		if err != nil || rest == "." {
			return errors.Join(err, unix.EISDIR)
		}
		fd, err = d.Create(rest, mode)
		return err
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), p)
	_, err = io.CopyBuffer(onlyWriter{f}, onlyReader{in}, make([]byte, wire.MaxData))
	return errors.Join(err, f.Close())
}

// What io.CopyBuffer must not look behind: it would not use the buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// open says what a path is and, of a regular file, sends its content.
func (s *server) open(id uint32, p string) error {
	var c *files.Content
	err := s.clerk.do(func() error {
		d, rest, err := s.clerk.at(p)
		if err == nil {
			c, err = files.Tree{Opener: d}.Open(rest)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	out := s.conn.Outlet(wire.Stream(id, 1))
	defer out.Close()
	if err := s.conn.Send(wire.KindOpened, id, wire.Opened(c.Mode, c.Size)); err != nil || !c.Mode.IsRegular() {
		return err
	}
	// One byte beyond, so that the reader can tell a file that grows.
	_, err = io.CopyBuffer(onlyWriter{out}, io.LimitReader(c, c.Size+1), make([]byte, wire.MaxData))
	if errors.Is(err, unix.EPIPE) {
		return nil // enough was seen
	}
	return err
}

// entriesAtOnce is how long a list grows before it is sent.
const entriesAtOnce = 16 << 10

// maxListed bounds what one request can send; the backend gives up before.
const maxListed = 1 << 20

// list sends the entries of a directory.
func (s *server) list(id uint32, p string) error {
	var batches [][]byte
	var batch []byte
	listed := 0
	err := s.clerk.do(func() error {
		d, rest, err := s.clerk.at(p)
		if err != nil {
			return err
		}
		return files.Tree{Opener: d}.List(rest, func(e files.Entry) bool {
			batch = wire.AppendEntry(batch, e.Type&fs.ModeType, e.Name)
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
		if err := s.conn.Send(wire.KindEntries, id, b); err != nil {
			return err
		}
	}
	return nil
}

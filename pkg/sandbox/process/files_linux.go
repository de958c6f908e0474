package process

import (
	"context"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// privateDir opens the files of a private directory. A program can move the directory away: the descriptor still refers
// to it.
type privateDir struct {
	mu  sync.RWMutex
	top int // descriptor; -1 once closed
}

func (s *privateDir) use(f func(fd int) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.top < 0 {
		return os.ErrClosed
	}
	return f(s.top)
}

func (s *privateDir) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.top >= 0 {
		_ = unix.Close(s.top)
	}
	s.top = -1
}

// scratchFiles copies files in a directory of the host, where hard links may lead to any other file.
func (i *instance) scratchFiles() *files.Scratch {
	return &files.Scratch{Place: files.Tree{Opener: files.SharedDir{Use: i.files.use, Owner: -1}, Shared: true}, Backend: Name,
		Failure: failure, Full: "free some space on the host's disk"}
}

// Put makes files in the private directory.
func (i *instance) Put(ctx context.Context, list []sandbox.File) error {
	return i.scratchFiles().Put(ctx, list)
}

// Take hands files of the private directory to the caller.
func (i *instance) Take(ctx context.Context, s sandbox.Selection,
	each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	return i.scratchFiles().Take(ctx, s, each)
}

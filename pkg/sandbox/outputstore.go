package sandbox

import (
	"os"
	"runtime"
	"sync"
)

// OutputStore is disk space for kept output that does not fit in memory, bounded for all runs together. Its files have
// no names: none is left over, however the process ends. Its methods are safe for concurrent use.
type OutputStore struct {
	Dir   string // on disk; empty: a directory for temporary files that is no tmpfs, where there is one
	Limit Size   // for all files; 0 is no limit

	mu     sync.Mutex
	used   Size
	owners map[string]Size
}

// OutputSpace is the share of one owner in an OutputStore: as much as is left for the others, so that one alone can have
// half.
type OutputSpace struct {
	store *OutputStore
	owner string
}

// For returns the share of an owner.
func (s *OutputStore) For(owner string) *OutputSpace { return &OutputSpace{s, owner} }

// Used is the used part of the limit.
func (s *OutputStore) Used() Size {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func (o *OutputSpace) take(n Size) bool {
	s := o.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Limit > 0 && (s.used+n > s.Limit || s.owners[o.owner]+n > s.Limit-s.used-n) {
		return false
	}
	s.add(o.owner, n)
	return true
}

// add is called with mu held.
func (s *OutputStore) add(owner string, n Size) {
	if s.owners == nil {
		s.owners = map[string]Size{}
	}
	s.used += n
	if s.owners[owner] += n; s.owners[owner] == 0 {
		delete(s.owners, owner)
	}
}

// spillFile is an unnamed file with reserved space.
type spillFile struct {
	*os.File
	space *OutputSpace
	size  uint64 // reserved
	once  sync.Once
}

// open makes a file; nil if that fails: less is kept then.
func (o *OutputSpace) open() *spillFile {
	file, err := openUnnamed(o.store.Dir)
	if err != nil {
		return nil
	}
	f := &spillFile{File: file, space: o}
	runtime.SetFinalizer(f, (*spillFile).release) // for a result that is dropped without Close
	return f
}

// grow reserves more space.
func (f *spillFile) grow(n uint64) bool {
	if !f.space.take(Size(n)) {
		return false
	}
	f.size += n
	return true
}

// release removes the file and returns its space.
func (f *spillFile) release() {
	f.once.Do(func() {
		runtime.SetFinalizer(f, nil)
		closeUnnamed(f.File)
		s := f.space.store
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(f.space.owner, -Size(f.size))
	})
}

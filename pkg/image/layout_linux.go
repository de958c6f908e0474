package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// layoutDir is a layout in a directory. It follows no link out of the directory, and opens only regular files.
type layoutDir struct{ root *os.Root }

func (l layoutDir) open(name string) (io.ReaderAt, int64, error) {
	f, err := l.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", name)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// layoutArchive is a layout in an archive that can be read at any offset.
type layoutArchive struct {
	at    io.ReaderAt
	files map[string]extent
	links map[string]string
}

type extent struct{ start, size int64 }

// newLayoutArchive finds the offsets of the files in an archive.
func (s *Store) newLayoutArchive(ctx context.Context, at io.ReaderAt) (*layoutArchive, error) {
	l := &layoutArchive{at: at, files: map[string]extent{}, links: map[string]string{}}
	r := io.NewSectionReader(at, 0, 1<<62)
	archive := tar.NewReader(r)
	names := 0
	for range s.Limits.complete().Entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return l, nil
		}
		if err != nil {
			return nil, broken(err)
		}
		start, err := r.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if names += len(h.Name) + len(h.Linkname); names > maxNames {
			return nil, fmt.Errorf("%w: its names have more than %d bytes", ErrTooLarge, maxNames)
		}
		name := path.Clean(h.Name)
		switch {
		case h.Typeflag == tar.TypeReg && !isSparse(h):
			l.files[name] = extent{start, h.Size}
		case h.Typeflag == tar.TypeSymlink: // to a layer that several images share
			l.links[name] = path.Join(path.Dir(name), h.Linkname)
		case h.Typeflag == tar.TypeLink:
			l.links[name] = path.Clean(h.Linkname)
		}
	}
	return nil, fmt.Errorf("%w: the archive has too many entries", ErrTooLarge)
}

func (l *layoutArchive) open(name string) (io.ReaderAt, int64, error) {
	for range 8 {
		if e, is := l.files[name]; is {
			return io.NewSectionReader(l.at, e.start, e.size), e.size, nil
		}
		to, is := l.links[name]
		if !is {
			break
		}
		name = to
	}
	return nil, 0, fmt.Errorf("the archive has no file %q: %w", shorten(name), os.ErrNotExist)
}

func (l *layoutArchive) has(name string) bool {
	_, is := l.files[name]
	return is
}

// isSaved reports whether the archive is of `docker save`: a root file system may have its own manifest.json.
func (l *layoutArchive) isSaved() bool {
	text, err := readDocument(l, manifestFile, maxManifest)
	if err != nil {
		return false
	}
	var entries []saved
	return json.Unmarshal(text, &entries) == nil && len(entries) > 0 && l.has(path.Clean(entries[0].Config))
}

package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	_ "github.com/sandbox-run/sandbox-run/pkg/image/codec" // sandbox-rund links it
)

// unpackPairs is the number of pairs; each takes seconds.
const unpackPairs = 30

// unpack compares an image of 200 MB of the host's files with tar of the same bytes, compressed as in registries.
func (s *environment) unpack(ctx context.Context) (rows []bench.Row, err error) {
	size, pairs := int64(200<<20), min(s.pairs, unpackPairs)
	if s.smoke {
		size = 8 << 20
	}
	dir := filepath.Join(s.cache, "unpack")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// The removal may take longer than the timeout at the end of the benchmark.
	defer func() { err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), dir)) }()
	plain := filepath.Join(dir, "image.tar")
	files, err := packHost(plain, size)
	if err != nil {
		return nil, err
	}
	packed := plain + ".gz"
	if out, err := exec.CommandContext(ctx, "gzip", "-k", "-6", plain).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gzip: %w: %s", err, out)
	}
	row, err := s.unpackArchive(ctx, dir, packed, pairs)
	row.Note = fmt.Sprintf("%d MiB in %d files of this machine's /usr, from a stored layer to a root that is ready; digests of what is "+
		"unpacked checked as well; neither side waits for the disk", size>>20, files)
	return []bench.Row{row}, err
}

func (s *environment) unpackArchive(ctx context.Context, dir, archive string, pairs int) (bench.Row, error) {
	store, err := image.Open(filepath.Join(dir, "store"))
	if err != nil {
		return bench.Row{}, err
	}
	name := "bench:" + filepath.Ext(archive)[1:]
	images, err := store.ImportPath(ctx, archive, image.ImportOptions{Names: []string{name}})
	if err != nil {
		return bench.Row{}, err
	}
	img := images[0]
	root := filepath.Join(store.Dir(), "roots", img.ID[len("sha256:"):])
	ours := func(ctx context.Context, _ int) (bench.Sample, error) {
		if err := removal.Tree(ctx, root); err != nil {
			return bench.Sample{}, err
		}
		var lease *image.Lease
		sample, err := timed(func() (err error) {
			lease, err = store.Use(img)
			return err
		}, nil)
		if err == nil {
			err = lease.Close()
		}
		return sample, err
	}
	target := filepath.Join(dir, "tar")
	tarPath, err := exec.LookPath("tar")
	if err != nil {
		return bench.Row{}, err
	}
	extract := s.program(tarPath, "-x", "-p", "--numeric-owner", "-f", archive, "-C", target)
	reference := func(ctx context.Context, _ int) (bench.Sample, error) {
		if err := removal.Tree(ctx, target); err != nil {
			return bench.Sample{}, err
		}
		if err := os.Mkdir(target, 0o755); err != nil {
			return bench.Sample{}, err
		}
		return timed(extract.run, nil)
	}
	a, b, err := bench.Pairs(ctx, 1, pairs, ours, reference)
	if err != nil {
		return bench.Row{}, err
	}
	return bench.Compare("unpack an image, "+filepath.Ext(archive)[1:], "tar -x", a, b, 1.3), nil
}

var errEnough = errors.New("enough")

// packHost makes an archive of files of /usr until it has the given size.
func packHost(path string, size int64) (files int, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	buffered := bufio.NewWriterSize(f, 1<<20)
	w := tar.NewWriter(buffered)
	for _, top := range []string{"/usr/share", "/usr/lib"} {
		left := size / 2 // for each kind: many small files, and some large ones
		err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			n, err := packFile(w, p, d)
			if n > 0 {
				files++
			}
			if left -= n; left <= 0 && err == nil {
				return errEnough
			}
			return err
		})
		if err != nil && !errors.Is(err, errEnough) {
			return 0, errors.Join(err, f.Close())
		}
	}
	return files, errors.Join(w.Close(), buffered.Flush(), f.Close())
}

func packFile(w *tar.Writer, p string, d fs.DirEntry) (int64, error) {
	info, err := d.Info()
	if err != nil || !info.Mode().IsRegular() && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
		return 0, err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(p); err != nil {
			return 0, err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return 0, err
	}
	h.Name, h.ModTime = "."+p, info.ModTime().Truncate(time.Second)
	if err := w.WriteHeader(h); err != nil {
		return 0, fmt.Errorf("%s: %w", strconv.Quote(p), err)
	}
	if !info.Mode().IsRegular() {
		return 0, nil
	}
	f, err := os.Open(p)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(w, f)
	return n, errors.Join(err, f.Close())
}

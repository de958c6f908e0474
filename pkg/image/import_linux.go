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
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Import adds the images of an archive: of `docker save`, an OCI layout, or a plain root file system; uncompressed, or compressed
// by gzip or zstd. The store keeps the data of a pipe until the import ends.
func (s *Store) Import(ctx context.Context, r io.Reader, o ImportOptions) ([]*Image, error) {
	images, err := s.importFrom(ctx, r, o)
	return images, failed("import image", err)
}

// ImportPath is Import of a file, or of a directory with an OCI layout.
func (s *Store) ImportPath(ctx context.Context, name string, o ImportOptions) ([]*Image, error) {
	images, err := s.importPath(ctx, name, o)
	return images, failed("import "+name, err)
}

func (s *Store) importPath(ctx context.Context, name string, o ImportOptions) ([]*Image, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return s.importFrom(ctx, f, o)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	l := layoutDir{root}
	if _, _, err := l.open("index.json"); err != nil {
		return nil, fmt.Errorf("%w: the directory holds no OCI layout: %w; for a root file system, give an archive of it", ErrInvalid, err)
	}
	return s.importLayout(ctx, l, o)
}

func (s *Store) importFrom(ctx context.Context, r io.Reader, o ImportOptions) ([]*Image, error) {
	w, err := s.newWork()
	if err != nil {
		return nil, err
	}
	defer w.close()
	f, is := r.(*os.File)
	if is {
		info, err := f.Stat()
		is = err == nil && info.Mode().IsRegular()
	}
	if !is {
		if f, err = s.spool(ctx, w, "in", r); err != nil {
			return nil, err
		}
		defer f.Close()
	}
	var head [6]byte
	n, err := f.ReadAt(head[:], 0)
	if n == 0 {
		return nil, fmt.Errorf("%w: it is empty (%w)", ErrInvalid, err)
	}
	packed, err := compressionOf(head[:n])
	if err != nil {
		return nil, err
	}
	if packed == Plain {
		return s.importArchive(ctx, f, f, o)
	}
	// A plain root file system stays compressed; other archives are uncompressed, because their files are needed.
	is, err = s.isLayout(ctx, f)
	if err != nil {
		return nil, err
	}
	if !is {
		return s.importRoot(ctx, f, o)
	}
	unpacked, _, err := decompress(io.NewSectionReader(f, 0, 1<<62))
	if err != nil {
		return nil, err
	}
	defer unpacked.Close()
	inner, err := s.spool(ctx, w, "unpacked", unpacked)
	if err != nil {
		return nil, broken(err)
	}
	defer inner.Close()
	return s.importArchive(ctx, inner, inner, o)
}

// spool copies a stream to a file.
func (s *Store) spool(ctx context.Context, w *work, name string, r io.Reader) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(w.dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if d, is := r.(interface{ SetReadDeadline(time.Time) error }); is { // a pipe without a writer
		stop := context.AfterFunc(ctx, func() { _ = d.SetReadDeadline(time.Now()) })
		defer stop()
	}
	limit := s.Limits.complete().Bytes
	limit += limit/4 + 64<<20
	n, err := io.CopyBuffer(onlyWriter{f}, &contextReader{ctx, io.LimitReader(r, limit+1)}, make([]byte, readAhead))
	if err == nil && n > limit {
		err = fmt.Errorf("%w: the archive has more than %d bytes", ErrTooLarge, limit)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

type onlyWriter struct{ io.Writer }

// contextReader returns the error of its context at the next read.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// The files that identify an archive of images.
const (
	layoutFile   = "oci-layout"
	indexFile    = "index.json"
	manifestFile = "manifest.json"
)

// isLayout searches a compressed archive for the files of a layout.
func (s *Store) isLayout(ctx context.Context, f *os.File) (bool, error) {
	str, err := newStream(ctx, io.NewSectionReader(f, 0, 1<<62), s.Limits.complete().Bytes*5/4+64<<20, false)
	if err != nil {
		return false, err
	}
	defer str.close()
	archive := tar.NewReader(str)
	for range s.Limits.complete().Entries {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, broken(err)
		}
		switch path.Clean(h.Name) {
		case layoutFile:
			return true, nil
		case manifestFile:
			var entries []saved
			return json.NewDecoder(io.LimitReader(archive, maxManifest)).Decode(&entries) == nil && len(entries) > 0 && entries[0].Config != "", nil
		}
	}
	return false, fmt.Errorf("%w: the archive has too many entries", ErrTooLarge)
}

// importArchive adds the images of an uncompressed archive.
func (s *Store) importArchive(ctx context.Context, f *os.File, at io.ReaderAt, o ImportOptions) ([]*Image, error) {
	l, err := s.newLayoutArchive(ctx, at)
	if err != nil {
		return nil, err
	}
	if l.has(indexFile) && l.has(layoutFile) || l.isSaved() {
		return s.importLayout(ctx, l, o)
	}
	return s.importRoot(ctx, f, o)
}

// importRoot adds a plain root file system: an image of one layer, which is the archive itself.
func (s *Store) importRoot(ctx context.Context, f *os.File, o ImportOptions) ([]*Image, error) {
	if len(o.Names) == 0 {
		return nil, sandbox.Invalid("name", "a plain root file system needs one: --name NAME[:TAG]")
	}
	img, err := s.Add(ctx, Source{
		Names: o.Names, Config: plainConfig(o.Config),
		Layers: []Layer{{Open: sectionOpener(f, 0, 1<<62)}},
	})
	if err != nil {
		return nil, err
	}
	return []*Image{img}, nil
}

func sectionOpener(at io.ReaderAt, start, size int64) func(context.Context, int64) (io.ReadCloser, error) {
	return func(_ context.Context, offset int64) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(at, start+offset, size-min(offset, size))), nil
	}
}

// saved is an entry of the manifest.json of `docker save`.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// layout is a directory or an archive with the files of images. The readers of go-containerregistry (layout, tarball; v0.22) are
// not suitable: they read documents of any size into memory, follow links out of a directory, and read an archive again for every
// layer.
type layout interface {
	// open opens a regular file to be read at any offset; close it if it is an io.Closer.
	open(name string) (at io.ReaderAt, size int64, err error)
}

// readDocument reads a small file of a layout.
func readDocument(l layout, name string, most int64) ([]byte, error) {
	at, size, err := l.open(name)
	if err != nil {
		return nil, err
	}
	if c, is := at.(io.Closer); is {
		defer c.Close()
	}
	if size > most {
		return nil, fmt.Errorf("%s: %d bytes are too many", name, size)
	}
	return io.ReadAll(io.NewSectionReader(at, 0, size))
}

// importLayout adds all images of a layout for the platform.
func (s *Store) importLayout(ctx context.Context, l layout, o ImportOptions) ([]*Image, error) {
	if o.Platform == "" {
		o.Platform = "linux/" + runtime.GOARCH
	}
	sources, err := sourcesOf(l, o.Platform)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%w: it holds no image for %s", ErrInvalid, o.Platform)
	}
	if len(o.Names) > 0 {
		if len(sources) > 1 {
			return nil, sandbox.Invalid("name", "the archive holds %d images; import it without a name, and tag them", len(sources))
		}
		sources[0].Names = o.Names
	}
	var images []*Image
	for _, src := range sources {
		img, err := s.Add(ctx, src)
		if err != nil {
			return images, err
		}
		images = append(images, img)
	}
	return images, nil
}

const maxImages = 256

// sourcesOf finds the images of a layout: in its index, and in the manifest of `docker save` those that the index lacks.
func sourcesOf(l layout, platform string) ([]Source, error) {
	var sources []Source
	if text, err := readDocument(l, indexFile, maxManifest); err == nil {
		var top index
		if err := json.Unmarshal(text, &top); err != nil {
			return nil, fmt.Errorf("%s: %w", indexFile, err)
		}
		if sources, err = indexSources(l, top, platform, 0); err != nil {
			return nil, err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	more, err := savedSources(l)
	if err != nil {
		return nil, err
	}
	for _, m := range more {
		i := slices.IndexFunc(sources, func(s Source) bool { return slices.Equal(s.Config, m.Config) })
		if i < 0 {
			sources = append(sources, m)
			continue
		}
		sources[i].Names = append(sources[i].Names, m.Names...)
	}
	if len(sources) > maxImages {
		return nil, fmt.Errorf("it holds %d images, and %d are allowed at a time", len(sources), maxImages)
	}
	return sources, nil
}

// indexSources follows an index. An index of several platforms stands for the image of the wanted platform.
func indexSources(l layout, x index, platform string, depth int) ([]Source, error) {
	if depth > 4 || len(x.Manifests) > maxImages {
		return nil, errors.New("its index is too deep or too long")
	}
	var sources []Source
	for _, d := range x.Manifests {
		if d.Platform != nil && !d.Platform.matches(platform) {
			continue
		}
		text, err := readBlob(l, d.Digest, maxManifest)
		if errors.Is(err, os.ErrNotExist) && depth > 0 {
			continue // the archive has only some platforms of the image
		}
		if err != nil {
			return nil, err
		}
		var found []Source
		if d.MediaType == typeIndex || d.MediaType == typeDockerList {
			var inner index
			if err := json.Unmarshal(text, &inner); err != nil {
				return nil, fmt.Errorf("index %s: %w", d.Digest, err)
			}
			if found, err = indexSources(l, inner, platform, depth+1); err != nil {
				return nil, err
			}
		} else {
			src, err := manifestSource(l, text)
			if err != nil {
				return nil, err
			}
			found = []Source{src}
		}
		name := annotatedName(d.Annotations)
		for i := range found {
			if c, err := parseConfig(found[i].Config); err != nil || d.Platform == nil && !c.platform().matches(platform) && depth > 0 {
				continue
			}
			if name != "" {
				found[i].Names = append(found[i].Names, name)
			}
			sources = merge(sources, found[i])
		}
	}
	return sources, nil
}

// merge adds an image, or its names if the list has it: a layout lists an image once per name.
func merge(sources []Source, src Source) []Source {
	for i := range sources {
		if slices.Equal(sources[i].Manifest, src.Manifest) {
			sources[i].Names = append(sources[i].Names, src.Names...)
			return sources
		}
	}
	return append(sources, src)
}

// annotatedName returns the name of an image in an index, if it is a full one.
func annotatedName(annotations map[string]string) string {
	if name := annotations[annotationContainerdName]; name != "" {
		return name
	}
	if name := annotations[annotationRefName]; strings.ContainsAny(name, ":/") {
		return name
	}
	return ""
}

func readBlob(l layout, digest string, most int64) ([]byte, error) {
	hex, err := digestHex(digest)
	if err != nil {
		return nil, err
	}
	text, err := readDocument(l, path.Join("blobs", "sha256", hex), most)
	if err != nil {
		return nil, err
	}
	if got := digestOf(text); got != digest {
		return nil, fmt.Errorf("blob %s is %s", digest, got)
	}
	return text, nil
}

func manifestSource(l layout, text []byte) (Source, error) {
	m, err := parseManifest(text)
	if err != nil {
		return Source{}, err
	}
	config, err := readBlob(l, m.Config.Digest, maxConfig)
	if err != nil {
		return Source{}, err
	}
	src := Source{Manifest: text, Config: config}
	for _, d := range m.Layers {
		src.Layers = append(src.Layers, Layer{
			Digest: d.Digest, MediaType: d.MediaType, Size: d.Size,
			Open: layoutOpener(l, path.Join("blobs", "sha256", d.Digest[len(digestPrefix):])),
		})
	}
	return src, nil
}

// savedSources reads the manifest of `docker save`.
func savedSources(l layout) ([]Source, error) {
	text, err := readDocument(l, manifestFile, maxManifest)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var entries []saved
	if err := json.Unmarshal(text, &entries); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestFile, err)
	}
	if len(entries) > maxImages {
		return nil, fmt.Errorf("%s: %d images are too many", manifestFile, len(entries))
	}
	var sources []Source
	for _, e := range entries {
		config, err := readDocument(l, path.Clean(e.Config), maxConfig)
		if err != nil {
			return nil, fmt.Errorf("%s: configuration: %w", manifestFile, err)
		}
		src := Source{Names: e.RepoTags, Config: config}
		for _, name := range e.Layers {
			src.Layers = append(src.Layers, Layer{Open: layoutOpener(l, path.Clean(name))})
		}
		sources = append(sources, src)
	}
	return sources, nil
}

func layoutOpener(l layout, name string) func(context.Context, int64) (io.ReadCloser, error) {
	return func(_ context.Context, offset int64) (io.ReadCloser, error) {
		at, size, err := l.open(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		r := io.NewSectionReader(at, offset, size-min(offset, size))
		if c, is := at.(io.Closer); is {
			return struct {
				io.Reader
				io.Closer
			}{r, c}, nil
		}
		return io.NopCloser(r), nil
	}
}

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
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Export writes images as one archive. Equal images give equal archives.
func (s *Store) Export(ctx context.Context, refs []string, w io.Writer, f Format) error {
	a := &archiveSink{tar: tar.NewWriter(w), seen: map[string]bool{}}
	err := s.export(ctx, refs, a, f)
	if err == nil {
		err = a.tar.Close()
	}
	return failed("export image", err)
}

// ExportDir writes images as an OCI layout into a missing or empty directory. After an error, the caller removes the files.
func (s *Store) ExportDir(ctx context.Context, refs []string, dir string) error {
	return failed("export image", s.exportDir(ctx, refs, dir))
}

func (s *Store) exportDir(ctx context.Context, refs []string, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return sandbox.Invalid("directory", "%s is not empty; name one that is, or a new one", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return s.export(ctx, refs, dirSink{root}, FormatOCI)
}

// sink receives the files of a layout. It skips a name that it already has.
type sink interface {
	put(name string, size int64, r io.Reader) error
	has(name string) bool
}

func (s *Store) export(ctx context.Context, refs []string, to sink, f Format) error {
	if f != FormatOCI && f != FormatDocker {
		return sandbox.Invalid("format", "%q is not known; %q and %q are", f, FormatOCI, FormatDocker)
	}
	if len(refs) == 0 {
		return sandbox.Invalid("image", "none is named")
	}
	var records []*record
	var names [][]string
	for _, ref := range refs {
		r, err := s.lookup(ref)
		if err != nil {
			return notFound(ref, err)
		}
		// Under the requested name; for an id or a digest, under all names.
		of := []string{s.nameIn(ref, r.ID)}
		if of[0] == "" {
			if of, err = s.namesOf(r.ID); err != nil {
				return err
			}
		}
		if i := slices.IndexFunc(records, func(other *record) bool { return other.ID == r.ID }); i >= 0 {
			names[i] = append(names[i], of...)
			continue
		}
		records, names = append(records, r), append(names, of)
	}
	// No process may remove its layers during the copy.
	content, err := s.lock(contentLock, true, contentTimeout)
	if err != nil {
		return err
	}
	defer content.Close()
	for i := range names {
		slices.Sort(names[i])
		names[i] = slices.Compact(names[i])
	}
	if f == FormatDocker {
		return s.exportSaved(ctx, records, names, to)
	}
	return s.exportLayout(ctx, records, names, to)
}

func (s *Store) exportLayout(ctx context.Context, records []*record, names [][]string, to sink) error {
	if err := putText(to, layoutFile, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	top := index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{}}
	for i, r := range records {
		text, err := s.readAll(r.Digest)
		if err != nil {
			return err
		}
		m, err := parseManifest(text)
		if err != nil {
			return err
		}
		d := descriptor{MediaType: m.MediaType, Digest: r.Digest, Size: int64(len(text)), Platform: platformOf(r.Platform)}
		if d.MediaType == "" {
			d.MediaType = typeManifest
		}
		if len(names[i]) == 0 {
			top.Manifests = append(top.Manifests, d)
		}
		for _, name := range names[i] {
			d.Annotations = map[string]string{annotationContainerdName: name, annotationRefName: name}
			top.Manifests = append(top.Manifests, d)
		}
		for _, digest := range append([]string{r.Digest, r.ID}, r.Layers...) {
			if err := s.exportBlob(ctx, digest, to); err != nil {
				return err
			}
		}
	}
	text, err := json.Marshal(top)
	if err != nil {
		return err
	}
	return putText(to, indexFile, text)
}

func platformOf(s string) *platform {
	parts := append(strings.Split(s, "/"), "", "")
	return &platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}
}

func (s *Store) exportBlob(ctx context.Context, digest string, to sink) error {
	name := path.Join("blobs", "sha256", digest[len(digestPrefix):])
	if to.has(name) {
		return nil
	}
	blob, err := s.openBlob(digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	info, err := blob.Stat()
	if err != nil {
		return err
	}
	return to.put(name, info.Size(), &contextReader{ctx, blob})
}

// exportSaved writes the format of `docker load`, with uncompressed layers: older versions do not know every compression.
func (s *Store) exportSaved(ctx context.Context, records []*record, names [][]string, to sink) error {
	entries := []saved{}
	for i, r := range records {
		config, err := s.readAll(r.ID)
		if err != nil {
			return err
		}
		// The full names: Docker and podman complete short names differently.
		e := saved{Config: r.ID[len(digestPrefix):] + ".json", RepoTags: append([]string{}, names[i]...), Layers: []string{}}
		if err := putText(to, e.Config, config); err != nil {
			return err
		}
		for _, p := range r.Parts {
			name := path.Join(p.DiffID[len(digestPrefix):], "layer.tar")
			e.Layers = append(e.Layers, name)
			if err := s.exportUnpacked(ctx, p, name, to); err != nil {
				return err
			}
		}
		entries = append(entries, e)
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	return putText(to, manifestFile, text)
}

func (s *Store) exportUnpacked(ctx context.Context, p part, name string, to sink) error {
	if to.has(name) {
		return nil
	}
	blob, err := s.openBlob(p.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	str, err := newStream(ctx, blob, p.Unpacked, false)
	if err != nil {
		return err
	}
	defer str.close()
	return to.put(name, p.Unpacked, str)
}

func (s *Store) readAll(digest string) ([]byte, error) {
	blob, err := s.openBlob(digest)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	return io.ReadAll(io.LimitReader(blob, maxConfig+1))
}

func putText(to sink, name string, text []byte) error {
	if to.has(name) {
		return nil
	}
	return to.put(name, int64(len(text)), strings.NewReader(string(text)))
}

// archiveSink is an archive, with the directory entries that some readers need.
type archiveSink struct {
	tar  *tar.Writer
	seen map[string]bool
}

func (a *archiveSink) has(name string) bool { return a.seen[name] }

func (a *archiveSink) put(name string, size int64, r io.Reader) error {
	if err := a.dir(path.Dir(name)); err != nil {
		return err
	}
	a.seen[name] = true
	if err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644}); err != nil {
		return err
	}
	return copyExactly(a.tar, r, name, size)
}

func copyExactly(w io.Writer, r io.Reader, name string, size int64) error {
	n, err := io.CopyBuffer(onlyWriter{w}, onlyReader{r}, make([]byte, readAhead))
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, and should have %d", name, n, size)
	}
	return err
}

func (a *archiveSink) dir(name string) error {
	if name == "." || a.seen[name] {
		return nil
	}
	if err := a.dir(path.Dir(name)); err != nil {
		return err
	}
	a.seen[name] = true
	return a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
}

// dirSink is a directory.
type dirSink struct{ root *os.Root }

func (d dirSink) has(name string) bool {
	_, err := d.root.Lstat(name)
	return err == nil
}

func (d dirSink) put(name string, size int64, r io.Reader) error {
	if err := d.root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(copyExactly(f, r, name, size), f.Close())
}

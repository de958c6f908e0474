package image_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestLookup(t *testing.T) {
	s := newStore(t)
	one := added(t, s, "one", archive(t, file("f", "1")))
	two := added(t, s, "ghcr.io/a/two:v2", archive(t, file("f", "2")))
	if one.ID == two.ID || one.Digest == one.ID || !slices.Equal(one.Names, []string{"docker.io/library/one:latest"}) {
		t.Errorf("%+v", one)
	}
	for ref, want := range map[string]string{
		"one": one.ID, "one:latest": one.ID, "docker.io/library/one": one.ID, "ghcr.io/a/two:v2": two.ID,
		one.ID: one.ID, one.Digest: one.ID, one.ID[7:]: one.ID, one.ID[7:19]: one.ID, two.ID[:14]: two.ID, "one@" + one.Digest: one.ID,
		"one:x@" + one.Digest: one.ID,
	} {
		img, err := s.Lookup(ref)
		if err != nil || img.ID != want || len(img.Names) != 1 {
			t.Errorf("%s: %+v, %v", ref, img, err)
		}
	}
	for _, ref := range []string{"", "none", "one:v2", "ghcr.io/a/two", "fff", "sha256:" + strings.Repeat("0", 64),
		"one@sha256:" + strings.Repeat("0", 64), "UPPER CASE", "../images", "@", "sha256:zz"} {
		img, err := s.Lookup(ref)
		if err == nil || !errors.Is(err, image.ErrNotFound) && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v, %v", ref, img, err)
		}
	}
	if _, err := s.Lookup("none"); !errors.Is(err, image.ErrNotFound) || !strings.Contains(err.Error(), "sandbox-run image list") {
		t.Error(err)
	}
	// Names move.
	again, err := s.Tag("ghcr.io/a/two:v2", "one")
	if err != nil || again.ID != two.ID || len(again.Names) != 2 {
		t.Errorf("%+v, %v", again, err)
	}
	if img, err := s.Lookup(one.ID); err != nil || len(img.Names) != 0 {
		t.Errorf("%+v, %v", img, err)
	}
	if _, err := s.Tag("none", "x"); !errors.Is(err, image.ErrNotFound) {
		t.Error(err)
	}
	for _, name := range []string{"", "X", "x@" + one.Digest} {
		if _, err := s.Tag("one", name); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	all, err := s.List()
	if err != nil || len(all) != 2 || all[0].ID != two.ID || all[1].ID != one.ID {
		t.Errorf("%v, %v", all, err)
	}
}

func TestAmbiguousPrefix(t *testing.T) {
	s := newStore(t)
	first := map[string]string{}
	for i := 0; ; i++ { // some two begin alike soon
		if i > 4000 {
			t.Fatal("no two ids begin alike")
		}
		config := fmt.Appendf(nil, `{"os":"linux","rootfs":{"diff_ids":[]},"config":{"Labels":{"n":"%d"}}}`, i)
		prefix := digest(config)[7:11]
		other, twice := first[prefix]
		if !twice {
			first[prefix] = string(config)
			continue
		}
		for _, c := range []string{other, string(config)} {
			_, err := s.Add(t.Context(), image.Source{Config: []byte(c)})
			must(t, err)
		}
		if _, err := s.Lookup(prefix); !errors.Is(err, image.ErrAmbiguous) {
			t.Error(err)
		}
		return
	}
}

func TestConfig(t *testing.T) {
	s := newStore(t)
	layer := archive(t, file("f", "x"))
	config := []byte(`{"created":"2024-01-02T03:04:05Z","architecture":"arm64","variant":"v8","os":"linux","unknown":{"kept":1},
		"config":{"Env":["A=b"],"WorkingDir":"/w","User":"app","Entrypoint":["/e"],"Cmd":["c"],"Labels":{"l":"v"}}}`)
	src := sourceOf("x", layer)
	src.Config = config
	img, err := s.Add(t.Context(), src)
	must(t, err)
	got, _ := json.Marshal(img.Config)
	want, _ := json.Marshal(image.Config{Env: []string{"A=b"}, Workdir: "/w", User: "app", Entrypoint: []string{"/e"}, Cmd: []string{"c"},
		Labels: map[string]string{"l": "v"}})
	if !bytes.Equal(got, want) || img.Platform != "linux/arm64/v8" || img.Created.Unix() != 1704164645 || img.Size != 1 ||
		len(img.Layers) != 1 {
		t.Errorf("%s %+v", got, img)
	}
	blob, err := s.Blob(img.ID)
	must(t, err)
	defer blob.Close()
	stored, err := io.ReadAll(blob)
	must(t, err)
	if !bytes.Contains(stored, []byte(`"kept":1`)) || !bytes.Contains(stored, []byte(digest(layer))) {
		t.Errorf("%s", stored)
	}
	// The same again is the same.
	again, err := s.Add(t.Context(), src)
	if err != nil || again.ID != img.ID || again.Digest != img.Digest {
		t.Errorf("%+v, %v", again, err)
	}
}

// described completes a source the way a registry serves it.
func described(t testing.TB, src image.Source, diffIDs ...string) image.Source {
	t.Helper()
	var layers []map[string]any
	for _, l := range src.Layers {
		layers = append(layers, map[string]any{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": l.Digest, "size": l.Size})
	}
	var err error
	src.Config, err = json.Marshal(map[string]any{"os": "linux", "architecture": "amd64",
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs}})
	must(t, err)
	src.Manifest, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": layers,
		"config": map[string]any{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(src.Config), "size": len(src.Config)},
	})
	must(t, err)
	return src
}

// What does not match what it claims to be is refused, and nothing of it stays.
func TestAddMismatches(t *testing.T) {
	layer := archive(t, file("f", "x"))
	other := archive(t, file("g", "y"))
	packed := gzipped(t, layer)
	lying := func(claim, data []byte) image.Layer {
		l := layerOf(data)
		l.Digest, l.Size = digest(claim), int64(len(claim))
		return l
	}
	edit := func(src image.Source, f func(*image.Source)) image.Source {
		f(&src)
		return src
	}
	good := described(t, sourceOf("x", packed), digest(layer))
	for name, c := range map[string]struct {
		src    image.Source
		refuse string
	}{
		"control": {good, ""},
		"layer digest": {described(t, image.Source{Layers: []image.Layer{lying(packed, append(slices.Clone(packed[:len(packed)-1]), 'x'))}},
			digest(layer)), "what came is"},
		"layer too long": {described(t, image.Source{Layers: []image.Layer{lying(packed, append(slices.Clone(packed), 'x'))}}, digest(layer)),
			"more bytes came"},
		"layer size": {described(t,
			image.Source{Layers: []image.Layer{{Digest: digest(packed), Size: int64(len(packed)) - 1, Open: layerOf(packed).Open}}}, digest(layer)),
			"more bytes came"},
		"diff id":          {described(t, sourceOf("x", packed), digest(other)), "unpacks to"},
		"diff id packed":   {described(t, sourceOf("x", packed), digest(packed)), "compressed form"},
		"diff ids missing": {described(t, sourceOf("x", packed)), "diff ids"},
		"diff ids more":    {described(t, sourceOf("x", packed), digest(layer), digest(layer)), "speaks of 2 layers"},
		"config":           {edit(good, func(s *image.Source) { s.Config = append(slices.Clone(s.Config), ' ') }), "the manifest says"},
		"no config":        {edit(good, func(s *image.Source) { s.Config = nil }), "no configuration"},
		"layers fewer":     {edit(good, func(s *image.Source) { s.Layers = nil }), "there are 0"},
		"layer other":      {edit(good, func(s *image.Source) { s.Layers = []image.Layer{layerOf(other)} }), "the manifest says"},
		"manifest junk":    {edit(good, func(s *image.Source) { s.Manifest = []byte("{") }), "manifest"},
		"manifest index": {edit(good, func(s *image.Source) {
			s.Manifest = []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json"}`)
		}), "not an image"},
		"manifest v1": {edit(good, func(s *image.Source) { s.Manifest = []byte(`{"schemaVersion":1}`) }), "schema version 1"},
		"bad digest": {edit(good, func(s *image.Source) {
			s.Manifest = bytes.ReplaceAll(s.Manifest, []byte(digest(packed)), []byte("sha256:../../../../etc/passwd"))
		}), "not a digest"},
		"negative size": {edit(good, func(s *image.Source) {
			s.Manifest = bytes.ReplaceAll(s.Manifest, fmt.Appendf(nil, `"size":%d`, len(packed)), []byte(`"size":-1`))
		}), "-1 bytes"},
		"an artefact": {edit(good, func(s *image.Source) {
			s.Manifest = bytes.ReplaceAll(s.Manifest, []byte("layer.v1.tar+gzip"), []byte("vnd.in-toto+json"))
		}), "no archive"},
		"windows": {image.Source{Config: []byte(`{"os":"windows"}`)}, "windows"},
		"null":    {image.Source{Config: []byte(`null`), Layers: []image.Layer{layerOf(layer)}}, "null"},
		"junk":    {image.Source{Config: []byte(`[]`)}, "configuration"},
		"name":    {edit(good, func(s *image.Source) { s.Names = []string{"Not A Name"} }), "image name"},
		"open fails": {image.Source{Layers: []image.Layer{{Open: func(context.Context, int64) (io.ReadCloser, error) {
			return nil,
				errors.New("no such source")
		}}}}, "no such source"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Add(t.Context(), c.src)
			if c.refuse == "" {
				must(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.refuse) {
				t.Errorf("%v", err)
			}
			if all, err := s.List(); err != nil || len(all) > 0 {
				t.Errorf("%v, %v", all, err)
			}
			isEmptyAfterDay(t, s)
		})
	}
}

// Layers that come beside the configuration of an image that is here already are held to it, too: neither its digest nor what is exported
// becomes a stranger's.
func TestAddOtherLayersToAnImage(t *testing.T) {
	layer, other := archive(t, file("f", "x")), archive(t, file("f", "y"))
	for name, hostile := range map[string][]byte{"plain": other, "packed": gzipped(t, other), "junk": []byte("no archive"),
		"bomb": gzipped(t, make([]byte, 80<<20))} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.Limits.Bytes = 1 << 10
			good, err := s.Add(t.Context(), described(t, sourceOf("good", gzipped(t, layer)), digest(layer)))
			must(t, err)
			if img, err := s.Add(t.Context(), described(t, sourceOf("evil", hostile), digest(layer))); !errors.Is(err, image.ErrInvalid) &&
				!errors.Is(err, image.ErrTooLarge) {
				t.Errorf("%+v, %v", img, err)
			}
			got, err := s.Lookup("good@" + good.Digest)
			if err != nil || got.Digest != good.Digest || !slices.Equal(got.Layers, good.Layers) || len(got.Names) != 1 {
				t.Errorf("%+v, %v", got, err)
			}
			again, err := newStore(t).Import(t.Context(), bytes.NewReader(exported(t, s, image.FormatOCI, "good")), image.ImportOptions{})
			if err != nil || again[0].ID != good.ID {
				t.Errorf("%+v, %v", again, err)
			}
			// The control: the same files, packed another way.
			repacked, err := s.Add(t.Context(), described(t, sourceOf("repacked", zstded(t, layer)), digest(layer)))
			if err != nil || repacked.ID != good.ID || repacked.Digest == good.Digest {
				t.Errorf("%+v, %v", repacked, err)
			}
		})
	}
}

// cutReader fails after so many bytes.
type cutReader struct {
	io.Reader
	left int
}

func (r *cutReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, errors.New("connection reset")
	}
	n, err := r.Reader.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

// A transfer that is cut off goes on where it was; one that gets nowhere ends, and the next attempt goes on.
func TestAddResumes(t *testing.T) {
	s := newStore(t)
	packed := gzipped(t, archive(t, file("f", strings.Repeat("some text ", 1000)), file("g", "x")))
	var offsets []int64
	src := sourceOf("x", packed)
	whole := src.Layers[0].Open
	src.Layers[0].Open = func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		offsets = append(offsets, offset)
		r, err := whole(ctx, offset)
		if len(offsets) < 4 {
			return io.NopCloser(&cutReader{r, 20}), err
		}
		return r, err
	}
	img, err := s.Add(t.Context(), src)
	must(t, err)
	if !slices.Equal(offsets, []int64{0, 20, 40, 60}) {
		t.Errorf("%v", offsets)
	}
	_, _, err = s.Remove("x", false)
	must(t, err)

	offsets = nil
	src.Layers[0].Open = func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		offsets = append(offsets, offset)
		r, err := whole(ctx, offset)
		return io.NopCloser(&cutReader{r, int(max(0, 30-offset))}), err
	}
	if _, err := s.Add(t.Context(), src); err == nil || !strings.Contains(err.Error(), "connection reset") {
		t.Error(err)
	}
	if len(offsets) > 10 || offsets[len(offsets)-1] != 30 {
		t.Errorf("%v", offsets)
	}
	offsets = nil
	src.Layers[0].Open = func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		offsets = append(offsets, offset)
		return whole(ctx, offset)
	}
	again, err := s.Add(t.Context(), src) // as another process would, tomorrow
	must(t, err)
	if !slices.Equal(offsets, []int64{30}) || again.ID != img.ID {
		t.Errorf("%v", offsets)
	}
	// A beginning that is wrong is thrown away.
	_, _, err = s.Remove("x", false)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.Dir(), "partial", digest(packed)[7:]), []byte("something else"), 0o600))
	offsets = nil
	_, err = s.Add(t.Context(), src)
	must(t, err)
	if !slices.Equal(offsets, []int64{14, 0}) {
		t.Errorf("%v", offsets)
	}
}

// A peer that falls silent does not outlast the context.
func TestAddEndsWithContext(t *testing.T) {
	s := newStore(t)
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.Add(ctx, image.Source{Names: []string{"x"},
		Layers: []image.Layer{{Open: func(context.Context, int64) (io.ReadCloser, error) { return r, nil }}}})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	must(t, s.Collect(t.Context()))
	isEmpty(t, s)
}

// Layers are fetched side by side, none twice, and not those that are here.
func TestAddFetchesOnce(t *testing.T) {
	s := newStore(t)
	var most, now, opened atomic.Int32
	src := sourceOf("x")
	for i := range 8 {
		l := layerOf(gzipped(t, archive(t, file(fmt.Sprint(i), "x"))))
		whole := l.Open
		l.Open = func(ctx context.Context, offset int64) (io.ReadCloser, error) {
			opened.Add(1)
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(20 * time.Millisecond)
			return whole(ctx, offset)
		}
		src.Layers = append(src.Layers, l)
	}
	var adding sync.WaitGroup
	src.Layers = append(src.Layers, src.Layers[2]) // one twice, as images have that change nothing in a step
	for range 3 {
		adding.Go(func() {
			if _, err := s.Add(context.Background(), src); err != nil {
				t.Error(err)
			}
		})
	}
	adding.Wait()
	if opened.Load() != 8 || most.Load() < 2 {
		t.Errorf("%d opened, %d at a time", opened.Load(), most.Load())
	}
	src.Names = []string{"y"}
	img, err := s.Add(t.Context(), src)
	if err != nil || opened.Load() != 8 || len(img.Names) != 2 || !s.Has(src.Layers[0].Digest) {
		t.Errorf("%d opened, %v", opened.Load(), err)
	}
}

func TestRemove(t *testing.T) {
	s := newStore(t)
	base := archive(t, file("base", "x"))
	one := added(t, s, "one", base, archive(t, file("f", "1")))
	two := added(t, s, "two", base, archive(t, file("f", "2")))
	_, err := s.Tag("one", "uno")
	must(t, err)
	if _, removed, err := s.Remove("one", false); err != nil || removed { // a name less
		t.Errorf("%v, %v", removed, err)
	}
	_, err = s.Tag("uno", "eins")
	must(t, err)
	if _, _, err := s.Remove(one.ID, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Error(err)
	}
	l, err := s.Use(one)
	must(t, err)
	if _, _, err := s.Remove(one.ID, true); !errors.Is(err, image.ErrInUse) {
		t.Error(err)
	}
	if read(t, l.Dir(), "f") != "1" {
		t.Error("it is damaged")
	}
	must(t, l.Close())
	must(t, l.Close())
	if _, removed, err := s.Remove(one.ID[7:20], true); err != nil || !removed {
		t.Errorf("%v, %v", removed, err)
	}
	if _, _, err := s.Remove("uno", false); !errors.Is(err, image.ErrNotFound) {
		t.Error(err)
	}
	if _, err := s.Use(one); !errors.Is(err, image.ErrNotFound) {
		t.Error(err)
	}
	if !s.Has(two.Layers[0]) || s.Has(one.Layers[1]) { // what both have stays
		t.Error("blobs")
	}
	if root := used(t, s, two); read(t, root, "base") != "x" || read(t, root, "f") != "2" {
		t.Error("the other one is damaged")
	}
}

func TestPrune(t *testing.T) {
	s := newStore(t)
	added(t, s, "named", archive(t, file("f", "1")))
	nameless := added(t, s, "", archive(t, file("f", "2")))
	inUse := added(t, s, "", archive(t, file("f", "3")))
	l, err := s.Use(inUse)
	must(t, err)
	r, err := s.Prune(t.Context(), image.PruneOptions{DryRun: true})
	if err != nil || len(r.Images) != 1 || r.Images[0].ID != nameless.ID {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = s.Prune(t.Context(), image.PruneOptions{Older: time.Hour}); err != nil || len(r.Images) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = s.Prune(t.Context(), image.PruneOptions{}); err != nil || len(r.Images) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	must(t, l.Close())
	if r, err = s.Prune(t.Context(), image.PruneOptions{All: true}); err != nil || len(r.Images) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	isEmpty(t, s)
}

func TestOpen(t *testing.T) {
	top := t.TempDir()
	shared := filepath.Join(top, "shared")
	must(t, os.Mkdir(shared, 0o777))
	must(t, os.Chmod(shared, 0o777))
	if _, err := image.Open(shared); err == nil || !strings.Contains(err.Error(), "others can write") {
		t.Error(err)
	}
	must(t, os.Chmod(shared, 0o755))
	s, err := image.Open(shared)
	must(t, err)
	if modeOf(t, shared) != 0o700 { // strangers' programs are not for other users
		t.Errorf("%o", modeOf(t, shared))
	}
	must(t, os.Symlink(shared, filepath.Join(top, "link")))
	if _, err := image.Open(filepath.Join(top, "link")); err == nil {
		t.Error("a link was followed")
	}
	must(t, os.WriteFile(filepath.Join(top, "file"), nil, 0o600))
	if _, err := image.Open(filepath.Join(top, "file")); err == nil {
		t.Error("a file is no store")
	}
	// A umask and a directory of a group change nothing.
	must(t, os.Chmod(s.Dir(), 0o700|os.ModeSetgid))
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	img := added(t, s, "x", archive(t, dir("d", 0o755), file("d/f", "x"), withMode(file("g", "x"), 0o666)))
	root := used(t, s, img)
	if modeOf(t, root, "d") != 0o755 || modeOf(t, root, "d/f") != 0o644 || modeOf(t, root, "g") != 0o666 || modeOf(t, root) != 0o755 {
		t.Errorf("%q", tree(t, root))
	}
	dir, err := image.DefaultDir()
	if err != nil || !filepath.IsAbs(dir) {
		t.Errorf("%q, %v", dir, err)
	}
}

// Open leaves a directory of another purpose as it is: it neither changes the mode nor writes to it.
func TestOpenLeavesOthersAlone(t *testing.T) {
	for name, there := range map[string][]string{
		"a file": {"passwd"}, "a name of ours": {"work/notes"},
		"most names of ours": {"blobs/", "images/", "names/", "roots/", "work/", "passwd"},
		"many":               {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			must(t, os.Chmod(top, 0o755))
			for _, p := range there {
				must(t, os.MkdirAll(filepath.Join(top, filepath.Dir(p)), 0o755))
				if !strings.HasSuffix(p, "/") {
					must(t, os.WriteFile(filepath.Join(top, p), nil, 0o644))
				}
			}
			if name == "a name of ours" {
				must(t, os.WriteFile(filepath.Join(top, "mine"), nil, 0o644))
			}
			before := tree(t, top)
			if _, err := image.Open(top); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "no store") {
				t.Error(err)
			}
			if after := tree(t, top); !slices.Equal(before, after) || modeOf(t, top) != 0o755 {
				t.Errorf("%o\n%q\n%q", modeOf(t, top), before, after)
			}
		})
	}
	// The control: one that was not finished, on a disk of its own.
	top := t.TempDir()
	for _, name := range []string{"blobs", "images", "lost+found"} {
		must(t, os.Mkdir(filepath.Join(top, name), 0o700))
	}
	s, err := image.Open(top)
	must(t, err)
	added(t, s, "x", archive(t, file("f", "x")))
}

// Looking up an image and holding it is part of every run.
func TestLookupIsQuick(t *testing.T) {
	s := newStore(t)
	for i := range 40 {
		added(t, s, fmt.Sprintf("image-%d", i), archive(t, file("f", fmt.Sprint(i))))
	}
	var times []time.Duration
	for range 200 {
		began := time.Now()
		again, err := image.Open(s.Dir())
		must(t, err)
		img, err := again.Lookup("image-7")
		must(t, err)
		l, err := again.Use(img)
		must(t, err)
		times = append(times, time.Since(began))
		must(t, l.Close())
	}
	slices.Sort(times)
	t.Logf("median %v", times[len(times)/2])
	// What a busy machine takes is not the store's: of many, some are left alone.
	if usual := times[len(times)/10]; usual > 5*time.Millisecond { // 0.2 on a machine with nothing else to do, without the race detector
		t.Errorf("%v", usual)
	}
}

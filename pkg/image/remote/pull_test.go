package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

func TestPullByTagAndDigest(t *testing.T) {
	reg := newRegistry(t)
	want := imageOf(t, "linux/amd64", 1, 1000, 2000)
	reg.push("some/thing:v1", want)
	store := newStore(t)
	img := pullWorks(t, store, reg.ref("some/thing:v1"), quick())
	if img.Digest != digestOfImage(t, want) {
		t.Errorf("digest %s, want %s", img.Digest, digestOfImage(t, want))
	}
	if !slices.Equal(img.Names, []string{reg.ref("some/thing:v1")}) {
		t.Errorf("names %q", img.Names)
	}
	if !slices.Equal(img.Config.Env, []string{"PLATFORM=linux/amd64"}) {
		t.Errorf("config %+v", img.Config)
	}
	lease, err := store.Use(img)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	for file, size := range map[string]int64{"file0": 1000, "file1": 2000} {
		if info, err := os.Stat(filepath.Join(lease.Dir(), file)); err != nil || info.Size() != size {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	// By digest into an empty store; and again, where everything is there.
	other := newStore(t)
	byDigest := reg.ref("some/thing@" + digestOfImage(t, want))
	for range 2 {
		reg.seen("")
		if img := pullWorks(t, other, byDigest, quick()); img.Digest != digestOfImage(t, want) {
			t.Errorf("digest %s", img.Digest)
		}
		if found, err := other.Lookup(byDigest); err != nil || found.Digest != img.Digest {
			t.Errorf("lookup by digest: %v, %v", found, err)
		}
	}
	for _, q := range reg.seen("/blobs/") {
		for _, l := range img.Layers {
			if strings.HasSuffix(q.path, l) {
				t.Errorf("a layer the store has was fetched again: %s", q.path)
			}
		}
	}
}

func TestPullZstd(t *testing.T) {
	reg := newRegistry(t)
	packed, err := layerOf(t, "zstd", 5000, 1).Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	archive, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(imageOf(t, "linux/amd64", 30, 100), layer)
	if err != nil {
		t.Fatal(err)
	}
	reg.push("zstd:1", img)
	store := newStore(t)
	lease, err := store.Use(pullWorks(t, store, reg.ref("zstd:1"), quick()))
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	if info, err := os.Stat(filepath.Join(lease.Dir(), "zstd")); err != nil || info.Size() != 5000 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestPullChoosesPlatform(t *testing.T) {
	reg := newRegistry(t)
	amd, arm := imageOf(t, "linux/amd64", 1, 100), imageOf(t, "linux/arm64", 2, 100)
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
		mutate.IndexAddendum{Add: arm, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}}},
		mutate.IndexAddendum{Add: amd, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
	)
	reg.push("multi:1", index)
	store := newStore(t)
	for platform, want := range map[string]v1.Image{"linux/amd64": amd, "linux/arm64": arm, "linux/arm64/v8": arm} {
		opts := quick()
		opts.Platform = platform
		if img := pullWorks(t, store, reg.ref("multi:1"), opts); img.Digest != digestOfImage(t, want) {
			t.Errorf("%s: %s, want %s", platform, img.Digest, digestOfImage(t, want))
		}
	}
	// The digest of the index is what people pin.
	pinned := reg.ref("multi@" + digestOfImage(t, index))
	if img := pullWorks(t, store, pinned, quick()); img.Digest != digestOfImage(t, amd) {
		t.Errorf("by the index's digest: %s", img.Digest)
	}
	if img, err := store.Lookup(pinned); err != nil || img.Digest != digestOfImage(t, amd) {
		t.Errorf("looked up by the index's digest: %v, %v", img, err)
	}

	opts := quick()
	opts.Platform = "linux/riscv64"
	err := pullFails(t, newStore(t), reg.ref("multi:1"), opts)
	says(t, err, "linux/riscv64", "linux/amd64, linux/arm64/v8", "--platform", reg.host())
	if !errors.Is(err, ErrPlatform) {
		t.Errorf("not ErrPlatform: %v", err)
	}

	// An image without an index says it in its configuration.
	reg.push("single:1", arm)
	says(t, pullFails(t, newStore(t), reg.ref("single:1"), quick()), "no image for linux/amd64", "linux/arm64", "--platform")
	opts.Platform = "linux/arm64"
	pullWorks(t, newStore(t), reg.ref("single:1"), opts)

	opts.Platform = "linux"
	says(t, pullFails(t, newStore(t), reg.ref("single:1"), opts), `"linux"`, "linux/arm64")
}

// Progress has everything a terminal needs: all sizes before the first byte, and sums that end where they should.
func TestProgress(t *testing.T) {
	reg := newRegistry(t)
	shared := imageOf(t, "linux/amd64", 1, 300_000)
	more, err := mutate.AppendLayers(shared, layerOf(t, "new", 500_000, 9))
	if err != nil {
		t.Fatal(err)
	}
	reg.push("a:1", shared)
	reg.push("b:1", more)
	store := newStore(t)
	pullWorks(t, store, reg.ref("a:1"), quick())

	var events []Progress
	opts := quick()
	opts.Progress = func(p Progress) { events = append(events, p) }
	img := pullWorks(t, store, reg.ref("b:1"), opts)

	var states []string
	for _, e := range events {
		who := "image"
		if e.Layer != "" {
			who = fmt.Sprint(e.Index)
		}
		if s := who + " " + string(e.State); len(states) == 0 || states[len(states)-1] != s {
			states = append(states, s)
		}
		if e.Reference != reg.ref("b:1") {
			t.Errorf("reference %q", e.Reference)
		}
		if e.Done > e.Total {
			t.Errorf("done %d of %d", e.Done, e.Total)
		}
	}
	want := []string{
		"image resolving", "0 present", "1 waiting", "image downloading",
		"1 downloading", "1 downloaded", "image unpacking", "image done",
	}
	if !slices.Equal(states, want) {
		t.Errorf("states %q\n  want %q", states, want)
	}
	last := events[len(events)-1]
	if last.Done != last.Total || last.Layers != 2 || last.Digest != img.Digest || last.Total < 800_000 {
		t.Errorf("last %+v", last)
	}
}

func TestParallelLayersAreBounded(t *testing.T) {
	reg := newRegistry(t)
	reg.push("wide:1", imageOf(t, "linux/amd64", 3, 1000, 1001, 1002, 1003, 1004, 1005))
	var mu sync.Mutex
	now, most := 0, 0
	layers := map[string]bool{}
	reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			mu.Lock()
			now++
			most = max(most, now)
			layers[r.URL.Path] = true
			mu.Unlock()
			time.Sleep(60 * time.Millisecond)
			defer func() { mu.Lock(); now--; mu.Unlock() }()
		}
		next.ServeHTTP(w, r)
	})
	opts := quick()
	opts.Parallel = 3
	pullWorks(t, newStore(t), reg.ref("wide:1"), opts)
	if most > 3 || most < 2 {
		t.Errorf("%d layers at a time, want 2 or 3", most)
	}
	if len(layers) != 7 { // and the configuration
		t.Errorf("%d blobs fetched", len(layers))
	}
}

func TestCancelledPullEndsSoon(t *testing.T) {
	reg := newRegistry(t)
	reg.push("slow:1", imageOf(t, "linux/amd64", 4, 1<<20))
	reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			reg.hold(r)
			return
		}
		next.ServeHTTP(w, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	start := time.Now()
	opts := quick()
	opts.Stall = time.Minute
	_, err := Pull(ctx, newStore(t), reg.ref("slow:1"), opts)
	if !errors.Is(err, context.Canceled) || time.Since(start) > 30*time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
}

func TestPullRefusesBadReferences(t *testing.T) {
	isolate(t)
	store := newStore(t)
	for _, ref := range []string{"", "UPPER/case", "a b", "x@sha256:123", "https://example.com/x", "../x", "x:", "-x", "a//b",
		"sandbox-run/python"} {
		if _, err := Pull(t.Context(), store, ref, quick()); err == nil {
			t.Errorf("%q was accepted", ref)
		} else if ref == "sandbox-run/python" {
			says(t, err, "sandbox-run image build python")
		}
	}
	for _, opts := range []Options{{Parallel: -1}, {Stall: -1}, {Attempts: -1}, {Platform: "plan9"}} {
		if _, err := Pull(t.Context(), store, "x", opts); err == nil {
			t.Errorf("%+v were accepted", opts)
		}
	}
}

func TestConcurrentPullsOfOneImage(t *testing.T) {
	reg := newRegistry(t)
	reg.push("same:1", imageOf(t, "linux/amd64", 5, 200_000, 300_000))
	store := newStore(t)
	var wg sync.WaitGroup
	images := make([]*image.Image, 4)
	for i := range images {
		wg.Go(func() {
			img, err := Pull(t.Context(), store, reg.ref("same:1"), quick())
			if err != nil {
				t.Error(err)
				return
			}
			images[i] = img
		})
	}
	wg.Wait()
	for _, img := range images {
		if img == nil || img.ID != images[0].ID {
			t.Errorf("images differ: %v", images)
		}
	}
}

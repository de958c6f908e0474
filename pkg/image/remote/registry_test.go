package remote

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	ggcr "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// testRegistry is a real registry on a loopback address, with a front that tests can make misbehave.
type testRegistry struct {
	t     *testing.T
	back  http.Handler // the registry itself
	front *httptest.Server
	quit  chan struct{}

	mu        sync.Mutex
	requests  []request
	misbehave func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

// request is what a test may want to know of one.
type request struct {
	path, auth, ranges, referer string
	at                          time.Time
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{t: t, back: registry.New(registry.Logger(log.New(io.Discard, "", 0))), quit: make(chan struct{})}
	r.front = httptest.NewServer(r)
	t.Cleanup(func() {
		close(r.quit)
		r.front.Close()
	})
	isolate(t)
	return r
}

// isolate hides the credentials, proxies and certificates of the user who runs the tests.
func isolate(t *testing.T) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, v := range []string{
		"DOCKER_CONFIG", "DOCKER_AUTH_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME",
		"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy",
	} {
		t.Setenv(v, "")
	}
}

func (r *testRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, request{
		path: req.URL.Path, auth: req.Header.Get("Authorization"), ranges: req.Header.Get("Range"),
		referer: req.Header.Get("Referer"), at: time.Now(),
	})
	misbehave := r.misbehave
	r.mu.Unlock()
	if misbehave != nil {
		misbehave(w, req, r.back)
		return
	}
	r.back.ServeHTTP(w, req)
}

// hold keeps a request without an answer. A server does not always notice that its client has left.
func (r *testRegistry) hold(req *http.Request) {
	select {
	case <-req.Context().Done():
	case <-r.quit:
	}
}

func (r *testRegistry) set(f func(w http.ResponseWriter, req *http.Request, next http.Handler)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.misbehave = f
}

// seen returns the requests whose path contains a text, and forgets all.
func (r *testRegistry) seen(part string) []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.DeleteFunc(slices.Clone(r.requests), func(q request) bool { return !strings.Contains(q.path, part) })
	r.requests = nil
	return out
}

func (r *testRegistry) host() string { return strings.TrimPrefix(r.front.URL, "http://") }

func (r *testRegistry) ref(rest string) string { return r.host() + "/" + rest }

// push goes in by the back door: no authentication, no misbehaviour.
func (r *testRegistry) push(rest string, what ggcr.Taggable) {
	r.t.Helper()
	ref, err := name.ParseReference(r.ref(rest))
	if err != nil {
		r.t.Fatal(err)
	}
	through := ggcr.WithTransport(direct{r.back})
	switch what := what.(type) {
	case v1.Image:
		err = ggcr.Write(ref, what, through)
	case v1.ImageIndex:
		err = ggcr.WriteIndex(ref, what, through)
	default:
		err = ggcr.Put(ref, what, through)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// direct is a client without a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	served := req.Clone(req.Context())
	if served.Body == nil {
		served.Body = http.NoBody // as a server has it
	}
	d.ServeHTTP(rec, served)
	resp := rec.Result()
	resp.Request = req
	return resp, nil
}

// layerOf is a layer with one file of so many bytes that do not compress.
func layerOf(t *testing.T, file string, size int, seed uint64) v1.Layer {
	t.Helper()
	content := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 7})
	_, _ = random.Read(content)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(size), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// imageOf is an image for a platform with layers of so many bytes each.
func imageOf(t *testing.T, platform string, seed uint64, sizes ...int) v1.Image {
	t.Helper()
	img := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	for i, size := range sizes {
		var err error
		if img, err = mutate.AppendLayers(img, layerOf(t, fmt.Sprintf("file%d", i), size, seed*100+uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	p, err := parsePlatform(platform)
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Config.Env = []string{"PLATFORM=" + platform}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func digestOfImage(t *testing.T, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func newStore(t *testing.T) *image.Store {
	t.Helper()
	store, err := image.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// quick are options that lose no time.
func quick() Options {
	return Options{
		Platform: "linux/amd64", Insecure: true, Stall: 2 * time.Second, Attempts: 4,
		Backoff: time.Millisecond, CertDirs: []string{},
	}
}

func pullFails(t *testing.T, store *image.Store, ref string, opts Options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	img, err := Pull(ctx, store, ref, opts)
	if err == nil {
		t.Fatalf("pull of %s succeeded: %+v", ref, img)
	}
	if ctx.Err() != nil {
		t.Fatalf("pull of %s hung: %v", ref, err)
	}
	if images, err := store.List(); err != nil || len(images) != 0 {
		t.Fatalf("after a failed pull the store has %d images, %v", len(images), err)
	}
	return err
}

func pullWorks(t *testing.T, store *image.Store, ref string, opts Options) *image.Image {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	img, err := Pull(ctx, store, ref, opts)
	if err != nil {
		t.Fatalf("pull of %s: %v", ref, err)
	}
	return img
}

// says checks that an error names all that a reader needs.
func says(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error does not say %q: %v", p, err)
		}
	}
}

package cli

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// testRegistry is an image registry in this process, which can delay and count the bytes of layers.
type testRegistry struct {
	*httptest.Server
	pause atomic.Int64 // nanoseconds between two pieces of a layer
	sent  atomic.Int64 // bytes of layers
}

func newTestRegistry() *testRegistry {
	s := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = &slowWriter{ResponseWriter: w, of: s, gone: r.Context().Done()}
		}
		inner.ServeHTTP(w, r)
	}))
	return s
}

// host returns HOST:PORT, with which the names of its images begin.
func (s *testRegistry) host() string { return strings.TrimPrefix(s.URL, "http://") }

// slowWriter sends a response in small pieces.
type slowWriter struct {
	http.ResponseWriter
	of   *testRegistry
	gone <-chan struct{}
}

func (w *slowWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		piece := p[:min(len(p), 16<<10)]
		p = p[len(piece):]
		var m int
		m, err = w.ResponseWriter.Write(piece)
		n += m
		w.of.sent.Add(int64(m))
		w.ResponseWriter.(http.Flusher).Flush()
		select {
		case <-time.After(time.Duration(w.of.pause.Load())):
		case <-w.gone:
			return n, http.ErrAbortHandler
		}
	}
	return n, err
}

// addImage adds an image with these layers to the registry.
func (s *testRegistry) addImage(ref string, layers ...v1.Layer) error {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Env = []string{"GREETING=hello there"}
	config.Config.Entrypoint = []string{"/bin/echo", "two words"}
	config.Config.WorkingDir = "/srv"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	tag, err := name.NewTag(s.host()+"/"+ref, name.Insecure)
	if err != nil {
		return err
	}
	// Idle connections of the default transport would outlive the tests.
	way := &http.Transport{}
	defer way.CloseIdleConnections()
	return remote.Write(tag, img, remote.WithTransport(way))
}

// directoryLayer makes a layer of a directory.
func directoryLayer(dir string) (v1.Layer, error) {
	var b bytes.Buffer
	if err := archive(&b, dir); err != nil {
		return nil, err
	}
	return bytesLayer(b.Bytes())
}

func bytesLayer(content []byte) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
}

func archive(to io.Writer, dir string) error {
	w := tar.NewWriter(to)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return w.Close()
}

// randomLayer makes a layer with a file of incompressible bytes.
func randomLayer(t *testing.T, name string, size int) v1.Layer {
	t.Helper()
	content := make([]byte, size)
	seed := uint32(len(name) + size)
	for i := range content {
		seed = seed*1664525 + 1013904223
		content[i] = byte(seed >> 24)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: int64(fs.FileMode(0o644)), Size: int64(size)}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := bytesLayer(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// scriptRegistries are the registries of scripts by address; scripts run in parallel.
var scriptRegistries sync.Map

// startRegistry is the script command registry: it starts a registry and sets $REGISTRY to HOST:PORT.
func startRegistry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: registry")
	}
	s := newTestRegistry()
	ts.Defer(s.Close)
	ts.Setenv("REGISTRY", s.host())
	scriptRegistries.Store(s.host(), s)
}

// offerImage is the script command offers NAME DIRECTORY…: it adds an image with a layer for each directory.
func offerImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: offers NAME DIRECTORY…")
	}
	s, ok := scriptRegistries.Load(ts.Getenv("REGISTRY"))
	if !ok {
		ts.Fatalf("there is no registry yet")
	}
	var layers []v1.Layer
	for _, dir := range args[1:] {
		l, err := directoryLayer(ts.MkAbs(dir))
		ts.Check(err)
		layers = append(layers, l)
	}
	ts.Check(s.(*testRegistry).addImage(args[0], layers...))
}

// archiveDirectory is the script command archives DIRECTORY FILE.
func archiveDirectory(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: archives DIRECTORY FILE")
	}
	f, err := os.Create(filepath.Clean(ts.MkAbs(args[1])))
	ts.Check(err)
	defer f.Close()
	ts.Check(archive(f, ts.MkAbs(args[0])))
}

// useImage is the script command uses NAME: it holds a lease of the image until the script ends.
func useImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: uses NAME")
	}
	store, err := image.Open(ts.Getenv(app.ImagesVariable))
	ts.Check(err)
	img, err := store.Lookup(args[0])
	ts.Check(err)
	lease, err := store.Use(img)
	ts.Check(err)
	ts.Defer(func() { _ = lease.Close() })
}

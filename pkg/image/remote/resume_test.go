package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// big is an image with one layer that takes many reads, and that layer's digest, bytes and size.
func big(t *testing.T, reg *testRegistry, rest string, size int) (digest string, length int64) {
	t.Helper()
	img := imageOf(t, "linux/amd64", uint64(size), size)
	reg.push(rest, img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	h, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	n, err := layers[0].Size()
	if err != nil {
		t.Fatal(err)
	}
	return h.String(), n
}

// only applies to requests for one blob.
func only(digest string, do func(w http.ResponseWriter, r *http.Request, next http.Handler)) func(http.ResponseWriter, *http.Request,
	http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, digest) {
			do(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// answerOf is what the registry would have said.
func answerOf(r *http.Request, next http.Handler) *http.Response {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	return rec.Result()
}

func copyHeader(w http.ResponseWriter, resp *http.Response) {
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
}

// sendPart sends the beginning of an answer, in pieces, and cuts the connection.
func sendPart(w http.ResponseWriter, resp *http.Response, n int64) {
	copyHeader(w, resp)
	_, _ = io.CopyN(w, resp.Body, n)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func TestCutDownloadGoesOn(t *testing.T) {
	reg := newRegistry(t)
	digest, size := big(t, reg, "cut:1", 2<<20)
	const piece = 300_000
	var mu sync.Mutex
	var served int64
	reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		resp := answerOf(r, next)
		n := min(piece, resp.ContentLength)
		mu.Lock()
		served += n
		mu.Unlock()
		if n == resp.ContentLength {
			copyHeader(w, resp)
			_, _ = io.Copy(w, resp.Body)
			return
		}
		sendPart(w, resp, n)
	}))
	var retried int
	opts := quick()
	opts.Attempts = 3 // fewer than there are cuts: what goes on well is not counted
	opts.Progress = func(p Progress) {
		if p.State == Retrying {
			retried++
			if p.Reason == "" {
				t.Error("retrying without a reason")
			}
		}
	}
	img := pullWorks(t, newStore(t), reg.ref("cut:1"), opts)
	requests := reg.seen(digest)
	if want := int((size + piece - 1) / piece); len(requests) != want {
		t.Errorf("%d requests, want %d", len(requests), want)
	}
	if served != size {
		t.Errorf("%d bytes served for a layer of %d", served, size)
	}
	for i, q := range requests {
		want := ""
		if i > 0 {
			want = fmt.Sprintf("bytes=%d-%d", i*piece, size-1)
		}
		if q.ranges != want {
			t.Errorf("request %d has the range %q, want %q", i, q.ranges, want)
		}
	}
	if retried != len(requests)-1 {
		t.Errorf("%d retries reported of %d", retried, len(requests)-1)
	}
	if img.Layers[0] != digest {
		t.Errorf("layers %q", img.Layers)
	}
}

// Registries that do not continue downloads, in all the ways they do not.
func TestRangesNotSupported(t *testing.T) {
	reg := newRegistry(t)
	digest, size := big(t, reg, "norange:1", 1<<20)
	for name, ranged := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler){
		"ignored": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("Range")
			next.ServeHTTP(w, r)
		},
		"refused": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		},
		"another": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			rest := answerOf(r, next).ContentLength
			r.Header.Del("Range")
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", rest-1, size))
			w.Header().Set("Content-Length", fmt.Sprint(rest))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.CopyN(w, answerOf(r, next).Body, rest) // as many bytes as are missing, and not those
		},
		"nonsense": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			resp := answerOf(r, next)
			resp.Header.Set("Content-Range", "all of it")
			copyHeader(w, resp)
			_, _ = io.Copy(w, resp.Body)
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				switch {
				case first:
					first = false
					sendPart(w, answerOf(r, next), 400_000)
				case r.Header.Get("Range") != "":
					ranged(w, r, next)
				default:
					next.ServeHTTP(w, r)
				}
			}))
			pullWorks(t, newStore(t), reg.ref("norange:1"), quick())
		})
	}
}

// A pull that gave up left what it had, and the next one begins there.
func TestNextPullGoesOn(t *testing.T) {
	reg := newRegistry(t)
	digest, size := big(t, reg, "later:1", 2<<20)
	const here = 1 << 20
	reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Range") != "" {
			panic(http.ErrAbortHandler)
		}
		sendPart(w, answerOf(r, next), here)
	}))
	store := newStore(t)
	err := pullFails(t, store, reg.ref("later:1"), quick())
	says(t, err, digest, fmt.Sprintf("%d of %d bytes", here, size), "what has arrived is kept")
	reg.set(nil)
	reg.seen("")
	var from int64 = -1
	opts := quick()
	opts.Progress = func(p Progress) {
		if p.Layer == digest && p.State == Downloading && from < 0 {
			from = p.Done
		}
	}
	pullWorks(t, store, reg.ref("later:1"), opts)
	requests := reg.seen(digest)
	if len(requests) != 1 || requests[0].ranges != fmt.Sprintf("bytes=%d-%d", here, size-1) {
		t.Errorf("requests %+v", requests)
	}
	if from != here {
		t.Errorf("progress begins at %d, want %d", from, here)
	}
}

// A process that is killed in the middle of a download leaves what it had, too.
func TestKilledPullGoesOn(t *testing.T) {
	if dir := os.Getenv("REMOTE_TEST_STORE"); dir != "" {
		store, err := image.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		opts := quick()
		opts.Stall = time.Minute
		_, err = Pull(context.Background(), store, os.Getenv("REMOTE_TEST_REF"), opts)
		t.Fatalf("the pull ended before it was killed: %v", err)
	}
	reg := newRegistry(t)
	digest, size := big(t, reg, "killed:1", 4<<20)
	const here = 3 << 20
	sent := make(chan struct{}, 10)
	reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		resp := answerOf(r, next)
		copyHeader(w, resp)
		_, _ = io.CopyN(w, resp.Body, here)
		_ = http.NewResponseController(w).Flush()
		sent <- struct{}{}
		reg.hold(r)
	}))
	store := newStore(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledPullGoesOn$", "-test.v")
	cmd.Env = append(os.Environ(), "REMOTE_TEST_STORE="+store.Dir(), "REMOTE_TEST_REF="+reg.ref("killed:1"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sent:
	case <-time.After(time.Minute):
		t.Errorf("no download within a minute: %s", out.String())
	}
	part := filepath.Join(store.Dir(), "partial", strings.TrimPrefix(digest, "sha256:"))
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // what was sent reaches the file
		if info, err := os.Stat(part); err == nil && info.Size() >= here/2 {
			break
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		t.Fatalf("it was not killed but ended: %v: %s", err, out.String())
	}
	reg.set(nil)
	reg.seen("")
	pullWorks(t, store, reg.ref("killed:1"), quick())
	requests := reg.seen(digest)
	if len(requests) != 1 {
		t.Fatalf("requests %+v", requests)
	}
	var from, to int64
	if _, err := fmt.Sscanf(requests[0].ranges, "bytes=%d-%d", &from, &to); err != nil || from < 1<<20 || from > here || to != size-1 {
		t.Errorf("the second pull asked for %q; the first had got %d of %d bytes", requests[0].ranges, here, size)
	}
}

// A part that is damaged is found out, and does not stand in the way for ever.
func TestDamagedPartIsThrownAway(t *testing.T) {
	reg := newRegistry(t)
	digest, _ := big(t, reg, "damaged:1", 1<<20)
	first := true
	reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !first {
			panic(http.ErrAbortHandler)
		}
		first = false
		resp := answerOf(r, next)
		copyHeader(w, resp)
		_, _ = w.Write(make([]byte, 500_000)) // not what it should be
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	store := newStore(t)
	pullFails(t, store, reg.ref("damaged:1"), quick())
	reg.set(nil)
	_, err := Pull(t.Context(), store, reg.ref("damaged:1"), quick())
	if err != nil { // going on with the damaged part can not end well, and may say so once
		says(t, err, digest)
	}
	pullWorks(t, store, reg.ref("damaged:1"), quick())
}

func TestRetries(t *testing.T) {
	reg := newRegistry(t)
	reg.push("flaky:1", imageOf(t, "linux/amd64", 6, 1000))
	failing := func(status, times int, header ...string) func(http.ResponseWriter, *http.Request, http.Handler) {
		failed := map[string]int{}
		var mu sync.Mutex
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			mu.Lock()
			failed[r.URL.Path]++
			n := failed[r.URL.Path]
			mu.Unlock()
			if n > times {
				next.ServeHTTP(w, r)
				return
			}
			if len(header) == 2 {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"errors":[{"code":"SOME","message":"try \u001b[31mlater\u001b[0m"}]}`)
		}
	}
	for _, status := range []int{408, 429, 500, 502, 503, 504} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			reg.set(failing(status, 2))
			pullWorks(t, newStore(t), reg.ref("flaky:1"), quick())
			for path, n := range counted(reg.seen("")) {
				if n != 3 {
					t.Errorf("%s was asked for %d times, want 3", path, n)
				}
			}
		})
	}
	t.Run("too often", func(t *testing.T) {
		reg.set(failing(503, 100))
		err := pullFails(t, newStore(t), reg.ref("flaky:1"), quick())
		says(t, err, "503", reg.host(), "later")
		if strings.ContainsRune(err.Error(), 0x1b) {
			t.Errorf("A6: the registry's escapes are in the error: %q", err)
		}
	})
	t.Run("come back in a second", func(t *testing.T) {
		reg.set(failing(429, 1, "Retry-After", "1"))
		opts := quick()
		reg.seen("")
		pullWorks(t, newStore(t), reg.ref("flaky:1"), opts)
		requests := reg.seen("/manifests/")
		if len(requests) != 2 || requests[1].at.Sub(requests[0].at) < 900*time.Millisecond {
			t.Errorf("requests %+v", requests)
		}
	})
	t.Run("come back tomorrow", func(t *testing.T) {
		ping := failing(0, 0)
		tomorrow := failing(429, 100, "Retry-After", "86400")
		reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Path == "/v2/" {
				ping(w, r, next)
				return
			}
			tomorrow(w, r, next)
		})
		start := time.Now()
		err := pullFails(t, newStore(t), reg.ref("flaky:1"), quick())
		says(t, err, "429", "24h0m0s", "docker login")
		if time.Since(start) > 20*time.Second {
			t.Errorf("it took %s", time.Since(start))
		}
	})
	for status, what := range map[int]error{401: ErrUnauthorized, 403: ErrUnauthorized, 404: ErrNotFound} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.Contains(r.URL.Path, "/manifests/") {
					w.WriteHeader(status)
					return
				}
				next.ServeHTTP(w, r)
			})
			reg.seen("")
			err := pullFails(t, newStore(t), reg.ref("flaky:1"), quick())
			if !errors.Is(err, what) {
				t.Errorf("%v is not %v", err, what)
			}
			says(t, err, reg.ref("flaky:1"), "registry "+reg.host(), "try: ")
			var e *Error
			if !errors.As(err, &e) || e.Status != status || e.Registry != reg.host() || e.Repository != "flaky" {
				t.Errorf("%+v", e)
			}
			most := 1
			if status == 401 {
				most = 2 // once with a new token
			}
			if n := len(reg.seen("/manifests/")); n > most {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

func counted(requests []request) map[string]int {
	out := map[string]int{}
	for _, q := range requests {
		out[q.path]++
	}
	return out
}

func TestStalledRegistryIsGivenUp(t *testing.T) {
	reg := newRegistry(t)
	digest, _ := big(t, reg, "stall:1", 1<<20)
	silent := func(w http.ResponseWriter, r *http.Request, _ http.Handler) { reg.hold(r) }
	half := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		resp := answerOf(r, next)
		copyHeader(w, resp)
		_, _ = io.CopyN(w, resp.Body, 100)
		_ = http.NewResponseController(w).Flush()
		reg.hold(r)
	}
	trickle := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		resp := answerOf(r, next)
		copyHeader(w, resp)
		for {
			if _, err := io.CopyN(w, resp.Body, 1); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	at := func(part string, do func(http.ResponseWriter, *http.Request, http.Handler)) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.HasSuffix(r.URL.Path, part) {
				do(w, r, next)
				return
			}
			next.ServeHTTP(w, r)
		}
	}
	for name, what := range map[string]func(http.ResponseWriter, *http.Request, http.Handler){
		"greeting":         at("/v2/", silent),
		"manifest":         at("/manifests/1", silent),
		"manifest half":    at("/manifests/1", half),
		"manifest trickle": at("/manifests/1", trickle),
		"layer":            at(digest, silent),
		"layer half":       at(digest, half),
		"layer trickle":    at(digest, trickle),
	} {
		t.Run(name, func(t *testing.T) {
			reg.set(what)
			opts := quick()
			opts.Stall, opts.Attempts = 200*time.Millisecond, 2
			start := time.Now()
			err := pullFails(t, newStore(t), reg.ref("stall:1"), opts)
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("given up after %s", took)
			}
			says(t, err, reg.host(), "try: ")
			if !errors.Is(err, ErrStalled) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v is not ErrStalled", err)
			}
		})
	}
	// The control: it stalls once, and the pull goes on.
	once := true
	reg.set(at(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if once {
			once = false
			half(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}))
	opts := quick()
	opts.Stall = time.Second
	pullWorks(t, newStore(t), reg.ref("stall:1"), opts)
}

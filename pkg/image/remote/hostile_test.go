package remote

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The bytes of a layer are not those the manifest names.
func TestWrongBytes(t *testing.T) {
	reg := newRegistry(t)
	digest, size := big(t, reg, "wrong:1", 200_000)
	endless := func(w http.ResponseWriter, r *http.Request, first []byte) {
		_, _ = w.Write(first)
		for zeros := make([]byte, 64<<10); r.Context().Err() == nil; {
			if _, err := w.Write(zeros); err != nil {
				return
			}
		}
	}
	body := func(r *http.Request, next http.Handler) []byte {
		data, _ := io.ReadAll(answerOf(r, next).Body)
		return data
	}
	for name, c := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request, next http.Handler)
		says  string
	}{
		"digest": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			data := body(r, next)
			data[len(data)-100] ^= 1
			_, _ = w.Write(data)
		}, "what came is sha256:"},
		"too short": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			w.Header().Set("Content-Length", fmt.Sprint(size-1))
			_, _ = w.Write(body(r, next)[:size-1])
		}, "wrong size"},
		"too long": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			w.Header().Set("Content-Length", fmt.Sprint(size+1))
			_, _ = w.Write(append(body(r, next), 0))
		}, "wrong size"},
		"endless zeros": {func(w http.ResponseWriter, r *http.Request, _ http.Handler) { endless(w, r, nil) }, "what came is sha256:"},
		"ends early, always": {func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			_ = http.NewResponseController(w).Flush() // no length is announced
			if r.Header.Get("Range") == "" {
				_, _ = w.Write(body(r, next)[:1000])
			}
		}, "given up after"},
		"empty": {func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(200) }, "wrong size"},
	} {
		t.Run("F9 "+name, func(t *testing.T) {
			reg.set(only(digest, c.serve))
			err := pullFails(t, newStore(t), reg.ref("wrong:1"), quick())
			says(t, err, c.says, reg.ref("wrong:1"))
		})
	}
	t.Run("control: endless after the right bytes", func(t *testing.T) {
		reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) { endless(w, r, body(r, next)) }))
		pullWorks(t, newStore(t), reg.ref("wrong:1"), quick())
	})
}

// One document in place of another, each of them good.
func TestSwappedDocuments(t *testing.T) {
	reg := newRegistry(t)
	asked, other := imageOf(t, "linux/amd64", 40, 1000), imageOf(t, "linux/amd64", 41, 1000)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: asked,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	reg.push("swap:one", asked)
	reg.push("swap:other", other)
	reg.push("swap:index", index)
	config, err := asked.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	otherConfig, err := other.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	swap := func(from, to string) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.URL.Path = strings.Replace(r.URL.Path, from, to, 1)
			next.ServeHTTP(w, r)
		}
	}
	for name, c := range map[string]struct{ ref, from, to string }{
		"manifest by digest":   {"swap@" + digestOfImage(t, asked), digestOfImage(t, asked), digestOfImage(t, other)},
		"index by digest":      {"swap@" + digestOfImage(t, index), digestOfImage(t, index), digestOfImage(t, other)},
		"manifest of an index": {"swap:index", digestOfImage(t, asked), digestOfImage(t, other)},
		"configuration":        {"swap:one", config.String(), otherConfig.String()},
	} {
		t.Run(name, func(t *testing.T) {
			reg.set(nil)
			pullWorks(t, newStore(t), reg.ref(c.ref), quick()) // the control
			reg.set(swap(c.from, c.to))
			reg.seen("")
			err := pullFails(t, newStore(t), reg.ref(c.ref), quick())
			says(t, err, "wrong digest", c.from, c.to)
			for _, l := range reg.seen("/blobs/") {
				if !strings.Contains(l.path, config.Hex) {
					t.Errorf("a layer was fetched: %s", l.path)
				}
			}
		})
	}
}

func TestHostileManifests(t *testing.T) {
	reg := newRegistry(t)
	good := imageOf(t, "linux/amd64", 7, 1000)
	reg.push("good:1", good)
	raw, err := good.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	with := func(edit func(m map[string]any)) string {
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		edit(m)
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	layer := func(m map[string]any) map[string]any { return m["layers"].([]any)[0].(map[string]any) }
	const oci, index = string(types.OCIManifestSchema1), string(types.OCIImageIndex)
	for i, c := range []struct {
		name, mediaType, body string
		is                    error
		says                  string
	}{
		{"schema 1", string(types.DockerManifestSchema1Signed), `{"schemaVersion":1,"name":"x","fsLayers":[{"blobSum":"sha256:00"}]}`,
			ErrUnsupported, "schema 1"},
		{"schema 1 without a label", "application/json", `{"schemaVersion":1,"fsLayers":[]}`, ErrUnsupported, "schema 1"},
		{"not JSON", oci, `<html>`, ErrInvalid, "not JSON"},
		{"empty", oci, ``, ErrInvalid, "not JSON"},
		{"trailing", oci, string(raw) + `{}`, ErrInvalid, "not JSON"},
		{"null", oci, `null`, ErrUnsupported, "version 0"},
		{"version 3", oci, with(func(m map[string]any) { m["schemaVersion"] = 3 }), ErrUnsupported, "version 3"},
		{"image and index", oci, with(func(m map[string]any) { m["manifests"] = []any{} }), ErrInvalid, "as an image and as an index"},
		{"two labels", string(types.OCIManifestSchema1), with(func(m map[string]any) { m["mediaType"] = index }), ErrInvalid, "calls itself"},
		{"foreign layer", oci, with(func(m map[string]any) { layer(m)["mediaType"] = string(types.DockerForeignLayer) }), ErrUnsupported,
			"foreign"},
		{"layer elsewhere", oci, with(func(m map[string]any) { layer(m)["urls"] = []any{"https://example.com/layer"} }), ErrUnsupported,
			"foreign"},
		{"encrypted layer", oci, with(func(m map[string]any) {
			layer(m)["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"
		}), ErrUnsupported, "encrypted"},
		{"negative size", oci, with(func(m map[string]any) { layer(m)["size"] = -1 }), ErrInvalid, "-1 bytes"},
		{"sizes that overflow", oci, with(func(m map[string]any) {
			layer(m)["size"] = int64(1) << 62
			m["layers"] = []any{layer(m), layer(m)}
		}), ErrInvalid, "more than there are bytes"},
		{"large configuration", oci, with(func(m map[string]any) { m["config"].(map[string]any)["size"] = 1 << 40 }), ErrInvalid,
			"configuration"},
		{"digest of another kind", oci, with(func(m map[string]any) { layer(m)["digest"] = "sha512:" + strings.Repeat("0", 128) }),
			ErrUnsupported, "sha256"},
		{"digest that is a path", oci, with(func(m map[string]any) { layer(m)["digest"] = "sha256:../../../etc/passwd" }), ErrInvalid,
			"manifest"},
		{"no layers", oci, with(func(m map[string]any) { m["layers"] = []any{} }), ErrInvalid, "without layers"},
		{"a chart", oci, with(func(m map[string]any) {
			m["config"].(map[string]any)["mediaType"] = "application/vnd.cncf.helm.config.v1+json"
		}), ErrUnsupported, "helm"},
		{"empty index", index, `{"schemaVersion":2,"manifests":[]}`, ErrPlatform, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := fmt.Sprintf("hostile:%d", i)
			reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.Contains(r.URL.Path, "/manifests/") {
					w.Header().Set("Content-Type", c.mediaType)
					_, _ = io.WriteString(w, c.body)
					return
				}
				next.ServeHTTP(w, r)
			})
			reg.seen("")
			err := pullFails(t, newStore(t), reg.ref(at), quick())
			if !errors.Is(err, c.is) {
				t.Errorf("not %v", c.is)
			}
			says(t, err, c.says, reg.ref(at))
			if n := len(reg.seen("/manifests/")); n != 1 {
				t.Errorf("asked for %d times: it will not get better", n)
			}
		})
	}
	reg.set(nil)
	pullWorks(t, newStore(t), reg.ref("good:1"), quick()) // the control
}

// Answers that have no end, or unpack to none.
func TestOversizedAnswers(t *testing.T) {
	reg := newRegistry(t)
	good := imageOf(t, "linux/amd64", 8, 1000)
	reg.push("big:1", good)
	config, err := good.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for zeros := bytes.Repeat([]byte(" "), 1<<20); bomb.Len() < 20<<10; {
		_, _ = z.Write(zeros)
	}
	_ = z.Close()
	var sent atomic.Int64
	endless := func(w http.ResponseWriter, r *http.Request) {
		for block := bytes.Repeat([]byte(" "), 64<<10); r.Context().Err() == nil; {
			n, err := w.Write(block)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		part  string
		serve func(w http.ResponseWriter, r *http.Request)
		says  string
	}{
		"manifest without end": {"/manifests/", endless, "larger than"},
		"manifest announced as large": {"/manifests/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(int64(1)<<40))
			endless(w, r)
		}, "larger than"},
		"gzip bomb as manifest": {"/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		}, "compressed"},
		"configuration without end": {config.Hex, endless, "larger than"},
		"greeting without end":      {"/v2/", endless, ""},
		"error without end": {"/manifests/", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			endless(w, r)
		}, "403"},
		"headers without end": {"/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 1000))
			}
		}, ""},
	} {
		t.Run("F9 "+name, func(t *testing.T) {
			reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.Contains(r.URL.Path, c.part) && (c.part != "/v2/" || r.URL.Path == "/v2/") {
					c.serve(w, r)
					return
				}
				next.ServeHTTP(w, r)
			})
			sent.Store(0)
			if c.part == "/v2/" {
				// Reading the greeting is cut off, and the pull goes on: it was welcome.
				pullWorks(t, newStore(t), reg.ref("big:1"), quick())
			} else {
				says(t, pullFails(t, newStore(t), reg.ref("big:1"), quick()), c.says)
			}
			// What is not read stays in the sockets' buffers.
			if n := sent.Load(); n > 40<<20 {
				t.Errorf("%d MiB were taken", n>>20)
			}
		})
	}
	reg.set(nil)
	pullWorks(t, newStore(t), reg.ref("big:1"), quick())
}

// The registry redirects a download to another host. That host must not receive the credentials for the registry.
func TestRedirectsTakeNoCredentials(t *testing.T) {
	reg := newRegistry(t)
	digest, _ := big(t, reg, "moved:1", 300_000)
	login(t, reg.host(), "user", "secret")
	var asked atomic.Int64
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		for _, h := range []string{"Authorization", "Cookie", "Referer"} {
			if v := r.Header.Get(h); v != "" {
				t.Errorf("A1: the storage was given %s: %s", h, v)
			}
		}
		r.URL.RawQuery = ""
		reg.back.ServeHTTP(w, r)
	}))
	defer storage.Close()
	for name, guard := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"basic": basicAuth("user", "secret"), "bearer": (&tokens{user: "user", password: "secret"}).guard,
	} {
		t.Run("A1 "+name, func(t *testing.T) {
			asked.Store(0)
			reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if !guard(w, r) {
					return
				}
				if strings.HasSuffix(r.URL.Path, digest) {
					http.Redirect(w, r, storage.URL+r.URL.Path+"?signature=verysecret", http.StatusTemporaryRedirect)
					return
				}
				next.ServeHTTP(w, r)
			})
			reg.seen("")
			pullWorks(t, newStore(t), reg.ref("moved:1"), quick())
			if asked.Load() == 0 {
				t.Error("the storage was not asked")
			}
			for _, q := range reg.seen(digest) {
				if q.auth == "" { // the control
					t.Error("the registry was given no credentials")
				}
			}
		})
	}
	t.Run("A1 failure does not tell the signature", func(t *testing.T) {
		reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, "http://127.0.0.1:1/x?signature=verysecret", http.StatusTemporaryRedirect)
		}))
		err := pullFails(t, newStore(t), reg.ref("moved:1"), quick())
		says(t, err, "127.0.0.1:1")
		if strings.Contains(err.Error(), "verysecret") {
			t.Errorf("%v", err)
		}
	})
	t.Run("round and round", func(t *testing.T) {
		reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}))
		reg.seen("")
		says(t, pullFails(t, newStore(t), reg.ref("moved:1"), quick()), "redirects")
		if n := len(reg.seen(digest)); n > 2*maxRedirects {
			t.Errorf("%d requests", n)
		}
	})
	t.Run("other schemes", func(t *testing.T) {
		reg.set(only(digest, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}))
		says(t, pullFails(t, newStore(t), reg.ref("moved:1"), quick()), `"file"`)
	})
}

// A registry over TLS, with an authority of its own, sends us to places that are not for it to choose.
func TestRedirectsLeadNowhereInside(t *testing.T) {
	reg := newRegistry(t)
	digest, _ := big(t, reg, "inside:1", 10_000)
	secure := httptest.NewUnstartedServer(reg)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	host := strings.TrimPrefix(secure.URL, "https://")
	opts := quick()
	opts.Insecure, opts.Stall = false, 20*time.Second // longer than it may be tried for, below
	opts.CertDirs = []string{trust(t, host, secure)}
	reg.push("inside:1", imageOf(t, "linux/amd64", 10_000, 10_000))
	pullWorks(t, newStore(t), host+"/inside:1", opts) // the control

	for id, target := range map[string]string{
		"N2 metadata":      "https://169.254.169.254/latest/meta-data",
		"N2 metadata, IP6": "https://[fe80::1]/latest",
		"N5 integer":       "https://2852039166/latest",
		"plain HTTP":       "http://127.0.0.1:1/x",
		"plain, metadata":  "http://169.254.169.254/latest",
	} {
		t.Run(id, func(t *testing.T) {
			reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				http.Redirect(w, r, target, http.StatusFound)
			}))
			start := time.Now()
			err := pullFails(t, newStore(t), host+"/inside:1", opts)
			if time.Since(start) > 15*time.Second {
				t.Errorf("it was tried for %s: %v", time.Since(start), err)
			}
			if id[:2] == "N2" && !errors.Is(err, ErrInvalid) || strings.HasPrefix(id, "plain") && !errors.Is(err, ErrPlainHTTP) {
				t.Errorf("%v", err)
			}
		})
	}
}

// What is checked is the address that is dialled, and it may not be further inside than the registry.
func TestAddressesFurtherInside(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var dialled atomic.Int64
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			dialled.Add(1)
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	isolate(t)
	for _, inside := range []int32{zonePublic, zonePrivate, zoneLoopback} {
		for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} { // localhost: a name that resolves to the inside (N4)
			g, err := newEgress("registry.example", false, time.Second, nil)
			if err != nil {
				t.Fatal(err)
			}
			g.inside.Store(inside)
			dialled.Store(0)
			req, _ := http.NewRequest(http.MethodGet, "https://"+net.JoinHostPort(strings.Trim(host, "[]"), port)+"/", nil)
			_, err = g.RoundTrip(req)
			g.close()
			if err == nil {
				t.Fatal("no error from a listener that hangs up")
			}
			if inside == zoneLoopback { // the control: it is reached
				for range 3000 {
					if dialled.Load() > 0 {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				if dialled.Load() == 0 {
					t.Errorf("zone %d, %s: not dialled: %v", inside, host, err)
				}
			} else if dialled.Load() != 0 || !errors.Is(err, ErrInvalid) {
				t.Errorf("N4: zone %d, %s: dialled %d times: %v", inside, host, dialled.Load(), err)
			}
		}
	}
	for text, want := range map[string]int32{
		"8.8.8.8": zonePublic, "10.1.2.3": zonePrivate, "192.168.0.1": zonePrivate, "fd00::1": zonePrivate,
		"127.1.2.3": zoneLoopback, "::1": zoneLoopback, "::ffff:127.0.0.1": zoneLoopback, "::ffff:10.0.0.1": zonePrivate,
		"169.254.169.254": zoneNever, "fe80::1": zoneNever, "0.0.0.0": zoneNever, "::": zoneNever, "224.0.0.1": zoneNever,
		"168.63.129.16": zoneNever, "168.63.129.17": zonePublic, "100.100.100.200": zoneNever, "100.64.0.1": zonePrivate,
		"100.128.0.1": zonePublic,
		"192.0.0.192": zoneNever, "fd00:ec2::254": zoneNever, "198.18.0.1": zonePrivate, "0.1.2.3": zoneNever, "255.255.255.255": zoneNever,
		"64:ff9b::a9fe:a9fe": zoneNever, "64:ff9b::7f00:1": zoneLoopback, "64:ff9b::808:808": zonePublic, "fe80::1%eth0": zoneNever,
	} {
		if got := zone(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is in zone %d, want %d", text, got, want)
		}
	}
}

func TestPlainHTTP(t *testing.T) {
	reg := newRegistry(t)
	reg.push("plain:1", imageOf(t, "linux/amd64", 9, 100))
	opts := quick()
	opts.Insecure, opts.Stall = false, 20*time.Second // longer than the bound below
	err := pullFails(t, newStore(t), reg.ref("plain:1"), opts)
	says(t, err, "--insecure", reg.host())
	if n := len(reg.seen("/")); n != 0 {
		t.Errorf("%d requests went over plain HTTP", n)
	}
	opts.Insecure = true
	pullWorks(t, newStore(t), reg.ref("plain:1"), opts)
	_, port, _ := net.SplitHostPort(reg.host())
	pullWorks(t, newStore(t), "localhost:"+port+"/plain:1", opts)

	// No other host gets plain HTTP, with or without --insecure, however its name is spelled.
	for _, host := range []string{"10.255.255.1:5000", "registry.example", "192.168.255.254", "172.16.255.254:80", "127.0.0.1.example.com",
		"0.0.0.0:5000", "localhost.example"} {
		start := time.Now()
		err := pullFails(t, newStore(t), host+"/x:1", opts)
		says(t, err, "loopback", host)
		if !errors.Is(err, ErrPlainHTTP) || time.Since(start) > 10*time.Second {
			t.Errorf("N5 %s: %v", host, err)
		}
	}
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9:5000": true, "[::1]:5000": true, "localhost": true, "a.localhost:1": true, "LOCALHOST:5000": true,
		"127.0.0.1.nip.io": false, "localhost.evil.example:80": false, "2130706433": false, "0177.0.0.1": false, "10.0.0.1": false, "": false,
		"[::]": false,
	} {
		if loopbackName(host) != want {
			t.Errorf("loopbackName(%q) is %v", host, !want)
		}
	}
	// A name that calls itself local and resolves to somewhere else is stopped when it is dialled (N4).
	if err := checkLoopback(netip.MustParseAddr("93.184.216.34")); !errors.Is(err, ErrPlainHTTP) {
		t.Errorf("%v", err)
	}
}

// A registry over TLS and HTTP/2, known by a certificate in a directory, and one that cuts connections there.
func TestTLS(t *testing.T) {
	reg := newRegistry(t)
	secure := httptest.NewUnstartedServer(reg)
	secure.EnableHTTP2 = true
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	host := strings.TrimPrefix(secure.URL, "https://")
	reg.push("tls:1", imageOf(t, "linux/amd64", 10, 100))
	opts := quick()
	opts.Insecure = false
	err := pullFails(t, newStore(t), host+"/tls:1", opts)
	says(t, err, "certificate", "/etc/docker/certs.d/"+host+"/ca.crt")
	opts.CertDirs = []string{trust(t, host, secure)}
	pullWorks(t, newStore(t), host+"/tls:1", opts)

	digest, size := big(t, reg, "cut:1", 1<<20)
	var cuts atomic.Int64
	reg.set(only(digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.ProtoMajor != 2 {
			t.Errorf("%s", r.Proto)
		}
		resp := answerOf(r, next)
		if resp.ContentLength > 400_000 {
			cuts.Add(1)
			sendPart(w, resp, 300_000)
		}
		copyHeader(w, resp)
		_, _ = io.Copy(w, resp.Body)
	}))
	reg.seen("")
	pullWorks(t, newStore(t), host+"/cut:1", opts)
	last := reg.seen(digest)
	if cuts.Load() < 2 || !strings.HasSuffix(last[len(last)-1].ranges, fmt.Sprintf("-%d", size-1)) {
		t.Errorf("%d cuts, %+v", cuts.Load(), last)
	}
	reg.set(nil)
	if err := os.WriteFile(filepath.Join(opts.CertDirs[0], host, "bad.crt"), []byte("not PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, pullFails(t, newStore(t), host+"/tls:1", opts), "bad.crt", "PEM")
}

// trust makes a directory of certificates that knows a server.
func trust(t *testing.T, host string, server *httptest.Server) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, host), 0o700); err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, host, "ca.crt"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestUnreachable(t *testing.T) {
	isolate(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	listener.Close()
	start := time.Now()
	says(t, pullFails(t, newStore(t), closed+"/x:1", quick()), closed, "refused", "check that a registry listens")
	says(t, pullFails(t, newStore(t), "no-such-registry.invalid/x:1",
		Options{Platform: "linux/amd64", Backoff: 1, CertDirs: []string{}, Stall: 3 * time.Second}),
		"no-such-registry.invalid", "image import")
	if time.Since(start) > 20*time.Second {
		t.Errorf("it took %s", time.Since(start))
	}
}

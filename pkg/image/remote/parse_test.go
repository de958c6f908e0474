package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func TestChoose(t *testing.T) {
	platforms := func(names ...string) []byte {
		list := v1.IndexManifest{SchemaVersion: 2}
		for i, name := range names {
			d := v1.Descriptor{MediaType: types.OCIManifestSchema1, Size: 10, Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%064d", i)}}
			if name != "" {
				p, err := v1.ParsePlatform(name)
				if err != nil {
					t.Fatal(err)
				}
				d.Platform = p
			}
			list.Manifests = append(list.Manifests, d)
		}
		data, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, c := range []struct {
		has  []string
		want string
		is   int // -1: none
	}{
		{[]string{"linux/amd64"}, "linux/amd64", 0},
		{[]string{"windows/amd64", "linux/amd64"}, "linux/amd64", 1},
		{[]string{"linux/arm64", "linux/amd64"}, "linux/x86_64", 1},
		{[]string{"linux/amd64/v3", "linux/amd64/v2"}, "linux/amd64", 1},
		{[]string{"linux/amd64/v3", "linux/amd64"}, "linux/amd64", 1},
		{[]string{"linux/amd64/v3", "linux/amd64"}, "linux/amd64/v3", 0},
		{[]string{"linux/amd64"}, "linux/amd64/v3", -1},
		{[]string{"linux/arm64/v8"}, "linux/arm64", 0},
		{[]string{"linux/arm64"}, "linux/arm64/v8", 0},
		{[]string{"linux/arm/v5", "linux/arm/v6", "linux/arm/v7"}, "linux/arm/v7", 2},
		{[]string{"linux/arm/v5", "linux/arm/v6"}, "linux/arm/v7", 1},
		{[]string{"linux/arm/v7"}, "linux/arm/v6", -1},
		{[]string{"linux/arm/v7", "linux/arm/v5"}, "linux/arm", 1},
		{[]string{"unknown/unknown", "linux/amd64"}, "linux/amd64", 1},
		{[]string{"unknown/unknown"}, "linux/amd64", -1},
		{[]string{""}, "linux/amd64", 0},
		{[]string{"", "linux/amd64"}, "linux/amd64", 1},
		{nil, "linux/amd64", -1},
	} {
		want, err := parsePlatform(c.want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := chooseManifest(platforms(c.has...), want)
		if c.is < 0 {
			if !errors.Is(err, ErrPlatform) {
				t.Errorf("%v for %s: %v, %v", c.has, c.want, got.Platform, err)
			}
			continue
		}
		if err != nil || got.Digest.Hex != fmt.Sprintf("%064d", c.is) {
			t.Errorf("%v for %s: %v, %v", c.has, c.want, got.Platform, err)
		}
	}
	for _, bad := range []string{"", "linux", "linux/", "/amd64", "linux/amd64/v1/x", "linux/../etc", "linux/a b", "linux/amd64\n"} {
		if p, err := parsePlatform(bad); err == nil {
			t.Errorf("%q is %v", bad, p)
		}
	}
}

func TestContinues(t *testing.T) {
	for header, want := range map[string]bool{
		"bytes 100-199/200": true, "bytes 100-199/*": true,
		"bytes 0-199/200": false, "bytes 100-198/200": false, "bytes 100-199/201": false, "bytes 100-299/200": false,
		"": false, "100-199/200": false, "bytes 100-199": false, "items 100-199/200": false, "bytes */200": false,
	} {
		if continues(header, 100, 200) != want {
			t.Errorf("%q: %v", header, !want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": 0, "5": 5 * time.Second, "-1": 0, "soon": 0, "999999999999999999999": 0, "99999999": 7 * 24 * time.Hour,
		"Thu, 01 Jan 1970 00:00:00 GMT": 0,
	} {
		if got := retryAfter(header); got != want {
			t.Errorf("%q: %s, want %s", header, got, want)
		}
	}
}

// A1: whatever net/http says of an address, its query and its password are not in the error.
func TestTidy(t *testing.T) {
	inner := &url.Error{Op: "Get", URL: "https://user:hidden@cdn.example/blob?X-Signature=hidden", Err: syscall.ECONNRESET}
	err := tidy(fmt.Errorf("something: %w", &url.Error{Op: "Get", URL: "https://registry.example/v2/?hidden", Err: inner}))
	if text := err.Error(); strings.Contains(text, "hidden") || !strings.Contains(text, "cdn.example") {
		t.Errorf("%s", text)
	}
	if !errors.Is(err, syscall.ECONNRESET) || !isTemporary(err) {
		t.Errorf("%v is not passing", err)
	}
	for _, final := range []error{syscall.ECONNREFUSED, http.ErrSchemeMismatch, &statusError{status: 404}, &statusError{status: 501},
		ErrInvalid, errors.New("x509: nonsense")} {
		if isTemporary(final) {
			t.Errorf("%v is passing", final)
		}
	}
	for _, temporary := range []error{io.ErrUnexpectedEOF, &stalledError{}, &statusError{status: 503},
		errors.New("http2: server sent GOAWAY")} {
		if !isTemporary(fmt.Errorf("x: %w", temporary)) {
			t.Errorf("%v is not passing", temporary)
		}
	}
}

// FuzzManifest: a registry may serve anything; what is accepted can be worked with.
func FuzzManifest(f *testing.F) {
	f.Add("application/vnd.oci.image.manifest.v1+json",
		[]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:`+strings.Repeat("a", 64)+
			`","size":2},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:`+strings.Repeat("b", 64)+`","size":3}]}`))
	f.Add("application/vnd.oci.image.index.v1+json",
		[]byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:`+
			strings.Repeat("a", 64)+`","size":2,"platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`))
	f.Add("", []byte(`{"schemaVersion":1,"fsLayers":[]}`))
	f.Add("text/html;;", []byte(`<html>`))
	f.Fuzz(func(t *testing.T, label string, data []byte) {
		_ = checkPlatform(data, v1.Platform{OS: "linux", Architecture: "amd64"})
		kind, err := kindOf(label, data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("%v", err)
			}
			return
		}
		if kind.IsIndex() {
			for _, want := range []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm", Variant: "v7"}} {
				if d, err := chooseManifest(data, want); err == nil && !sha256Digest.MatchString(d.Digest.String()) {
					t.Fatalf("chosen: %v", d)
				} else if err != nil {
					printable(t, err.Error())
				}
			}
			return
		}
		m, err := parseImage(data)
		if err != nil {
			printable(t, err.Error())
			return
		}
		for _, l := range append(m.Layers, m.Config) {
			if !sha256Digest.MatchString(l.Digest.String()) || l.Size < 0 || len(l.URLs) > 0 && l.Digest != m.Config.Digest {
				t.Fatalf("accepted: %+v", l)
			}
		}
	})
}

func printable(t *testing.T, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, unicode.IsControl); i >= 0 {
		t.Fatalf("A6: control character in %q", text)
	}
}

// FuzzCredentials: the files belong to other programs.
func FuzzCredentials(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"r.example/a":{"username":"u","password":"p"}}}`), "r.example",
		"a/b")
	f.Add([]byte(`{"auths":{"r.example":{"auth":"dTpw"}}}`), "r.example", "a")
	f.Add([]byte(`{"auths":null}`), "docker.io", "library/x")
	f.Fuzz(func(t *testing.T, data []byte, registry, repository string) {
		file, err := parseAuthFile(data)
		if err != nil {
			return
		}
		file.CredHelpers, file.CredsStore = nil, "" // no programs here
		auth, err := file.lookup(t.Context(), registry, repository)
		if err != nil || auth == nil {
			return
		}
		// Nothing is handed out that is not for this registry.
		for key := range file.Auths {
			k := authKey(key)
			if own := canonicalRegistry(registry) + "/" + repository; k == own || strings.HasPrefix(own, k+"/") {
				return
			}
		}
		t.Fatalf("%+v for %s/%s from %s", auth, registry, repository, data)
	})
}

// FuzzPlain: a stranger's words, made fit for a terminal.
func FuzzPlain(f *testing.F) {
	f.Add("a\x1b[31m\r\nb\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		out := plain(text)
		if len(out) > 400 {
			t.Fatalf("%d bytes", len(out))
		}
		for _, r := range out {
			if r != ' ' && !unicode.IsPrint(r) {
				t.Fatalf("%q of %q", r, text)
			}
		}
	})
}

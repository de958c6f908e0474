package registry

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/deps"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a registry, and a proxy of it as a configuration says, in which {index} and {host} stand for the registry.
func serve(t *testing.T, tlsServer bool, config string, h http.HandlerFunc) (*httptest.Server, *Proxy) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	if tlsServer {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if tlsServer {
		certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
		if err := os.WriteFile(filepath.Join(dir, "ca.pem"), certificate, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("{index}", s.URL+"/index/", "{host}", u.Host).Replace(config)
	file := filepath.Join(dir, "registries.yaml")
	if err := os.WriteFile(file, []byte("registries:\n  pypi:\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Open(file, "pypi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return s, p
}

// testAsk sends a request to a proxy as a sandbox does: the URL's host is the proxy's name.
func (p *Proxy) testAsk(t *testing.T, method, address string, header ...string) (status int, body string, h http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, strings.Replace(address, deps.ProxyName, p.listener.Addr().String(), 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	answer, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), answer.Header
}

func TestForward(t *testing.T) {
	s, p := serve(t, false, "    index: {index}\n", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		switch r.URL.Path {
		case "/index/page/":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, `<a href="http://`+r.Host+`/files/x.whl">x</a> <a href="https://other.example/y.whl">y</a>`)
		case "/files/x.whl":
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = io.WriteString(w, r.Method+" "+r.URL.RawQuery+" "+r.Header.Get("Cookie")+r.Header.Get("Authorization")+" http://"+r.Host+"/")
		default:
			http.NotFound(w, r)
		}
	})
	a := p.Access()
	status, body, h := p.testAsk(t, http.MethodGet, a.Index+"page/")
	file := a.Base + "/http/" + strings.Replace(strings.TrimPrefix(s.URL, "http://"), ":", deps.PortMark, 1) + "/files/x.whl"
	if status != http.StatusOK || !strings.Contains(body, `"`+file+`"`) || !strings.Contains(body, "https://other.example/y.whl") || h.Get("Set-Cookie") != "" {
		t.Errorf("%d %s %v", status, body, h)
	}
	// An archive passes as it is.
	if status, body, _ := p.testAsk(t, http.MethodGet, file+"?a=b", "Cookie", "c", "Authorization", "d"); status != http.StatusOK || body != "GET a=b  http://"+
		strings.TrimPrefix(s.URL, "http://")+"/" {
		t.Errorf("%d %q", status, body)
	}
	if status, _, _ := p.testAsk(t, http.MethodGet, a.Index+"absent/"); status != http.StatusNotFound {
		t.Error(status)
	}
	if got := a.Restore("see " + file + " and " + a.Index); got != "see "+s.URL+"/files/x.whl and "+s.URL+"/index/" {
		t.Errorf("%q", got)
	}
	if len(p.Refused()) != 0 {
		t.Errorf("%q", p.Refused())
	}
}

// TestNotForwarded: whatever is not a read of the registry's own hosts stays here. TestForward is the control.
func TestNotForwarded(t *testing.T) {
	asked := 0
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = io.WriteString(w, "the host's secret")
	}))
	defer inside.Close()
	s, p := serve(t, false, "    index: {index}\n", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/index/redirect" {
			http.Redirect(w, r, inside.URL+"/secret", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "registry")
	})
	a := p.Access()
	at := func(address string) string {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return a.Base + "/" + u.Scheme + "/" + strings.Replace(u.Host, ":", deps.PortMark, 1) + u.Path
	}
	for name, c := range map[string]struct {
		method, address string
		status          int
		says            string
	}{
		"control":        {http.MethodGet, a.Index, http.StatusOK, "registry"},
		"another host":   {http.MethodGet, at(inside.URL + "/secret"), http.StatusForbidden, "none of the registry's"},
		"a redirect":     {http.MethodGet, a.Index + "redirect", http.StatusBadGateway, "none of the registry's"},
		"POST":           {http.MethodPost, a.Index, http.StatusMethodNotAllowed, "only read"},
		"PUT":            {http.MethodPut, a.Index, http.StatusMethodNotAllowed, "only read"},
		"no token":       {http.MethodGet, "http://" + deps.ProxyName + "/http/x/", http.StatusNotFound, ""},
		"a wrong token":  {http.MethodGet, strings.Replace(a.Index, p.token, strings.Repeat("A", len(p.token)), 1), http.StatusNotFound, ""},
		"another scheme": {http.MethodGet, strings.Replace(a.Index, "/http/", "/https/", 1), http.StatusBadGateway, ""},
		"file":           {http.MethodGet, a.Base + "/file//etc/passwd", http.StatusNotFound, ""},
		"a user":         {http.MethodGet, a.Base + "/http/user@" + strings.TrimPrefix(s.URL, "http://") + "/", http.StatusNotFound, ""},
	} {
		if status, body, _ := p.testAsk(t, c.method, c.address); status != c.status || !strings.Contains(body, c.says) || strings.Contains(body, "secret") {
			t.Errorf("%s: %d %q", name, status, body)
		}
	}
	if asked > 0 {
		t.Errorf("the other host was asked %d times", asked)
	}
	if said := strings.Join(p.Refused(), "\n"); !strings.Contains(said, "none of the registry's") || strings.Contains(said, p.token) {
		t.Errorf("%s", said)
	}
}

// TestAddresses: a host that the configuration does not name must have an ordinary address, whatever its name resolves to.
func TestAddresses(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "inside") }))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	for named, want := range map[bool]int{true: http.StatusOK, false: http.StatusBadGateway} {
		p, err := Start("pypi", Config{Index: s.URL + "/", Hosts: []string{host}, named: named})
		if err != nil {
			t.Fatal(err)
		}
		if status, body, _ := p.testAsk(t, http.MethodGet, p.Access().Index); status != want || named != (body == "inside") {
			t.Errorf("named %v: %d %q", named, status, body)
		}
		_ = p.Close()
	}
	for text, ok := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1::1": true, "127.0.0.1": false, "10.0.0.1": false, "169.254.169.254": false, "::1": false,
		"fd00::1": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "100.64.0.1": false, "192.168.1.1": false,
	} {
		if a := netip.MustParseAddr(text); allowed(a, false) != ok || !allowed(a, true) {
			t.Errorf("%s: %v", a, !ok)
		}
	}
}

// TestCredentials: they go to the index over TLS, and nowhere else.
func TestCredentials(t *testing.T) {
	var other *httptest.Server
	got := ""
	other = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "other:"+r.Header.Get("Authorization"))
	}))
	defer other.Close()
	s, p := serve(t, true, "    index: {index}\n    ca: ca.pem\n    user: me\n    password_file: secret\n    hosts: ["+
		strings.TrimPrefix(other.URL, "https://")+"]\n", func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		if r.URL.Path == "/index/away" {
			http.Redirect(w, r, other.URL, http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "index")
	})
	a := p.Access()
	if status, body, _ := p.testAsk(t, http.MethodGet, a.Index); status != http.StatusOK || body != "index" || got != basic("me", "open sesame") {
		t.Errorf("%d %q %q", status, body, got)
	}
	// httptest's servers share one certificate.
	if status, body, _ := p.testAsk(t, http.MethodGet, a.Index+"away"); status != http.StatusOK || body != "other:" {
		t.Errorf("%d %q", status, body)
	}
	if strings.Contains(a.Index+a.Base, "sesame") {
		t.Error(a)
	}
	// Without the certificate there is no connection.
	bare, err := Start("pypi", Config{Index: s.URL + "/", named: true})
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	if status, body, _ := bare.testAsk(t, http.MethodGet, bare.Access().Index); status != http.StatusBadGateway || !strings.Contains(body, "certificate") {
		t.Errorf("%d %q", status, body)
	}
}

// TestTruncated: a client can tell an answer that ended early from a whole one.
func TestTruncated(t *testing.T) {
	_, p := serve(t, false, "    index: {index}\n", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".json") {
			w.Header().Set("Content-Type", "application/json")
		}
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "short")
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	})
	for _, name := range []string{"archive", "document.json"} {
		conn, err := net.Dial("tcp", p.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		u, _ := url.Parse(p.Access().Index)
		_, _ = io.WriteString(conn, "GET "+u.Path+name+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		answer, _ := io.ReadAll(conn)
		_ = conn.Close()
		head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
		if strings.HasPrefix(head, "HTTP/1.1 200") && (!strings.Contains(head, "Content-Length: 1000") || len(body) >= 1000) {
			t.Errorf("%s: %s", name, answer)
		}
	}
}

func TestConfig(t *testing.T) {
	for text, says := range map[string]string{
		"registries:\n  npm:\n    index: https://npm.example.com\n":                                         "",
		"registries:\n  npm:\n    index: http://npm.example.com:4873/x/\n    hosts: [a.example, \"b:1\"]\n": "",
		"": "",
		"registries:\n  npn:\n    index: https://x/\n":                                                       `"npn" is no registry; use one of crates, go, maven, npm, pypi`,
		"registries:\n  npm:\n    indx: https://x/\n":                                                        "indx",
		"registries:\n  npm:\n    index: npm.example.com\n":                                                  "write it like https://registry.example.com/",
		"registries:\n  npm:\n    index: https://me:pw@npm.example.com/\n":                                   "use user and password_file",
		"registries:\n  npm:\n    index: https://x/?a\n":                                                     "query",
		"registries:\n  npm:\n    index: https://x/\n    hosts: [https://y/]\n":                              "hosts",
		"registries:\n  npm:\n    index: https://x/\n    user: me\n":                                         "come together",
		"registries:\n  npm:\n    index: \"http://[::1]:80/\"\n":                                             "IPv6",
		"registries:\n  npm:\n    index: https://x/\n    user: a\n    password_file: b\n    token_file: c\n": "either",
		"other: 1\n": "other",
	} {
		file := filepath.Join(t.TempDir(), "registries.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(file)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	all, err := Load(filepath.Join(t.TempDir(), "none"))
	if err != nil || len(all) != len(Names()) || all["npm"].Index == "" {
		t.Errorf("%v %v", all, err)
	}
}

// TestDocumentsInMemory: documents of a hostile registry take no more memory than one of the largest may, whatever is replaced in them.
func TestDocumentsInMemory(t *testing.T) {
	s, p := serve(t, false, "    index: {index}\n", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		n := 1000
		if strings.HasSuffix(r.URL.Path, "/large") {
			n = 1_500_000
		}
		_, _ = io.WriteString(w, strings.Repeat("http://"+r.Host+"/", n))
	})
	base := p.Access().Index
	if status, body, _ := p.testAsk(t, http.MethodGet, base+"small"); status != http.StatusOK || strings.Contains(body, s.URL) {
		t.Errorf("%d %.200s", status, body)
	}
	if status, body, _ := p.testAsk(t, http.MethodGet, base+"large"); status != http.StatusBadGateway || len(body) > 1000 {
		t.Errorf("%d, %d bytes", status, len(body))
	}
	if held := p.held.Load(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
	p.held.Store(maxHeld - 1000)
	if status, _, _ := p.testAsk(t, http.MethodGet, base+"small"); status != http.StatusBadGateway {
		t.Error(status)
	}
}

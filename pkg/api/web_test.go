package api

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// page returns the body and the head of a page that a client without a key gets.
func (w *testServer) page(path, kind string) (string, http.Header) {
	w.t.Helper()
	answer := w.request("GET", path, "")
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if h := answer.Header; err != nil || answer.StatusCode != 200 || h.Get("Content-Type") != kind+"; charset=utf-8" ||
		h.Get("X-Content-Type-Options") != "nosniff" {
		w.t.Errorf("%s: %d, %v, %v", path, answer.StatusCode, answer.Header, err)
	}
	return string(b), answer.Header
}

// TestPages: clients without a key get the pages. These load files of the server only, have no inline script or style, and are the same for
// every server.
func TestPages(t *testing.T) {
	open := newTestServer(t)
	closed := newTestServer(t, func(o *Options) { o.Auth, o.Version = keys{"a": {ID: "a"}}, "secret" })
	all := map[string]string{}
	for path, kind := range map[string]string{
		"/": "text/html", "/docs": "text/html", "/index.js": "text/javascript", "/style.css": "text/css",
	} {
		text, header := closed.page(path, kind)
		if other, _ := open.page(path, kind); other != text {
			t.Errorf("%s depends on the server", path)
		}
		all[path] = text
		policy := map[string]string{}
		for directive := range strings.SplitSeq(header.Get("Content-Security-Policy"), ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(directive), " ")
			policy[name] = value
		}
		for name, want := range map[string]string{
			"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'", "base-uri": "'none'",
			"form-action": "'none'", "frame-ancestors": "'none'", "require-trusted-types-for": "'script'", "trusted-types": "'none'",
		} {
			if policy[name] != want {
				t.Errorf("%s: %s is %q", path, name, policy[name])
			}
		}
		if header.Get(wire.HeaderVersion) != "" {
			t.Errorf("%s tells the version", path)
		}
	}
	if size := len(all["/"]) + len(all["/index.js"]) + len(all["/style.css"]); size > 16<<10 {
		t.Errorf("the page has %d bytes", size)
	}
	// Files of other hosts, and what the policy refuses.
	for path, pattern := range map[string]string{
		"/": `(?i)<style|style=|\son\w+=|<script>|//|<iframe|action=`, "/docs": `(?i)<style|style=|\son\w+=|<script|src=|href="(//|[a-z]+:)`,
		"/style.css": `(?i)url\(|@import|//`,
		"/index.js": `(?i)https?:|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|` +
			`localStorage|sessionStorage|indexedDB|cookie|location`,
	} {
		if found := regexp.MustCompile(pattern).FindString(all[path]); found != "" {
			t.Errorf("%s has %q", path, found)
		}
	}
	// The script and the labels use elements that the page has.
	for _, use := range regexp.MustCompile(`element\("([^"]+)"\)|fillTable\("([^"]+)"`).FindAllStringSubmatch(all["/index.js"], -1) {
		if id := use[1] + use[2]; !strings.Contains(all["/"], `id="`+id+`"`) {
			t.Errorf("the script uses %q, which the page lacks", id)
		}
	}
	for _, field := range regexp.MustCompile(`<(?:input|select|textarea) id="([^"]+)"`).FindAllStringSubmatch(all["/"], -1) {
		if !strings.Contains(all["/"], `<label for="`+field[1]+`"`) {
			t.Errorf("%s has no label", field[1])
		}
	}
	closed.problem(404, "GET", "/index.html", "")
	closed.problem(405, "POST", "/", "code=1", "Content-Type", "application/x-www-form-urlencoded")
	closed.problem(401, "GET", "/v1/languages", "")
	closed.problem(401, "GET", "/v1/limits", "")
}

package api

import (
	"embed"
	"net/http"
)

// webFiles are the pages for people: / (index.html), whose script uses the API as any client does, and /docs (docs.html). Neither loads
// anything from other hosts. The files are the same for every server, so that a client without a key learns nothing from them.
//
//go:embed web
var webFiles embed.FS

// pagePolicy is the Content-Security-Policy of the pages: files of this server only, no inline script or style, no HTML made from strings,
// no frame around them, and no form that the browser sends by itself.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

const typeHTML = "text/html; charset=utf-8"

// webFile returns the handler of a file.
func webFile(name, kind string) handler {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Security-Policy", pagePolicy)
		b, err := webFiles.ReadFile("web/" + name)
		return serveDocument(w, kind, b, err)
	}
}

package testregistry

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

// NPMPackage is a version of a package of npm.
type NPMPackage struct {
	Name, Version string
	Requires      map[string]string
	Fields        map[string]any // further fields of package.json, such as main, bin, exports, scripts
	Files         map[string]string
	Tag           string // the dist-tag of this version; the last version without one is latest
	// Entries are added to the archive as they are, and Archive replaces it. Integrity replaces what the index states.
	Entries   []NPMEntry
	Archive   []byte
	Integrity string
	// Cut ends an answer with the archive after so many bytes, and Delay comes before it.
	Cut   int
	Delay time.Duration
}

// NPMEntry is an entry of an archive: a file, or a link.
type NPMEntry struct {
	Name, Text, Link string
	Hard             bool // a hard link
}

func (p *NPMPackage) manifest() map[string]any {
	m := map[string]any{"name": p.Name, "version": p.Version}
	if len(p.Requires) > 0 {
		m["dependencies"] = p.Requires
	}
	maps.Copy(m, p.Fields)
	return m
}

// archive returns the package as npm packs it: below package/, with files that may be executed.
func (p *NPMPackage) archive() []byte {
	if p.Archive != nil {
		return p.Archive
	}
	manifest, err := json.Marshal(p.manifest())
	if err != nil {
		panic(err)
	}
	entries := []NPMEntry{{Name: "package/package.json", Text: string(manifest)}}
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		entries = append(entries, NPMEntry{Name: "package/" + name, Text: p.Files[name]})
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, e := range append(entries, p.Entries...) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.Name, Mode: 0o755, Size: int64(len(e.Text))}
		if e.Link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.Link, 0
			if e.Hard {
				h.Typeflag = tar.TypeLink
			}
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err) // a buffer takes everything
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write([]byte(e.Text))
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// NPM serves packages: documents at /NAME, in full or abbreviated, and archives at /NAME/-/FILE.
func NPM(packages ...NPMPackage) http.Handler {
	documents, archives := map[string][]*NPMPackage{}, map[string]*NPMPackage{}
	for i := range packages {
		p := &packages[i]
		p.Archive = p.archive()
		if p.Integrity == "" {
			sum := sha512.Sum512(p.Archive)
			p.Integrity = "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
		}
		documents["/"+p.Name] = append(documents["/"+p.Name], p)
		archives[p.path()] = p
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := archives[r.URL.Path]; p != nil {
			p.serve(w)
			return
		}
		versions := documents[r.URL.Path] // of @scope%2fname, too
		if versions == nil {
			http.Error(w, `{"error":"Not found"}`, http.StatusNotFound)
			return
		}
		document := map[string]any{"name": versions[0].Name}
		full := !strings.Contains(r.Header.Get("Accept"), "application/vnd.npm.install-v1+json")
		tags, all := map[string]string{}, map[string]any{}
		for _, p := range versions {
			tags[cmp.Or(p.Tag, "latest")] = p.Version
			m := p.manifest()
			m["dist"] = map[string]string{"tarball": "http://" + r.Host + p.path(), "integrity": p.Integrity}
			if scripts, ok := m["scripts"].(map[string]string); ok && !full {
				delete(m, "scripts")
				m["hasInstallScript"] = scripts["preinstall"] != "" || scripts["install"] != "" || scripts["postinstall"] != ""
			}
			all[p.Version] = m
		}
		document["dist-tags"], document["versions"] = tags, all
		w.Header().Set("Content-Type", "application/vnd.npm.install-v1+json")
		if full {
			document["readme"] = "# of a test"
			w.Header().Set("Content-Type", "application/json")
		}
		_ = json.NewEncoder(w).Encode(document)
	})
}

func (p *NPMPackage) path() string {
	return "/" + p.Name + "/-/" + path.Base(p.Name) + "-" + p.Version + ".tgz"
}

func (p *NPMPackage) serve(w http.ResponseWriter) {
	time.Sleep(p.Delay)
	w.Header().Set("Content-Type", "application/octet-stream")
	if p.Cut == 0 {
		_, _ = w.Write(p.Archive)
		return
	}
	_, _ = w.Write(p.Archive[:p.Cut])
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	panic(http.ErrAbortHandler)
}

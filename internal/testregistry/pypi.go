package testregistry

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Wheel is a package of Python.
type Wheel struct {
	Name, Version string
	Requires      []string
	Files         map[string]string
	// Archive replaces the archive, and Digest the digest that the index states.
	Archive []byte
	Digest  string
	Sdist   bool // a source distribution in place of a wheel; Archive has it
}

func (w *Wheel) file() string {
	if w.Sdist {
		return fmt.Sprintf("%s-%s.tar.gz", w.Name, w.Version)
	}
	return fmt.Sprintf("%s-%s-py3-none-any.whl", strings.ReplaceAll(w.Name, "-", "_"), w.Version)
}

func (w *Wheel) archive() []byte {
	if w.Archive != nil {
		return w.Archive
	}
	info := fmt.Sprintf("%s-%s.dist-info/", strings.ReplaceAll(w.Name, "-", "_"), w.Version)
	files := maps.Clone(w.Files)
	if files == nil {
		files = map[string]string{}
	}
	files[info+"METADATA"] = fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.Name, w.Version)
	for _, r := range w.Requires {
		files[info+"METADATA"] += "Requires-Dist: " + r + "\n"
	}
	files[info+"WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
	record := info + "RECORD,,\n"
	for _, name := range slices.Sorted(maps.Keys(files)) {
		record += name + ",,\n"
	}
	files[info+"RECORD"] = record
	return Zip(files)
}

// Zip is an archive of files, in the order of their names.
func Zip(files map[string]string) []byte {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(files[name]))
		}
		if err != nil {
			panic(err) // a buffer takes everything
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// PyPI serves wheels: the simple index as HTML (PEP 503) or JSON (PEP 691), at /simple/, and archives at /files/.
func PyPI(wheels ...Wheel) http.Handler {
	mux := http.NewServeMux()
	byName := map[string][]*Wheel{}
	for i := range wheels {
		w := &wheels[i]
		archive := w.archive()
		if w.Digest == "" {
			sum := sha256.Sum256(archive)
			w.Digest = hex.EncodeToString(sum[:])
		}
		byName[w.Name] = append(byName[w.Name], w)
		mux.HandleFunc("GET /files/"+w.file(), func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/octet-stream")
			_, _ = rw.Write(archive)
		})
	}
	mux.HandleFunc("GET /simple/{name}/", func(rw http.ResponseWriter, r *http.Request) {
		list, found := byName[r.PathValue("name")]
		if !found {
			http.NotFound(rw, r)
			return
		}
		if strings.Contains(r.Header.Get("Accept"), "application/vnd.pypi.simple.v1+json") {
			type file struct {
				Name   string            `json:"filename"`
				URL    string            `json:"url"`
				Hashes map[string]string `json:"hashes"`
			}
			var files []file
			for _, w := range list { // absolute, as on pypi.org
				files = append(files, file{w.file(), "http://" + r.Host + "/files/" + w.file(), map[string]string{"sha256": w.Digest}})
			}
			rw.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			_ = json.NewEncoder(rw).Encode(map[string]any{"meta": map[string]string{"api-version": "1.0"}, "name": r.PathValue("name"), "files": files})
			return
		}
		rw.Header().Set("Content-Type", "text/html")
		for _, w := range list {
			fmt.Fprintf(rw, "<a href=\"../../files/%s#sha256=%s\">%s</a>\n", w.file(), w.Digest, html.EscapeString(w.file()))
		}
	})
	return mux
}

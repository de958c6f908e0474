package testregistry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Crate is a package of Rust. Its manifest is made from the rest.
type Crate struct {
	Name, Version string
	Requires      map[string]string   // crates and what their versions must be
	Features      map[string][]string // that it has
	Files         map[string]string
	Links         map[string]string // symbolic links in the archive, with their targets
	Digest        string            // replaces that of the archive in the index
}

func (c *Crate) archive() []byte {
	files := maps.Clone(c.Files)
	if files == nil {
		files = map[string]string{}
	}
	manifest := "[package]\nname = \"" + c.Name + "\"\nversion = \"" + c.Version + "\"\nedition = \"2021\"\n\n[dependencies]\n"
	for _, name := range slices.Sorted(maps.Keys(c.Requires)) {
		manifest += name + " = \"" + c.Requires[name] + "\"\n"
	}
	manifest += "[features]\n"
	for _, name := range slices.Sorted(maps.Keys(c.Features)) {
		list, err := json.Marshal(c.Features[name])
		if err != nil {
			panic(err) // strings
		}
		manifest += name + " = " + string(list) + "\n"
	}
	files["Cargo.toml"] = manifest
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	add := func(h tar.Header, text string) {
		h.Name, h.Mode, h.Size = c.Name+"-"+c.Version+"/"+h.Name, 0o644, int64(len(text))
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			panic(err) // a buffer takes everything
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		add(tar.Header{Typeflag: tar.TypeReg, Name: name}, files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.Links)) {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: c.Links[name]}, "")
	}
	if w.Close() != nil || packed.Close() != nil {
		panic("a buffer takes everything")
	}
	return out.Bytes()
}

// entry is the crate's line in the index.
func (c *Crate) entry(archive []byte) []byte {
	type dependency struct {
		Name            string   `json:"name"`
		Req             string   `json:"req"`
		Features        []string `json:"features"`
		Optional        bool     `json:"optional"`
		DefaultFeatures bool     `json:"default_features"`
		Target          *string  `json:"target"`
		Kind            string   `json:"kind"`
	}
	list := []dependency{}
	for _, name := range slices.Sorted(maps.Keys(c.Requires)) {
		list = append(list, dependency{Name: name, Req: c.Requires[name], Features: []string{}, DefaultFeatures: true, Kind: "normal"})
	}
	features := map[string][]string{}
	maps.Copy(features, c.Features)
	digest := c.Digest
	if digest == "" {
		sum := sha256.Sum256(archive)
		digest = hex.EncodeToString(sum[:])
	}
	line, err := json.Marshal(map[string]any{
		"name": c.Name, "vers": c.Version, "deps": list, "cksum": digest, "features": features, "yanked": false,
	})
	if err != nil {
		panic(err) // strings
	}
	return append(line, '\n')
}

// indexPath is the place of a crate in a sparse index.
func indexPath(name string) string {
	switch name = strings.ToLower(name); len(name) {
	case 1, 2:
		return string(rune('0'+len(name))) + "/" + name
	case 3:
		return "3/" + name[:1] + "/" + name
	}
	return name[:2] + "/" + name[2:4] + "/" + name
}

// Crates serves a sparse index at /index/ and archives at /crates/.
func Crates(crates ...Crate) http.Handler {
	answers := map[string][]byte{}
	for i := range crates {
		c := &crates[i]
		archive, at := c.archive(), "/index/"+indexPath(c.Name)
		answers["/crates/"+c.Name+"/"+c.Version+"/download"] = archive
		answers[at] = append(answers[at], c.entry(archive)...)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, found := answers[r.URL.Path]
		switch {
		case r.URL.Path == "/index/config.json":
			answer = []byte(`{"dl": "http://` + r.Host + `/crates", "api": "http://` + r.Host + `/"}`)
		case !found:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(answer)
	})
}

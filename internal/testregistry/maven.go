package testregistry

import (
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
)

// Artifact is an artifact of a Maven repository.
type Artifact struct {
	Name string // group:artifact:version, or with :classifier behind it
	// Inner is what its POM has beside the coordinates. POM replaces the whole POM.
	Inner, POM string
	Jar        []byte // nil: none
	// Checksums are those that the repository states for its files, by extension; "" is the right one. nil: the right SHA-1.
	Checksums map[string]string
}

// Needs is the text of dependencies in a POM: group:artifact:version, with further elements behind a space.
func Needs(all ...string) string {
	text := "<dependencies>"
	for _, d := range all {
		coordinate, more, _ := strings.Cut(d, " ")
		parts := append(strings.Split(coordinate, ":"), "", "")
		text += "<dependency><groupId>" + parts[0] + "</groupId><artifactId>" + parts[1] + "</artifactId>"
		if parts[2] != "" {
			text += "<version>" + parts[2] + "</version>"
		}
		text += more + "</dependency>"
	}
	return text + "</dependencies>"
}

// Maven serves artifacts in the layout of a Maven repository, at /.
func Maven(artifacts ...Artifact) http.Handler {
	files := map[string][]byte{}
	add := func(a *Artifact, path string, content []byte) {
		files[path] = content
		checksums := a.Checksums
		if checksums == nil {
			checksums = map[string]string{"sha1": ""}
		}
		for kind, stated := range checksums {
			if stated == "" {
				stated = digest(kind, content)
			}
			files[path+"."+kind] = []byte(stated)
		}
	}
	for i := range artifacts {
		a := &artifacts[i]
		parts := append(strings.Split(a.Name, ":"), "")
		base := "/" + strings.ReplaceAll(parts[0], ".", "/") + "/" + parts[1] + "/" + parts[2] + "/" + parts[1] + "-" + parts[2]
		pom := a.POM
		if pom == "" {
			pom = fmt.Sprintf("<?xml version=\"1.0\"?>\n<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>"+
				"<groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>\n%s</project>\n", parts[0], parts[1], parts[2], a.Inner)
		}
		if parts[3] != "" {
			add(a, base+"-"+parts[3]+".jar", a.Jar)
			continue
		}
		add(a, base+".pom", []byte(pom))
		if a.Jar != nil {
			add(a, base+".jar", a.Jar)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, found := files[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(content)
	})
}

func digest(kind string, content []byte) string {
	switch kind {
	case "sha512":
		sum := sha512.Sum512(content)
		return hex.EncodeToString(sum[:])
	case "sha256":
		sum := sha256.Sum256(content)
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(content)
	return hex.EncodeToString(sum[:])
}

package testregistry

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode"
)

// Module is a module of Go. Files needs no go.mod if the module requires nothing.
type Module struct {
	Path, Version string
	Files         map[string]string
	Archive       []byte // replaces the archive
}

func (m *Module) file() string {
	if text, own := m.Files["go.mod"]; own {
		return text
	}
	return "module " + m.Path + "\n\ngo 1.21\n"
}

func (m *Module) tree() map[string]string {
	files := map[string]string{}
	for name, text := range m.Files {
		files[m.Path+"@"+m.Version+"/"+name] = text
	}
	files[m.Path+"@"+m.Version+"/go.mod"] = m.file()
	return files
}

// Sum returns the lines of a go.sum for a module whose archive is not replaced.
func (m *Module) Sum() string {
	digest := func(files map[string]string) string {
		list := ""
		for _, name := range slices.Sorted(maps.Keys(files)) {
			list += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(files[name])), name)
		}
		sum := sha256.Sum256([]byte(list))
		return "h1:" + base64.StdEncoding.EncodeToString(sum[:])
	}
	file := digest(map[string]string{"go.mod": m.file()})
	return fmt.Sprintf("%s %s %s\n%[1]s %[2]s/go.mod %[4]s\n", m.Path, m.Version, digest(m.tree()), file)
}

// Go serves modules as a module proxy does. The last version of a module is the latest.
func Go(modules ...Module) http.Handler {
	answers := map[string][]byte{}
	for i := range modules {
		m := &modules[i]
		at := "/" + escaped(m.Path)
		info, err := json.Marshal(map[string]string{"Version": m.Version, "Time": "2020-01-02T03:04:05Z"})
		if err != nil {
			panic(err) // strings
		}
		version := at + "/@v/" + escaped(m.Version)
		answers[version+".info"], answers[at+"/@latest"], answers[version+".mod"] = info, info, []byte(m.file())
		answers[at+"/@v/list"] = append(answers[at+"/@v/list"], m.Version+"\n"...)
		if answers[version+".zip"] = m.Archive; m.Archive == nil {
			answers[version+".zip"] = Zip(m.tree())
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, found := answers[r.URL.Path]
		if !found {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		if strings.HasSuffix(r.URL.Path, ".zip") {
			w.Header().Set("Content-Type", "application/zip")
		}
		_, _ = w.Write(answer)
	})
}

// escaped writes capitals as module proxies have them.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

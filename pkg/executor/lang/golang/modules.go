package golang

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// goModule is a module that a program names. The user's module cache has it in the form of a module proxy, a layer unpacked.
type goModule struct {
	path, version string
	indirect      bool            // no package of the requiring module imports it
	files         []language.File // of the user's module cache, relative to the top of a proxy
	dir           string          // of a layer, on the host
}

func (m *goModule) id() string { return m.path + "@" + m.version }

// archive returns the module's source, or nil.
func (m *goModule) archive() *language.File {
	i := slices.IndexFunc(m.files, func(f language.File) bool { return strings.HasSuffix(f.Path, ".zip") })
	if i < 0 {
		return nil
	}
	return &m.files[i]
}

// findUserModules finds the modules of go.sum and go.mod in the user's module cache. The sandbox sees nothing else of the cache. Nothing of
// it is used by a program whose modules are to be installed.
func findUserModules(_ context.Context, j *language.Job) error {
	if o := &j.Request.Options; len(o.Deps) > 0 || o.Install || o.Lock != "" {
		return nil
	}
	files := j.Files
	if len(files) == 1 {
		src, err := files[0].Content()
		if err != nil {
			return err
		}
		if unpacked := unpackGo(src); unpacked != nil {
			files = unpacked
		}
	}
	var wanted []goModule
	required := map[string]string{} // the modules of go.mod, after replacements
	for _, f := range files {
		base, dir := path.Base(f.Path), path.Dir(f.Path)
		if base != "go.mod" && base != "go.sum" && base != "go.work.sum" || !isPackageDir(dir) {
			continue
		}
		text, err := f.Content()
		if err != nil {
			return err
		}
		if base != "go.mod" {
			wanted = append(wanted, readGoSum(string(text))...)
			continue
		}
		if language.Find(files, path.Join(dir, "vendor/modules.txt")) != nil {
			return nil // a vendor directory has all modules
		}
		for _, m := range readGoMod(string(text)) {
			required[m.path] = m.version
			wanted = append(wanted, m)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	var modules []goModule
	dir := filepath.Join(goModCache(), "cache", "download")
	cache, err := os.OpenRoot(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the module cache: %w", err)
	}
	if cache != nil {
		defer cache.Close()
		modules = findModules(cache, dir, wanted)
		j.Inspected = modules
	}
	return missingModule(files, modules, required)
}

// findModules reads the wanted modules from the cache.
func findModules(cache *os.Root, dir string, wanted []goModule) []goModule {
	var found []goModule
	seen := map[string]bool{}
	for _, m := range wanted {
		if seen[m.id()] || !m.valid() {
			continue
		}
		seen[m.id()] = true
		for _, ext := range []string{".info", ".mod", ".zip"} {
			name := escapeModule(m.path) + "/@v/" + escapeModule(m.version) + ext
			if st, err := cache.Lstat(filepath.FromSlash(name)); err != nil || !st.Mode().IsRegular() {
				continue
			}
			m.files = append(m.files, language.File{Path: name, Open: func() (io.ReadCloser, error) {
				again, err := os.OpenRoot(dir)
				if err != nil {
					return nil, err
				}
				defer again.Close()
				return again.Open(filepath.FromSlash(name))
			}})
		}
		if len(m.files) > 0 {
			found = append(found, m)
		}
	}
	return found
}

// missingModule returns the error for a module that the program imports and that is neither vendored nor in the cache. The go
// command reports modules that only other modules import.
func missingModule(files []language.File, have []goModule, required map[string]string) error {
	for _, f := range files {
		if path.Ext(f.Path) != ".go" || !isPackageDir(path.Dir(f.Path)) {
			continue
		}
		src, err := f.Content()
		if err != nil {
			return err
		}
		for _, i := range lookAtGo(f.Path, src).imports {
			module := ""
			for m := range required {
				if (i == m || strings.HasPrefix(i, m+"/")) && len(m) > len(module) {
					module = m
				}
			}
			version := required[module]
			if module == "" || version == "" || slices.ContainsFunc(have, func(m goModule) bool {
				return m.path == module && m.version == version && m.archive() != nil
			}) {
				continue
			}
			return sandbox.Errorf(sandbox.ErrInvalid, "modules", "--install, or go mod vendor in the project first",
				"%s imports %s, and module %s %s is neither vendored nor in the module cache", f.Path, i, module, version)
		}
	}
	return nil
}

// valid refuses names that can lead to another place in the cache.
func (m *goModule) valid() bool {
	plain := func(s string) bool {
		return fs.ValidPath(s) && s != "." && !strings.ContainsFunc(s, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._~/+", r))
		})
	}
	return plain(m.path) && plain(m.version) && !strings.Contains(m.version, "/")
}

// escapeModule writes capitals as the module cache does, for file systems without case.
func escapeModule(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('!')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// readGoSum returns the modules of a go.sum: lines of module, version and digest.
func readGoSum(text string) []goModule {
	var all []goModule
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 {
			all = append(all, goModule{path: f[0], version: strings.TrimSuffix(f[1], "/go.mod")})
		}
	}
	return all
}

// readGoMod returns the modules that a go.mod requires, after its replacements. It leaves out a module that a directory replaces:
// that is in the tree, or missing.
func readGoMod(text string) []goModule {
	var required []goModule
	replaced := map[string][]string{}
	block := ""
	for line := range strings.Lines(text) {
		line, comment, _ := strings.Cut(line, "//")
		words := strings.Fields(line)
		for i := range words {
			words[i] = strings.Trim(words[i], "\"`")
		}
		switch {
		case len(words) == 0:
			continue
		case words[0] == ")":
			block = ""
			continue
		case len(words) == 2 && words[1] == "(":
			block = words[0]
			continue
		}
		verb := block
		if verb == "" {
			verb, words = words[0], words[1:]
		}
		switch {
		case verb == "require" && len(words) >= 2:
			required = append(required, goModule{path: words[0], version: words[1], indirect: strings.TrimSpace(comment) == "indirect"})
		case verb == "replace" && slices.Contains(words, "=>") && words[0] != "=>":
			replaced[words[0]] = words[slices.Index(words, "=>")+1:]
		}
	}
	var all []goModule
	for _, m := range required {
		if to, ok := replaced[m.path]; ok {
			if len(to) != 2 {
				continue
			}
			all = append(all, goModule{path: to[0], version: to[1], indirect: m.indirect})
			if to[0] != m.path {
				continue
			}
		}
		all = append(all, m)
	}
	return all
}

// goModCache returns the path of the user's module cache.
func goModCache() string {
	if dir := goSetting("GOMODCACHE"); dir != "" {
		return dir
	}
	gopath, _, _ := strings.Cut(goSetting("GOPATH"), string(filepath.ListSeparator))
	if gopath == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		gopath = filepath.Join(home, "go")
	}
	return filepath.Join(gopath, "pkg", "mod")
}

// goSetting returns a variable of the go command: from the environment, or from the file that go env -w writes. Running the go
// command would take longer than all other steps here.
func goSetting(name string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	config, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	file := filepath.Join(config, "go", "env")
	if v := os.Getenv("GOENV"); v == "off" {
		return ""
	} else if v != "" {
		file = v
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return v
		}
	}
	return ""
}

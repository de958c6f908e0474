package typescript

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/evanw/esbuild/pkg/api"
)

// perFile are the names that have another meaning in each file. A name that the file declares itself stays;
// the others become the variables of the file's prefix.
var perFile = map[string]string{
	"__dirname":            "__kit_dirname",
	"__filename":           "__kit_filename",
	"import.meta.url":      "__kit_url",
	"import.meta.dirname":  "__kit_dirname",
	"import.meta.filename": "__kit_filename",
	"require.main":         "__kit_main",
}

// files are the files that esbuild has loaded in one build.
type files struct {
	entry string

	mu       sync.Mutex
	prefixes map[string]int // length of the prefix of a file's first line
	started  []startedFile  // files that are named as threads or processes
	require  bool           // some file calls require
	module   bool           // some file uses module or exports
	threads  bool           // some file starts threads
	forks    bool           // some file starts processes
	cluster  bool           // some file starts the program itself again
	tooLarge bool           // some file may be nested too deeply for the stack

	largest int // bytes that a file may have
}

// commonJSNamespace holds wrappers of CommonJS packages: they require the package, and esbuild takes the imported names from
// the result. Node itself finds only names that it can guess from the text.
const commonJSNamespace = "commonjs-package"

func (f *files) plugin() api.Plugin {
	return api.Plugin{Name: "kit", Setup: func(b api.PluginBuild) {
		b.OnResolve(api.OnResolveOptions{Filter: `.*`}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			return f.resolve(b, a), nil
		})
		b.OnLoad(api.OnLoadOptions{Filter: `\.([cm]?[jt]sx?|json)$`, Namespace: "file"}, f.load)
		b.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: commonJSNamespace}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			text := "module.exports = require(" + quote(a.Path) + ")"
			return api.OnLoadResult{Contents: &text, Loader: api.LoaderJS, ResolveDir: filepath.Dir(a.Path)}, nil
		})
	}}
}

// asked marks resolve requests of this plugin, which it must not handle itself.
type asked struct{}

// resolve handles packages; an empty result lets esbuild resolve the path and report what is missing.
func (f *files) resolve(b api.PluginBuild, a api.OnResolveArgs) api.OnResolveResult {
	var nothing api.OnResolveResult
	if _, ours := a.PluginData.(asked); ours || a.Kind == api.ResolveEntryPoint {
		return nothing
	}
	if a.Namespace == commonJSNamespace {
		return api.OnResolveResult{Path: a.Path, External: true}
	}
	if strings.HasPrefix(a.Path, "node:") {
		return nothing
	}
	if relative(a.Path) && !strings.HasSuffix(a.Path, ".node") {
		return nothing
	}
	r := b.Resolve(a.Path, api.ResolveOptions{
		Importer: a.Importer, Namespace: a.Namespace, ResolveDir: a.ResolveDir, Kind: a.Kind, With: a.With, PluginData: asked{},
	})
	if len(r.Errors) > 0 || r.External || r.Namespace != "file" || !runsAsIs(r.Path) {
		return nothing
	}
	required := a.Kind == api.ResolveJSRequireCall || a.Kind == api.ResolveJSRequireResolve
	switch {
	case required:
		f.mark(&f.require)
		return api.OnResolveResult{Path: r.Path, External: true}
	case a.Kind == api.ResolveJSImportStatement && isCommonJS(r.Path):
		f.mark(&f.require)
		return api.OnResolveResult{Path: r.Path, Namespace: commonJSNamespace}
	}
	return api.OnResolveResult{Path: fileURL(r.Path), External: true}
}

func relative(path string) bool {
	return path == "." || path == ".." || strings.HasPrefix(path, "./") || strings.HasPrefix(path, "../") || strings.HasPrefix(path, "/")
}

// runsAsIs reports whether the file is part of an installed package, or native code, in a language that Node runs.
func runsAsIs(path string) bool {
	switch filepath.Ext(path) {
	case ".node":
		return true
	case ".js", ".cjs", ".mjs", "":
		return strings.Contains(filepath.ToSlash(path), "/node_modules/")
	}
	return false
}

// isCommonJS follows Node: the extension decides, else the nearest package.json.
func isCommonJS(path string) bool {
	switch filepath.Ext(path) {
	case ".mjs":
		return false
	case ".cjs", ".node":
		return true
	}
	for dir := filepath.Dir(path); filepath.Base(dir) != "node_modules"; dir = filepath.Dir(dir) {
		if text, err := os.ReadFile(filepath.Join(dir, "package.json")); err == nil {
			return packageType(text) != "module"
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return true
}

// load reads one of the user's files and adds its prefix.
func (f *files) load(a api.OnLoadArgs) (api.OnLoadResult, error) {
	text, err := os.ReadFile(a.Path)
	if err != nil {
		return api.OnLoadResult{}, nil //nolint:nilerr // esbuild tries, and has the better message
	}
	if len(text) > f.largest {
		f.mark(&f.tooLarge)
		return api.OnLoadResult{}, ErrLarge
	}
	if strings.HasSuffix(a.Path, ".json") {
		return api.OnLoadResult{}, nil
	}
	has := func(word string) bool { return bytes.Contains(text, []byte(word)) }
	prefix := f.prefix(a.Path, has)
	if prefix != "" {
		text = withoutFirst(text)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prefixes[a.Path] = len(prefix)
	f.require = f.require || has("require")
	f.module = f.module || has("module") || has("exports")
	f.threads = f.threads || has("worker_threads")
	f.forks = f.forks || has("child_process")
	f.cluster = f.cluster || has("node:cluster") || has(`"cluster"`) || has("'cluster'")
	if has("worker_threads") || has("fork") || has("execPath") {
		f.started = append(f.started, startedFiles(filepath.Dir(a.Path), text)...)
	}
	contents := prefix + string(text)
	return api.OnLoadResult{Contents: &contents, Loader: api.LoaderDefault, ResolveDir: filepath.Dir(a.Path)}, nil
}

// prefix declares those variables of perFile that the file uses, on its own first line so that no line moves.
func (f *files) prefix(path string, has func(word string) bool) string {
	var declared []string
	declare := func(name, value string) { declared = append(declared, name+"="+value) }
	if has("__dirname") || has("import.meta") {
		declare("__kit_dirname", quote(filepath.Dir(path)))
	}
	if has("__filename") || has("import.meta") {
		declare("__kit_filename", quote(path))
	}
	if has("import.meta") {
		declare("__kit_url", quote(fileURL(path)))
	}
	if has("require.main") {
		main := "{}"
		if path == f.entry {
			main = "module"
		}
		declare("__kit_main", main)
	}
	if len(declared) == 0 {
		return ""
	}
	return "var " + strings.Join(declared, ",") + ";"
}

// withoutFirst removes what may only be at the beginning of a file: a byte order mark, a #! line.
func withoutFirst(text []byte) []byte {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if bytes.HasPrefix(text, []byte("#!")) {
		return append([]byte("//"), text[2:]...)
	}
	return text
}

// correct subtracts the prefix from a position in a file's first line.
func (f *files) correct(dir string, l *api.Location) {
	if l == nil || l.Line != 1 || l.Namespace != "file" && l.Namespace != "" {
		return
	}
	f.mu.Lock()
	n := f.prefixes[within(dir, l.File)]
	f.mu.Unlock()
	if n > 0 && len(l.LineText) >= n {
		l.LineText, l.Column = l.LineText[n:], max(0, l.Column-n)
	}
}

func (f *files) mark(flag *bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*flag = true
}

// quote writes a JavaScript string: JSON's escapes mean the same there. (Go's quoting has others.)
func quote(s string) string {
	text, _ := json.Marshal(s) // no string fails
	return string(text)
}

func fileURL(path string) string { return "file://" + urlEscape(filepath.ToSlash(path)) }

func urlEscape(path string) string { return (&url.URL{Path: path}).EscapedPath() }

package golang

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// modulesDir is the module cache below a layer, and modulesAt the one in a sandbox.
	modulesDir = "modules"
	modulesAt  = language.ToolDir + "/go-modules"
	// sourceDir is the directory of the program's module files in the installing sandbox, below /workspace.
	sourceDir = "src"
	// resolvedDir is the module cache of the command that chooses versions. It has modules that the program does not need.
	resolvedDir = sandbox.WorkspaceDir + "/resolved"
	listFile    = "modules.json"

	workspaceFile = "go.work"
)

// listScript lists the modules of the layer, and removes from it what changes with time or is not read again: the answers of the checksum
// database, and the archives, which lie beside the modules unpacked.
const listScript = `"$0" mod download -json >` + sandbox.WorkspaceDir + "/" + listFile + ` &&
cd ` + language.LayerDir + "/" + modulesDir + `/cache && rm -rf download/sumdb && find download -name '*.zip' -exec rm -f {} +`

// moduleFiles are the names of the files that say which modules a program needs.
var moduleFiles = []string{"go.mod", "go.sum", workspaceFile, "go.work.sum"}

const maxModuleFile = 4 << 20

// manifest is what a program says about its modules.
type manifest struct {
	files    map[string]string // the module files, by path
	root     string            // directory of the module of the program
	requires []goModule        // by that module, or by those of the workspace
	imports  []string          // of packages in required modules
	vendored bool
}

// packages describes the installation of the modules that a program declares. The go command chooses versions and downloads modules; it
// executes nothing of them.
func packages(j *language.Job) (*language.Packages, error) {
	o := &j.Request.Options
	if o.Lock != "" {
		return lockedPackages(j)
	}
	deps, err := parseModules(o.Deps)
	if err != nil {
		return nil, err
	}
	d, err := readManifest(j, deps)
	if err != nil {
		return nil, err
	}
	switch workspace := d.files[workspaceFile] != ""; {
	case len(deps) > 0 && d.vendored:
		return nil, sandbox.Invalid("deps", "%q: the project has a vendor directory; add the module there", o.Deps[0])
	case len(deps) > 0 && workspace:
		return nil, sandbox.Invalid("deps", "%q: the project is a workspace (go.work); add the module to the go.mod that needs it", o.Deps[0])
	case d.vendored || len(deps) == 0 && len(d.requires) == 0:
		return nil, nil
	}
	requirements := d.requirements()
	for _, m := range deps {
		requirements = append(requirements, strings.TrimSuffix(m.id(), "@latest"))
	}
	return describe(j, d, deps, requirements), nil
}

// lockedPackages describes the installation of the modules of a lock.
func lockedPackages(j *language.Job) (*language.Packages, error) {
	o := &j.Request.Options
	lock, err := language.ParseLock(o.Lock)
	if err != nil {
		return nil, err
	}
	if lock.Language != j.Language.Name {
		return nil, sandbox.Invalid("lock", "it is a lock of %s, and the program is in %s", lock.Language, j.Language.Title)
	}
	for name := range lock.Files {
		if err := language.CheckName("lock", name); err != nil {
			return nil, err
		}
		if !slices.Contains(moduleFiles, path.Base(name)) {
			return nil, sandbox.Invalid("lock", "it has a file %q, which is none of %s", name, strings.Join(moduleFiles, ", "))
		}
	}
	deps, err := parseModules(o.Deps)
	if err != nil {
		return nil, err
	}
	d, err := readManifest(j, nil)
	if err != nil {
		return nil, err
	}
	if d.vendored {
		return nil, sandbox.Invalid("lock", "the project has a vendor directory, and needs no lock")
	}
	asked := d.requirements()
	for _, m := range deps {
		asked = append(asked, strings.TrimSuffix(m.id(), "@latest"))
	}
	if err := lock.Covers(asked); err != nil {
		return nil, err
	}
	workspace := d.files[workspaceFile]
	if d.files = lock.Files; workspace != "" {
		d.files[workspaceFile] = workspace
	}
	if !d.readRequires() {
		return nil, sandbox.Invalid("lock", "it has no %s", path.Join(d.root, "go.mod"))
	}
	if m := d.unlocked(); m != "" {
		return nil, sandbox.Invalid("lock", "it has no digest of %s", m)
	}
	return describe(j, d, nil, lock.Requires), nil
}

// describe makes the description of an installation.
func describe(j *language.Job, d *manifest, deps []goModule, requirements []string) *language.Packages {
	slices.Sort(requirements)
	p := &language.Packages{
		Registry: "go", Requirements: slices.Compact(requirements), Locked: len(deps) == 0 && d.unlocked() == "",
		Locks: []string{sourceDir, listFile}, ReadLock: readModules,
		Env: map[string]string{
			"GOPROXY": language.Index, "GOSUMDB": language.Checksums, "GOVCS": "*:off", "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local",
			"GOENV": "off", "CGO_ENABLED": "0", "GOCACHE": sandbox.TmpDir + "/go-build", "GOPATH": sandbox.TmpDir + "/go",
			"GOMODCACHE": path.Join(language.LayerDir, modulesDir),
		},
		Files: []sandbox.File{noTelemetry},
	}
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		p.Files = append(p.Files, sandbox.File{Path: path.Join(sandbox.WorkspaceDir, sourceDir, name), Data: []byte(d.files[name])})
	}
	workdir := path.Join(sandbox.WorkspaceDir, sourceDir, d.root)
	download := language.Step{Args: []string{j.Tool.Path, "mod", "download"}, Workdir: workdir}
	if resolve := slices.Concat([]string{j.Tool.Path, "get"}, d.queries(deps)); len(resolve) > 2 && !p.Locked {
		if len(d.imports) > 0 {
			p.Files = append(p.Files, sandbox.File{Path: path.Join(workdir, "imports.go"), Data: d.importingFile()})
		}
		p.Steps = append(p.Steps, language.Step{Args: resolve, Workdir: workdir, Env: map[string]string{"GOMODCACHE": resolvedDir}})
		download.Env = map[string]string{"GOPROXY": "file://" + resolvedDir + "/cache/download," + language.Index}
	}
	p.Steps = append(p.Steps, download, language.Step{
		Args: []string{"/bin/sh", "-c", listScript, j.Tool.Path}, Workdir: workdir, Offline: true,
		Env: map[string]string{"GOPROXY": "off", "GOSUMDB": "off"},
	})
	return p
}

// queries are the arguments of go get.
func (d *manifest) queries(deps []goModule) (all []string) {
	for _, m := range deps {
		all = append(all, m.id())
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(d.imports) > 0 {
		all = append(all, ".")
	}
	return all
}

// importingFile is a source that imports what the program imports of its modules, and has nothing else: go get finds the modules that these
// packages need. Programs that differ in the rest share a layer.
func (d *manifest) importingFile() []byte {
	var text strings.Builder
	text.WriteString("package imports\n\nimport (\n")
	for _, i := range d.imports {
		text.WriteString("\t_ " + strconv.Quote(i) + "\n")
	}
	text.WriteString(")\n")
	return []byte(text.String())
}

// requirements are the modules that the program's own files require directly.
func (d *manifest) requirements() (all []string) {
	for _, m := range d.requires {
		if !m.indirect {
			all = append(all, m.id())
		}
	}
	return all
}

// unlocked returns a required module whose digests are in none of the files; "" if all have them.
func (d *manifest) unlocked() string {
	have := map[string]bool{}
	for name, text := range d.files {
		if strings.HasSuffix(name, ".sum") {
			for line := range strings.Lines(text) {
				if f := strings.Fields(line); len(f) == 3 && strings.HasPrefix(f[2], "h1:") {
					have[f[0]+"@"+f[1]] = true
				}
			}
		}
	}
	for _, m := range d.requires {
		// A module that only decides on versions has the digest of its go.mod.
		if !have[m.id()+"/go.mod"] || !m.indirect && !have[m.id()] {
			return m.id()
		}
	}
	return ""
}

// readManifest reads the module files of a program. A program without go.mod has one if it needs modules.
func readManifest(j *language.Job, deps []goModule) (*manifest, error) {
	k := *j // its files are those of the plan
	if len(k.Files) == 1 {
		if err := readSingleGo(&k); err != nil {
			return nil, err
		}
	}
	d := &manifest{files: map[string]string{}, root: "."}
	var modules []string
	for _, f := range k.Files {
		base, dir := path.Base(f.Path), path.Dir(f.Path)
		if !slices.Contains(moduleFiles, base) || !isPackageDir(dir) {
			continue
		}
		text, err := f.Head(maxModuleFile + 1)
		if err != nil {
			return nil, err
		}
		if len(text) > maxModuleFile {
			return nil, sandbox.Invalid("files", "%s: it is larger than %d bytes", f.Path, maxModuleFile)
		}
		if d.files[f.Path] = string(text); base == "go.mod" {
			modules = append(modules, dir)
		}
	}
	if d.files[workspaceFile] == "" && len(modules) > 0 {
		dir := k.Entry
		if strings.HasSuffix(dir, ".go") {
			dir = path.Dir(dir)
		}
		if d.root = moduleOf(k.Files, dir); d.root == "" {
			if d.root = modules[0]; len(modules) > 1 {
				return nil, sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry "+sandbox.ShellQuote(modules[0]),
					"which of the modules is installed? There is a go.mod in each of %s", strings.Join(modules, ", "))
			}
		}
	}
	d.vendored = language.Find(k.Files, path.Join(d.root, "vendor/modules.txt")) != nil
	if !d.readRequires() && len(deps) > 0 {
		d.files["go.mod"] = playModule(j)
	}
	if d.files[workspaceFile] == "" {
		return d, d.readImports(k.Files, deps)
	}
	return d, nil
}

// playModule is the go.mod of a program that has none, as the Go playground calls it.
func playModule(j *language.Job) string {
	return "module play.ground\n\ngo " + languageVersion(j.Tool.Version) + "\n"
}

// readRequires reads what the program's module requires, or the modules of its workspace, and reports whether there is one.
func (d *manifest) readRequires() (found bool) {
	d.requires = nil
	seen := map[string]bool{} // modules that are not to be installed, or that d.requires has
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		dir := path.Dir(name)
		if path.Base(name) != "go.mod" || d.files[workspaceFile] == "" && dir != d.root {
			continue
		}
		found = true
		d.requires = append(d.requires, readGoMod(d.files[name])...)
		seen[modulePath([]language.File{{Path: name, Data: []byte(d.files[name])}}, dir)] = true
	}
	d.requires = slices.DeleteFunc(d.requires, func(m goModule) bool {
		again := seen[m.path] // a replaced version comes after its replacement
		seen[m.path] = true
		return again
	})
	return found
}

// maxImport bounds the path of a package that is looked for in modules.
const maxImport = 1000

// readImports finds the packages of required modules that the program imports. The package at the top of an asked module is asked for
// already.
func (d *manifest) readImports(files []language.File, deps []goModule) error {
	required, tops, seen := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range slices.Concat(deps, d.requires) {
		required[m.path] = true
	}
	for _, m := range deps {
		tops[m.path] = true
	}
	// inModule reports whether a required module has a package.
	inModule := func(name string) bool {
		for len(name) <= maxImport && name != "." && name != "/" && !required[name] {
			name = path.Dir(name)
		}
		return required[name]
	}
	for _, f := range files {
		dir := path.Dir(f.Path)
		if path.Ext(f.Path) != ".go" || !isPackageDir(dir) {
			continue
		}
		if m := moduleOf(files, dir); m != "" && m != d.root {
			continue
		}
		src, err := f.Content()
		if err != nil {
			return err
		}
		for _, i := range importsOf(src) {
			if !tops[i] && inModule(i) {
				seen[i] = true
			}
		}
	}
	d.imports = slices.Sorted(maps.Keys(seen))
	return nil
}

func parseModules(texts []string) (all []goModule, err error) {
	for _, text := range texts {
		m, err := parseModule(text)
		if err != nil {
			return nil, sandbox.Invalid("deps", "%w", err)
		}
		all = append(all, m)
	}
	return all, nil
}

// parseModule reads MODULE or MODULE@VERSION.
func parseModule(text string) (goModule, error) {
	wrong := func(why string) (goModule, error) {
		return goModule{}, fmt.Errorf("%.100q %s; write it like github.com/google/uuid@v1.6.0", text, why)
	}
	name, version, versioned := strings.Cut(strings.TrimSpace(text), "@")
	if !versioned {
		version = "latest"
	}
	m := goModule{path: name, version: version}
	first, _, _ := strings.Cut(name, "/")
	switch {
	case strings.HasPrefix(name, "-"):
		return wrong("is an option, and registries.yaml names the registries")
	case strings.Contains(name, "://"):
		return wrong("is an address")
	case !m.valid() && (&goModule{path: name, version: "latest"}).valid():
		return wrong("has a wrong version")
	case !m.valid() || !strings.Contains(first, ".") || strings.Contains("/"+name+"/", "/./") || strings.Contains(name, "..."):
		return wrong("is not the path of a module")
	case version != "latest" && !isVersion(version):
		return wrong("has a version that is none; branches and commits are not looked up")
	}
	return m, nil
}

// isVersion reports whether a text is a version, or the first parts of one: v1, v1.6, v1.6.0, v2.0.0-rc.1+incompatible.
func isVersion(text string) bool {
	rest, ok := strings.CutPrefix(text, "v")
	if end := strings.IndexAny(rest, "-+"); end >= 0 {
		rest = rest[:end]
	}
	parts := strings.Split(rest, ".")
	return ok && len(parts) <= 3 && !slices.ContainsFunc(parts, func(p string) bool { return p == "" || strings.Trim(p, "0123456789") != "" })
}

// readModules reads the go command's list of a layer's modules.
func readModules(files map[string][]byte) (*language.Lock, error) {
	lock := &language.Lock{Files: map[string]string{}}
	for name, text := range files {
		rest, ok := strings.CutPrefix(name, sourceDir+"/")
		if base := path.Base(rest); ok && base != workspaceFile && slices.Contains(moduleFiles, base) {
			lock.Files[rest] = string(text)
		}
	}
	for list := json.NewDecoder(bytes.NewReader(files[listFile])); ; {
		var m struct{ Path, Version, Sum string }
		err := list.Decode(&m)
		if errors.Is(err, io.EOF) {
			return lock, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the list of modules: %w", err)
		}
		if one := (goModule{path: m.Path, version: m.Version}); !one.valid() || !strings.HasPrefix(m.Sum, "h1:") {
			return nil, fmt.Errorf("the list of modules: %.100q has a wrong name, version or digest", one.id())
		}
		lock.Packages = append(lock.Packages, language.Package{Name: m.Path, Version: m.Version, Hash: m.Sum})
	}
}

// useLayer gives the program the module files with which its modules were installed.
func useLayer(j *language.Job) {
	if j.Layer == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(j.Layer.Lock.Files)) {
		text := []byte(j.Layer.Lock.Files[name])
		if f := language.Find(j.Files, name); f != nil {
			f.Open, f.Data = nil, text
		} else {
			j.Files = append(j.Files, language.File{Path: name, Data: text})
		}
	}
}

// layerModules returns the modules of a layer.
func layerModules(l *language.Layer) (all []goModule) {
	for _, p := range l.Lock.Packages {
		if m := (goModule{path: p.Name, version: p.Version}); m.valid() {
			m.dir = filepath.Join(l.Dir, modulesDir, filepath.FromSlash(escapeModule(m.path)+"@"+escapeModule(m.version)))
			all = append(all, m)
		}
	}
	return all
}

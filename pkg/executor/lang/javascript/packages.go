package javascript

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	lockFile   = "package-lock.json"
	modulesDir = "node_modules"
	// modulesAt is where sandboxes show a layer: Node looks there last, from every directory.
	modulesAt = "/" + modulesDir
	// installedFile is npm's own list of what it has installed. npm writes it with the registry's address, which must not be in a layer.
	installedFile = "installed.json"
	// publicRegistry begins the addresses of archives in most locks. It stands for the registry of the configuration, as it does for npm.
	publicRegistry = "https://registry.npmjs.org/"
)

// listScript copies npm's list of what it has installed, and moveScript moves the packages into the layer, without that list.
const (
	listScript = `const fs = require("fs"), [modules, list] = process.argv.slice(1), from = modules + "/.package-lock.json";
fs.existsSync(from) ? fs.copyFileSync(from, list) : fs.writeFileSync(list, "{}");`
	moveScript = `const fs = require("fs"), [layer, modules] = process.argv.slice(1);
fs.mkdirSync(layer);
fs.rmSync(modules + "/.package-lock.json", { force: true });
fs.existsSync(modules) ? fs.renameSync(modules, layer + "/" + modules) : fs.mkdirSync(layer + "/" + modules);`
)

// Packages describes the installation of what a program declares, with npm, for JavaScript and TypeScript.
func Packages(j *language.Job) (*language.Packages, error) {
	o := &j.Request.Options
	d := &declared{test: o.Test, by: map[string]string{}}
	var err error
	if o.Lock != "" {
		err = d.readLock(o.Lock)
	} else {
		err = d.readProgram(j)
	}
	if err != nil || !d.any() {
		return nil, err
	}
	npm := j.Tool.Programs["npm"]
	if npm == "" {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "npm",
			"a Node with npm beside it, first on PATH: apt install npm, or nvm install --lts",
			"packages are installed with npm, and there is none beside %s", j.Tool.Found)
	}
	if !isAtLeast(j, [2]int{16, 0}) {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "npm", "Node 16 or newer",
			"npm of Node %s writes no locks of its packages' digests", j.Tool.Version)
	}
	manifest, err := json.Marshal(&d.manifest)
	if err != nil {
		return nil, err
	}
	p := &language.Packages{Registry: "npm", Requirements: d.requirements(), Locked: d.lock != nil && d.lock.exact && !d.added}
	p.Files = []sandbox.File{{Path: path.Join(sandbox.WorkspaceDir, packageFile), Data: manifest}}
	command := "install"
	if d.lock != nil {
		p.Filled = []string{path.Join(sandbox.WorkspaceDir, lockFile)}
		p.Files = append(p.Files, sandbox.File{Path: p.Filled[0], Data: d.lock.text})
		if !d.added {
			command = "ci"
		}
	}
	call := func(command string, more ...string) []string {
		// What npm says of a success is for people at a shell; its errors are on the other stream.
		args := []string{"/bin/sh", "-c", `exec "$@" >/dev/null`, "npm", j.Tool.Path, npm, command,
			"--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--loglevel=error", "--logs-max=0",
			"--userconfig=/dev/null", "--globalconfig=" + sandbox.TmpDir + "/npmrc", "--cache=" + sandbox.TmpDir + "/npm"}
		return append(args, more...)
	}
	// npm prepares a package of a git repository with a second npm, which takes the repository's own .npmrc: no repositories.
	install := call(command, "--ignore-scripts", "--git=/bin/false", "--registry="+language.Index, "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000")
	if !o.Test {
		install = append(install, "--omit=dev")
	}
	list := []string{j.Tool.Path, "-e", listScript, modulesDir, installedFile}
	p.Steps = append(p.Steps, language.Step{Args: install}, language.Step{Args: list, Offline: true})
	if o.AllowInstallScripts {
		p.Steps = append(p.Steps, language.Step{Args: call("rebuild"), Offline: true, Foreign: true, Env: map[string]string{
			"PATH":               path.Dir(j.Tool.Path) + ":" + sandbox.SearchPath,
			"npm_config_nodedir": path.Dir(path.Dir(j.Tool.Path)), // with the headers of addons
		}})
	}
	move := []string{j.Tool.Path, "-e", moveScript, language.LayerDir, modulesDir}
	p.Steps = append(p.Steps, language.Step{Args: move, Offline: true})
	p.Locks = []string{lockFile, installedFile}
	p.ReadLock = func(files map[string][]byte) (*language.Lock, error) {
		text := files[lockFile]
		if command == "ci" {
			text = d.lock.original
		}
		return readInstalled(files[installedFile], text, manifest)
	}
	return p, nil
}

// ShowPackages shows a layer, and lets the program's npm: specifiers name its packages.
func ShowPackages(j *language.Job) error {
	if j.Layer == nil {
		return nil
	}
	j.Mount(path.Join(j.Layer.Dir, modulesDir), modulesAt)
	return plainImports(j)
}

// manifest has the fields of a package.json with packages.
type manifest struct {
	Private      bool                       `json:"private"`
	Dependencies map[string]string          `json:"dependencies,omitempty"`
	Dev          map[string]string          `json:"devDependencies,omitempty"`
	Optional     map[string]string          `json:"optionalDependencies,omitempty"`
	Peer         map[string]string          `json:"peerDependencies,omitempty"`
	PeerMeta     map[string]json.RawMessage `json:"peerDependenciesMeta,omitempty"`
	Overrides    map[string]any             `json:"overrides,omitempty"`
	Workspaces   any                        `json:"workspaces,omitempty"`
}

// declared is what is to be installed.
type declared struct {
	manifest
	test  bool              // the devDependencies are needed, too
	by    map[string]string // where a package is declared, beside package.json: for errors
	lock  *lock             // nil: none
	added bool              // packages of which the lock does not know
}

func (d *declared) any() bool {
	return len(d.Dependencies)+len(d.Dev)+len(d.Optional)+len(d.Peer) > 0
}

// requirements lists the packages for people.
func (d *declared) requirements() (all []string) {
	groups := []map[string]string{d.Dependencies, d.Optional, d.Peer}
	if d.test {
		groups = append(groups, d.Dev)
	}
	for _, group := range groups {
		for name, wanted := range group {
			if wanted == anyVersion {
				all = append(all, name)
			} else {
				all = append(all, name+"@"+wanted)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// readProgram reads what --deps and, if that is asked for, the program declare.
func (d *declared) readProgram(j *language.Job) error {
	o := &j.Request.Options
	if o.Install {
		if err := d.readProject(j); err != nil {
			return err
		}
	}
	for _, text := range o.Deps {
		p, err := parseSpec(text)
		if err == nil {
			err = d.add(p, "--deps")
		}
		if err != nil {
			return sandbox.Invalid("deps", "%w", err)
		}
	}
	if o.Install {
		return d.addImports(j)
	}
	return nil
}

// add adds a package. One without a version has that of its other declaration.
func (d *declared) add(p spec, by string) error {
	groups := []map[string]string{d.Dependencies, d.Optional, d.Peer}
	if d.test {
		groups = append(groups, d.Dev)
	}
	i := slices.IndexFunc(groups, func(g map[string]string) bool { return g[p.name] != "" })
	switch {
	case i < 0:
	case groups[i][p.name] == anyVersion && d.by[p.name] != "": // added without a version
	case p.wanted == "" || p.wanted == groups[i][p.name]:
		return nil
	default:
		return fmt.Errorf("%s@%s contradicts %s@%s of %s; leave one of them out", p.name, p.wanted, p.name, groups[i][p.name],
			cmp.Or(d.by[p.name], packageFile))
	}
	if d.Dependencies == nil {
		d.Dependencies = map[string]string{}
	}
	d.Dependencies[p.name], d.by[p.name], d.added = cmp.Or(p.wanted, anyVersion), by, true
	return nil
}

// readProject reads package.json and its lock.
func (d *declared) readProject(j *language.Job) error {
	f := language.Find(j.Files, packageFile)
	if f == nil {
		return nil
	}
	text, err := f.Head(maxManifest)
	if err != nil {
		return err
	}
	if err := d.parse(text); err != nil {
		return sandbox.Invalid("files", "%s: %w", packageFile, err)
	}
	for _, name := range []string{"npm-shrinkwrap.json", lockFile} {
		if f := language.Find(j.Files, name); f != nil {
			text, err := f.Head(maxLockFile)
			if err != nil {
				return err
			}
			if d.lock, err = parseLock(text); err != nil {
				return sandbox.Invalid("files", "%s: %w", name, err)
			}
			return nil
		}
	}
	if !d.test {
		d.Dev = nil
	}
	return nil
}

const (
	// maxManifest and maxLockFile bound the files of a project.
	maxManifest = 1 << 20
	maxLockFile = 32 << 20
)

// readLock reads a lock of sandbox-run.
func (d *declared) readLock(text string) error {
	l, err := language.ParseLock(text)
	if err != nil {
		return err
	}
	if l.Files[lockFile] == "" || l.Files[packageFile] == "" {
		return sandbox.Invalid("lock", "it is a lock of %.100q, and not of npm", l.Language)
	}
	if err := d.parse([]byte(l.Files[packageFile])); err != nil {
		return sandbox.Invalid("lock", "%s: %w", packageFile, err)
	}
	if d.lock, err = parseLock([]byte(l.Files[lockFile])); err != nil {
		return sandbox.Invalid("lock", "%s: %w", lockFile, err)
	}
	return nil
}

// parse reads a package.json, and refuses packages that are not of a registry.
func (d *declared) parse(text []byte) error {
	if err := json.Unmarshal(bytes.TrimPrefix(text, []byte("\ufeff")), &d.manifest); err != nil {
		return err
	}
	if d.Workspaces != nil {
		return errors.New("workspaces are not installed; run one of them as a project of its own")
	}
	d.Private = true
	for group, packages := range map[string]map[string]string{
		"dependencies": d.Dependencies, "devDependencies": d.Dev, "optionalDependencies": d.Optional, "peerDependencies": d.Peer,
	} {
		for _, name := range slices.Sorted(maps.Keys(packages)) {
			err := checkName(name)
			if err == nil {
				packages[name], err = checkDeclared(packages[name])
			}
			if err != nil {
				return fmt.Errorf("%s: %.100q: %w", group, name, err)
			}
		}
	}
	if err := checkOverrides(d.Overrides, 0); err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	return nil
}

// checkDeclared checks the version of a package in package.json, which may also be a package of another name: npm:NAME@VERSION.
func checkDeclared(wanted string) (string, error) {
	if wanted = strings.TrimSpace(wanted); wanted == "" {
		return "*", nil
	}
	if other, alias := strings.CutPrefix(wanted, importScheme); alias {
		_, err := parseSpec(other)
		return wanted, err
	}
	return wanted, checkWanted(wanted)
}

// maxOverrides is how deep overrides may be nested.
const maxOverrides = 16

func checkOverrides(all map[string]any, depth int) error {
	for name, value := range all {
		var err error
		switch value := value.(type) {
		case string:
			if !strings.HasPrefix(value, "$") { // the version of that dependency
				_, err = checkDeclared(value)
			}
		case map[string]any:
			if err = errors.New("it is nested too deeply"); depth < maxOverrides {
				err = checkOverrides(value, depth+1)
			}
		default:
			err = errors.New("it is no version")
		}
		if err != nil {
			return fmt.Errorf("%.100q: %w", name, err)
		}
	}
	return nil
}

// spec is a package with the versions that are wanted: a range or a tag; "" without.
type spec struct{ name, wanted string }

// anyVersion is the tag that npm installs without a version.
const anyVersion = "latest"

// parseSpec reads NAME, NAME@RANGE or NAME@TAG; the name may have a scope: @SCOPE/NAME.
func parseSpec(text string) (p spec, err error) {
	text = strings.TrimSpace(text)
	at := strings.IndexByte(strings.TrimPrefix(text, "@"), '@')
	if strings.HasPrefix(text, "@") && at >= 0 {
		at++
	}
	p.name = text
	if at >= 0 {
		p.name, p.wanted = text[:at], strings.TrimSpace(text[at+1:])
		err = checkWanted(p.wanted)
	}
	if strings.Contains(text, ":") || strings.Count(text, "/") > 1 {
		err = errAddress
	}
	if err == nil {
		err = checkName(p.name)
	}
	if err != nil {
		return spec{}, fmt.Errorf("%.100q %w; write it like lodash@4.17.21 or @scope/name", text, err)
	}
	return p, nil
}

var (
	errAddress = errors.New("names an address, a file or another package; packages come from the registry, by their own names")
	errName    = errors.New("is not the name of a package")
	errVersion = errors.New("has a wrong version")
)

// maxName is the longest name that registries accept.
const maxName = 214

func checkName(name string) error {
	scope, own, scoped := strings.Cut(strings.TrimPrefix(name, "@"), "/")
	if !strings.HasPrefix(name, "@") {
		own = name
	} else if !scoped || !isNamePart(scope) {
		return errName
	}
	if !isNamePart(own) || len(name) > maxName || own == modulesDir || own == "favicon.ico" {
		return errName
	}
	return nil
}

func isNamePart(s string) bool {
	return s != "" && s[0] != '.' && s[0] != '_' && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return r >= 0x80 || !isWord(byte(r)) && !strings.ContainsRune("-.~", r) || r == '$'
	})
}

// checkWanted checks a range of versions or a tag. What npm would take for a path, an address or a repository is refused.
func checkWanted(wanted string) error {
	lower := strings.ToLower(wanted)
	switch {
	case strings.ContainsAny(wanted, `:/\`), strings.HasPrefix(wanted, "."),
		strings.HasSuffix(lower, ".tgz"), strings.HasSuffix(lower, ".tar"), strings.HasSuffix(lower, ".tar.gz"):
		return errAddress
	case wanted == "", len(wanted) > maxName, strings.ContainsFunc(wanted, func(r rune) bool {
		return r >= 0x80 || r == '$' || !isWord(byte(r)) && !strings.ContainsRune(" .-+*^~<>=|", r)
	}):
		return errVersion
	}
	return nil
}

// lock is a package-lock.json.
type lock struct {
	original []byte
	text     []byte // with the addresses that the installing sandbox reaches
	exact    bool   // it has the digest of every package
}

// entry is a package of a lock.
type entry struct {
	Name      string `json:"name"` // if its directory has another one
	Version   string `json:"version"`
	Resolved  string `json:"resolved"`
	Integrity string `json:"integrity"`
}

// inside returns the address in the installing sandbox of an archive.
func inside(address string) string {
	if at, public := strings.CutPrefix(address, publicRegistry); public {
		return language.Index + at
	}
	scheme, rest, _ := strings.Cut(address, "://")
	host, at, _ := strings.Cut(rest, "/")
	return language.Registry + "/" + scheme + "/" + strings.Replace(host, ":", "~", 1) + "/" + at
}

// parseLock reads a lock of npm 7 or newer.
func parseLock(text []byte) (*lock, error) {
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff"))))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	plain, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	for _, placeholder := range []string{language.Registry, language.Index, language.Checksums} {
		if bytes.Contains(plain, []byte(placeholder)) {
			return nil, fmt.Errorf("it contains %s, which stands for the registry in sandboxes", placeholder)
		}
	}
	packages, _ := doc["packages"].(map[string]any)
	if packages == nil {
		return nil, errors.New("it is of an old form, without packages; npm 7 or newer writes the form of today: npm install --package-lock-only")
	}
	delete(doc, "dependencies") // for npm 6
	l := &lock{original: text, exact: true}
	for dir, value := range packages {
		if dir == "" {
			continue // the project itself
		}
		e, _ := value.(map[string]any)
		resolved, _ := e["resolved"].(string)
		switch {
		case e == nil || !fs.ValidPath(dir) || e["link"] == true || !strings.HasPrefix(dir, modulesDir+"/"),
			resolved != "" && !strings.HasPrefix(resolved, "https://") && !strings.HasPrefix(resolved, "http://"):
			return nil, fmt.Errorf("%.100q is not of the registry; packages come from there only", dir)
		}
		if integrity, _ := e["integrity"].(string); digestOf(integrity) == "" && e["inBundle"] != true {
			l.exact = false
		}
		if resolved != "" {
			e["resolved"] = inside(resolved)
		}
	}
	l.text, err = json.Marshal(doc)
	return l, err
}

// digestOf returns the strongest digest of an integrity (SHA512-BASE64 …) as ALGORITHM:HEX, or "".
func digestOf(integrity string) string {
	for _, algorithm := range []string{"sha512", "sha384", "sha256", "sha1"} {
		for part := range strings.FieldsSeq(integrity) {
			text, ok := strings.CutPrefix(part, algorithm+"-")
			text, _, _ = strings.Cut(text, "?")
			if sum, err := base64.StdEncoding.DecodeString(text); ok && err == nil && len(sum) > 0 {
				return algorithm + ":" + hex.EncodeToString(sum)
			}
		}
	}
	return ""
}

// readInstalled makes the lock of a layer from npm's list of what it has installed, and from its lock.
func readInstalled(installed, lockText, manifest []byte) (*language.Lock, error) {
	var has, locked struct {
		Packages map[string]entry `json:"packages"`
	}
	if err := json.Unmarshal(installed, &has); err != nil {
		return nil, fmt.Errorf("npm's list of packages: %w", err)
	}
	if err := json.Unmarshal(lockText, &locked); err != nil {
		return nil, fmt.Errorf("npm's lock: %w", err)
	}
	l := &language.Lock{Packages: []language.Package{}, Files: map[string]string{packageFile: string(manifest), lockFile: string(lockText)}}
	for dir, e := range has.Packages {
		if e.Version == "" {
			return nil, fmt.Errorf("npm's list of packages: %.100q has no version", dir)
		}
		of := locked.Packages[dir]
		l.Packages = append(l.Packages, language.Package{
			Name: cmp.Or(e.Name, of.Name, nameOf(dir)), Version: e.Version,
			Hash: digestOf(cmp.Or(of.Integrity, e.Integrity)), URL: cmp.Or(e.Resolved, of.Resolved),
		})
	}
	return l, nil
}

// nameOf returns the name of a package by its directory: node_modules/a/node_modules/@b/c.
func nameOf(dir string) string {
	const above = "/" + modulesDir + "/"
	if i := strings.LastIndex("/"+dir, above); i >= 0 {
		return ("/" + dir)[i+len(above):]
	}
	return dir
}

// HasPackage reports whether the layer of a job has a package.
func HasPackage(j *language.Job, name string) bool {
	return j.Layer != nil && j.Layer.Lock != nil &&
		slices.ContainsFunc(j.Layer.Lock.Packages, func(p language.Package) bool { return p.Name == name })
}

// InLayer returns the path in the sandbox of a file of the layer, by its path that begins with node_modules.
func InLayer(name string) string { return "/" + name }

package rust

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	cargoLock = "Cargo.lock"
	cargoHome = sandbox.HomeDir + "/.cargo"

	layerConfigFile = cargoHome + "/layer.toml"
	// cratesDir is the directory of crates below a layer, and cratesAt the one in a sandbox.
	cratesDir = "crates"
	cratesAt  = language.ToolDir + "/" + cratesDir
	// sourceDir is the directory of the program's manifests in the installing sandbox, below /workspace.
	sourceDir = "src"

	// registryConfig and layerConfig lead cargo to the registry, and to the layer. Locks name crates.io with both.
	registryConfig = "[source.crates-io]\nreplace-with = \"registry\"\n\n[source.registry]\nregistry = \"sparse+" + language.Index + "\"\n"
	layerConfig    = "[source.crates-io]\nreplace-with = \"layer\"\n\n[source.layer]\ndirectory = \"" + cratesAt + "\"\n"
)

// maxManifest bounds a manifest, or a lock.
const maxManifest = 4 << 20

// project is a program as cargo builds it.
type project struct {
	files map[string]string // manifests and the lock, by path
	stubs []string          // sources that cargo looks for; their content does not matter
	dir   string            // of the package of the program
	root  string            // of its lock
	made  bool              // the program has no manifest of its own
}

// packages describes the installation of the crates that a program declares: by cargo vendor, which executes nothing of them.
func packages(j *language.Job) (*language.Packages, error) {
	o := &j.Request.Options
	cargo := j.Tool.Programs["cargo"]
	if cargo == "" {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "rust", "rustup component add cargo",
			"crates are installed by cargo, and there is none beside %s", j.Tool.Path)
	}
	crates, err := parseCrates(o.Deps)
	if err != nil {
		return nil, err
	}
	own := &project{made: !manifests(j.Files), dir: ".", root: "."}
	if own.made && len(crates) == 0 && o.Lock == "" {
		return nil, nil
	}
	if err := own.read(j); err != nil {
		return nil, err
	}
	manifest := path.Join(own.dir, cargoToml)
	declared := own.files[manifest]
	if own.made {
		edition, err := editionOf(o)
		if err != nil {
			return nil, err
		}
		own.files[manifest] = "[package]\nname = \"main\"\nversion = \"0.0.0\"\nedition = \"" + edition + "\"\nautobins = false\n"
		own.stubs = []string{"src/lib.rs"}
	}
	p := &language.Packages{Registry: "crates", ReadLock: readCargoLock}
	p.Locks = []string{path.Join(sourceDir, own.root, cargoLock)}
	if o.Lock != "" {
		if p.Requirements, err = own.useLock(j, crates); err != nil {
			return nil, err
		}
	} else {
		p.Requirements = own.requirements()
		for _, c := range crates {
			if declaresCrate(own.files[manifest], c.name) {
				return nil, sandbox.Invalid("deps", "%q: %s declares that crate already", c.String(), manifest)
			}
			own.files[manifest] += c.table()
			p.Requirements = append(p.Requirements, c.String())
		}
		if len(crates) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(own.files)), func(text string) bool {
			return strings.Contains(text, "dependencies")
		}) {
			return nil, nil
		}
	}
	if own.files[manifest] != declared {
		p.Locks = append(p.Locks, path.Join(sourceDir, manifest))
	}
	slices.Sort(p.Requirements)
	p.Requirements = slices.Compact(p.Requirements)
	p.Locked = own.files[path.Join(own.root, cargoLock)] != "" && (len(crates) == 0 || o.Lock != "")
	for _, s := range own.stubs {
		own.files[s] = ""
	}
	for _, name := range slices.Sorted(maps.Keys(own.files)) {
		p.Files = append(p.Files, sandbox.File{Path: path.Join(sandbox.WorkspaceDir, sourceDir, name), Data: []byte(own.files[name])})
	}
	target := path.Join(language.LayerDir, cratesDir)
	p.Filled = []string{cargoHome + "/config.toml"}
	p.Files = append(p.Files, sandbox.File{Path: p.Filled[0], Data: []byte(registryConfig)},
		sandbox.File{Path: target + "/.keep", Data: []byte{}}) // cargo makes no directory for a project without crates
	p.Env = map[string]string{
		"CARGO_HOME": cargoHome, "CARGO_TERM_COLOR": "never", "CARGO_NET_RETRY": "2", "RUSTC": j.Tool.Path,
		"CARGO_HTTP_MULTIPLEXING": "false", // the network refuses requests to upgrade to HTTP/2
	}
	maps.Copy(p.Env, j.Tool.Env)
	vendor := []string{cargo, "vendor", "--quiet", "--versioned-dirs", "--respect-source-config"}
	if p.Locked {
		vendor = append(vendor, "--locked")
	}
	p.Steps = []language.Step{{Args: append(vendor, target), Workdir: path.Join(sandbox.WorkspaceDir, sourceDir, own.dir)}}
	return p, nil
}

// read reads the manifests and the lock of a project.
func (p *project) read(j *language.Job) (err error) {
	p.files = map[string]string{}
	if p.made {
		return nil
	}
	if p.dir, err = packageDir(j); err != nil {
		return err
	}
	all := ""
	for _, f := range j.Files {
		if path.Base(f.Path) != cargoToml || vendored(f.Path) {
			continue
		}
		text, err := f.Head(maxManifest + 1)
		if err != nil {
			return err
		}
		if len(text) > maxManifest {
			return sandbox.Invalid("files", "%s: it is larger than %d bytes", f.Path, maxManifest)
		}
		p.files[f.Path] = string(text)
		all += string(text)
	}
	p.root = p.dir
	for dir := p.dir; ; dir = path.Dir(dir) {
		if strings.Contains("\n"+p.files[path.Join(dir, cargoToml)], "\n[workspace") {
			p.root = dir
			break
		}
		if dir == "." {
			break
		}
	}
	if lock := language.Find(j.Files, path.Join(p.root, cargoLock)); lock != nil {
		text, err := lock.Head(maxManifest + 1)
		if err != nil {
			return err
		}
		if len(text) > maxManifest {
			return sandbox.Invalid("files", "%s: it is larger than %d bytes", lock.Path, maxManifest)
		}
		p.files[lock.Path] = string(text)
	}
	named := map[string]bool{} // the names of sources in the manifests
	for part := range strings.FieldsFuncSeq(all, func(r rune) bool { return strings.ContainsRune("/\"'\n", r) }) {
		named[part] = true
	}
	for _, f := range j.Files {
		base, dir := path.Base(f.Path), path.Base(path.Dir(f.Path))
		if path.Ext(base) == ".rs" && !vendored(f.Path) && (base == "main.rs" || base == "lib.rs" || named[base] ||
			slices.Contains([]string{"bin", "examples", "tests", "benches"}, dir)) {
			p.stubs = append(p.stubs, f.Path)
		}
	}
	return nil
}

// useLock replaces files of the project by those of the request's lock, and returns what the lock was made for.
func (p *project) useLock(j *language.Job, crates []crate) (requires []string, err error) {
	o := &j.Request.Options
	lock, err := language.ParseLock(o.Lock)
	if err != nil {
		return nil, err
	}
	if lock.Language != j.Language.Name {
		return nil, sandbox.Invalid("lock", "it is a lock of %s, and the program is in %s", lock.Language, j.Language.Title)
	}
	const another = "remove the lock, and the next run writes another"
	manifest, locked := path.Join(p.dir, cargoToml), path.Join(p.root, cargoLock)
	if lock.Files[locked] == "" || p.made && lock.Files[manifest] == "" {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "lock", another, "it is of another project: it has no %s, or no %s", locked, manifest)
	}
	var asked []string
	for _, c := range crates {
		asked = append(asked, c.String())
	}
	if err := lock.Covers(asked); err != nil {
		return nil, err
	}
	p.files[locked] = lock.Files[locked]
	if text := lock.Files[manifest]; text != "" {
		own := p.files[manifest]
		if p.made && o.Edition == "" {
			own, _, _ = strings.Cut(own, "edition")
		}
		if !strings.HasPrefix(text, own) {
			return nil, sandbox.Errorf(sandbox.ErrInvalid, "lock", another, "it was made for another %s, or another edition", manifest)
		}
		p.files[manifest] = text
	}
	return lock.Requires, nil
}

// requirements are the crates that manifests declare, as far as one line each says so; cargo reads the rest.
func (p *project) requirements() (all []string) {
	for name, text := range p.files {
		if path.Base(name) != cargoToml {
			continue
		}
		for k := range manifestKeys(text) {
			if !strings.HasSuffix(k.section, "dependencies") || !isCrateName(k.key) {
				continue
			}
			if version := language.TOMLString(k.value); version != "" {
				k.key += "@" + version
			}
			all = append(all, k.key)
		}
	}
	return all
}

// declaresCrate reports whether a manifest has a dependency of that name, which a second table would contradict.
func declaresCrate(manifest, name string) bool {
	for k := range manifestKeys(manifest) {
		first, _, _ := strings.Cut(k.key, ".")
		if k.section == "dependencies."+name || k.section == "dependencies" && strings.Trim(first, `"'`) == name {
			return true
		}
	}
	return false
}

// manifestKey is a line of a manifest; key is "" in the header of a section.
type manifestKey struct{ section, key, value string }

// manifestKeys returns the lines of a manifest that have a key or a header.
func manifestKeys(text string) iter.Seq[manifestKey] {
	return func(yield func(manifestKey) bool) {
		section := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			key, value, ok := strings.Cut(line, "=")
			switch {
			case strings.HasPrefix(line, "#"):
				continue
			case strings.HasPrefix(line, "["):
				header, _, _ := strings.Cut(strings.Trim(line, "["), "]")
				section, key, value = strings.Join(strings.Fields(header), ""), "", ""
			case !ok:
				continue
			}
			if !yield(manifestKey{section, strings.TrimSpace(key), value}) {
				return
			}
		}
	}
}

// crate is an entry of --deps: NAME, NAME@REQUIREMENT or NAME[FEATURE,…]@REQUIREMENT.
type crate struct {
	name, requirement string
	features          []string
}

func (c *crate) String() string {
	text := c.name
	if len(c.features) > 0 {
		text += "[" + strings.Join(c.features, ",") + "]"
	}
	if c.requirement != "*" {
		text += "@" + c.requirement
	}
	return text
}

// table is the crate's part of a manifest.
func (c *crate) table() string {
	text := "\n[dependencies." + c.name + "]\nversion = " + strconv.Quote(c.requirement) + "\n"
	if len(c.features) > 0 {
		text += "features = [\"" + strings.Join(c.features, `", "`) + "\"]\n"
	}
	return text
}

func parseCrates(texts []string) (all []crate, err error) {
	seen := map[string]bool{}
	for _, text := range texts {
		c, err := parseCrate(text)
		if err == nil && seen[c.name] {
			err = fmt.Errorf("%.100q is there twice", c.name)
		}
		if err != nil {
			return nil, sandbox.Invalid("deps", "%w", err)
		}
		seen[c.name] = true
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b crate) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

func parseCrate(text string) (crate, error) {
	wrong := func(why string) (crate, error) {
		return crate{}, fmt.Errorf("%.100q %s; write it like serde[derive]@1.0", text, why)
	}
	rest, requirement, versioned := strings.Cut(strings.Join(strings.Fields(text), ""), "@")
	name, features, featured := strings.Cut(rest, "[")
	c := crate{name: name, requirement: "*"}
	switch {
	case strings.Contains(text, "://"):
		return wrong("names an address; crates come from the registry only")
	case !isCrateName(name):
		return wrong("is not the name of a crate")
	}
	if featured {
		list, ok := strings.CutSuffix(features, "]")
		if c.features = strings.Split(list, ","); !ok || slices.ContainsFunc(c.features, func(f string) bool { return !isWordOf(f, "_-+.") }) {
			return wrong("has wrong features")
		}
		slices.Sort(c.features)
		c.features = slices.Compact(c.features)
	}
	if versioned {
		for part := range strings.SplitSeq(requirement, ",") {
			version := strings.TrimLeft(part, "<>=^~")
			if op := part[:len(part)-len(version)]; !slices.Contains([]string{"", "=", "^", "~", "<", "<=", ">", ">="}, op) ||
				!isWordOf(version, "_-+.*") || !strings.ContainsRune("0123456789*", rune(version[0])) {
				return wrong("has a wrong version")
			}
		}
		c.requirement = requirement
	}
	return c, nil
}

// isCrateName reports whether crates.io could have a crate of that name.
func isCrateName(s string) bool {
	return len(s) <= 64 && isWordOf(s, "_-") && strings.Trim(s[:1], "0123456789_-") != ""
}

// isWordOf reports whether a text has only letters and digits of ASCII, and some further characters; not an empty one.
func isWordOf(s, further string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(further, r))
	})
}

// readCargoLock reads the lock of an installation.
func readCargoLock(files map[string][]byte) (*language.Lock, error) {
	lock := &language.Lock{Files: map[string]string{}}
	text := ""
	for name, content := range files {
		rest := strings.TrimPrefix(name, sourceDir+"/")
		if lock.Files[rest] = string(content); path.Base(rest) == cargoLock {
			text = string(content)
		}
	}
	if text == "" {
		return nil, errors.New("cargo has left no lock")
	}
	var p language.Package
	add := func(source string) error {
		switch {
		case source == "": // of the program itself
			return nil
		case !isCrateName(p.Name) || !isWordOf(p.Version, "-+.") || p.Hash != "" && (len(p.Hash) != 64 || !isWordOf(p.Hash, "")):
			return fmt.Errorf("cargo's lock: %.100q has a wrong name, version or digest", p.Name+" "+p.Version)
		}
		if p.Hash != "" {
			p.Hash = "sha256:" + p.Hash
		}
		lock.Packages = append(lock.Packages, p)
		return nil
	}
	source, section := "", ""
	for line := range strings.Lines(text + "\n[]\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			if section == "[[package]]" {
				if err := add(source); err != nil {
					return nil, err
				}
			}
			section, source, p = line, "", language.Package{}
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		switch value = language.TOMLString(value); strings.TrimSpace(key) {
		case "name":
			p.Name = value
		case "version":
			p.Version = value
		case "source":
			source = value
		case "checksum":
			p.Hash = value
		}
	}
	return lock, nil
}

// useLayer gives the program the manifests and the lock with which its crates were installed. A program without a manifest becomes a
// project.
func useLayer(j *language.Job) (made bool, err error) {
	files := maps.Clone(j.Layer.Lock.Files)
	if made = !manifests(j.Files); made {
		entry, err := entryOf(j)
		if err != nil {
			return false, err
		}
		if !j.Request.Options.Test {
			if err := completeSnippet(j, entry); err != nil {
				return false, err
			}
		}
		j.Entry = entry
		files[cargoToml] += "\n[[bin]]\nname = \"main\"\npath = " + quoteTOML(entry) + "\n"
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := []byte(files[name])
		if f := language.Find(j.Files, name); f != nil {
			f.Open, f.Data = nil, text
		} else {
			j.Files = append(j.Files, language.File{Path: name, Data: text})
		}
	}
	j.Mount(path.Join(j.Layer.Dir, cratesDir), cratesAt)
	j.Plan.Files = append(j.Plan.Files, sandbox.File{Path: layerConfigFile, Data: []byte(layerConfig)})
	return made, nil
}

// quoteTOML quotes a string for TOML.
func quoteTOML(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < ' ' || r == '"' || r == '\\' || r == 0x7f {
			fmt.Fprintf(&b, `\u%04X`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

package build

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/sandbox-run/sandbox-run/images"
	"github.com/sandbox-run/sandbox-run/internal/yamlite"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Repository is what the images' names begin with.
const Repository = "sandbox-run/"

// Definition is what an image is made of:
//
//	title: Python 3                # for people
//	description: CPython …
//	from: [python]                 # other images whose packages, languages and variables are in this one, too
//	languages: [python]            # that programs in it may be written in
//	debian: [python3]              # packages
//	alpine: [python3]
//	alpine_path: [/usr/lib/x/bin]  # where Alpine has programs that Debian has on the PATH
//	exclude: [/usr/lib/jvm/*/jmods/*]  # files of Debian's packages that are not unpacked, programs do without; * matches slashes, too
//	remove: [/usr/lib/*/tests]     # the same, but removed when all is installed: scripts of packages want to see them; * does not match slashes
//	env: {MPLBACKEND: Agg}         # besides PATH and LANG
//	cmd: [python3]                 # what is run where nothing else is asked for
//
// From is resolved by Lookup: what it returns has everything in place.
type Definition struct {
	Name        string            `json:"name"`
	Title       string            `json:"title"`
	Description string            `json:"description"`
	From        []string          `json:"from,omitempty"`
	Languages   []string          `json:"languages"`
	Debian      []string          `json:"debian"`
	Alpine      []string          `json:"alpine"`
	AlpinePath  []string          `json:"alpine_path,omitempty"`
	Exclude     []string          `json:"exclude,omitempty"`
	Remove      []string          `json:"remove,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Cmd         []string          `json:"cmd"`
}

// Reference is the name of the image in a store.
func (d *Definition) Reference() string { return Repository + d.Name + ":latest" }

// ErrUnknown is what Lookup wraps when there is no definition of that name.
var ErrUnknown = errors.New("no such image definition")

// definitions are all that there are, read at first use: other commands do not pay for it.
var definitions = sync.OnceValues(func() (map[string]*Definition, error) { return load(images.Files) })

// Names lists what can be built.
func Names() []string {
	all, err := definitions()
	if err != nil {
		panic(err) // they are part of the executable, and a test reads them
	}
	return slices.Sorted(maps.Keys(all))
}

// Lookup finds a definition by its name, "python" or "sandbox-run/python", with everything that From brings. The caller may change it.
func Lookup(name string) (*Definition, error) {
	all, err := definitions()
	if err != nil {
		return nil, err
	}
	short := strings.TrimSuffix(strings.TrimPrefix(name, Repository), ":latest")
	d, ok := all[short]
	if !ok {
		return nil, sandbox.Invalid("image build", "%w: %q; there are: %s", ErrUnknown, name, strings.Join(Names(), ", "))
	}
	c := *d
	c.Languages, c.Debian, c.Alpine = slices.Clone(d.Languages), slices.Clone(d.Debian), slices.Clone(d.Alpine)
	c.AlpinePath, c.Exclude, c.Remove = slices.Clone(d.AlpinePath), slices.Clone(d.Exclude), slices.Clone(d.Remove)
	c.From, c.Cmd, c.Env = slices.Clone(d.From), slices.Clone(d.Cmd), maps.Clone(d.Env)
	return &c, nil
}

// load reads all definitions of a directory and resolves what they are from.
func load(dir fs.FS) (map[string]*Definition, error) {
	files, err := fs.Glob(dir, "*.yaml")
	if err != nil {
		return nil, err
	}
	raw := map[string]*Definition{}
	for _, file := range files {
		text, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(file, ".yaml")
		d, err := parse(name, text)
		if err != nil {
			return nil, fmt.Errorf("images/%s: %w", file, err)
		}
		raw[name] = d
	}
	all := map[string]*Definition{}
	for name := range raw {
		d := &Definition{}
		if err := gather(raw, name, nil, d); err != nil {
			return nil, fmt.Errorf("images/%s.yaml: %w", name, err)
		}
		own := raw[name]
		d.Name, d.Title, d.Description, d.From, d.Cmd = name, own.Title, own.Description, own.From, own.Cmd
		all[name] = d
	}
	return all, nil
}

// gather adds what name has to d, after what it is from.
func gather(raw map[string]*Definition, name string, path []string, d *Definition) error {
	own, ok := raw[name]
	if !ok {
		return fmt.Errorf("from: there is no %q", name)
	}
	if slices.Contains(path, name) {
		return fmt.Errorf("from: %s leads back to %s", strings.Join(path, ", "), name)
	}
	for _, from := range own.From {
		if err := gather(raw, from, append(path, name), d); err != nil {
			return err
		}
	}
	d.Languages = join(d.Languages, own.Languages)
	d.Debian = join(d.Debian, own.Debian)
	d.Alpine = join(d.Alpine, own.Alpine)
	d.Exclude = join(d.Exclude, own.Exclude)
	d.Remove = join(d.Remove, own.Remove)
	d.AlpinePath = join(d.AlpinePath, own.AlpinePath)
	if d.Env == nil && own.Env != nil {
		d.Env = map[string]string{}
	}
	maps.Copy(d.Env, own.Env)
	return nil
}

func join(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// What may stand in a definition: it ends up in arguments, and in shell commands of Dockerfiles.
var (
	imageName     = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	packageName   = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,99}$`)
	variable      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	directoryName = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+)+$`)
	pattern       = regexp.MustCompile(`^(/[A-Za-z0-9_.*-]+)+$`)
	word          = regexp.MustCompile(`^[A-Za-z0-9_./=:,+-]+$`)
	sentence      = regexp.MustCompile(`^[A-Za-z0-9 _./,+-]+$`)
)

// parse reads one definition.
func parse(name string, source []byte) (*Definition, error) {
	if !imageName.MatchString(name) {
		return nil, fmt.Errorf("%q is no name of an image: small letters, digits and dashes", name)
	}
	doc, err := yamlite.Decode(source)
	if err != nil {
		return nil, err
	}
	m, ok := doc.(yamlite.Map)
	if !ok {
		return nil, fmt.Errorf("%s where a mapping belongs", yamlite.Kind(doc))
	}
	d := &Definition{Name: name}
	settings := map[string]setter{
		"title": text(&d.Title, sentence), "description": text(&d.Description, sentence),
		"from": list(&d.From, imageName), "languages": list(&d.Languages, imageName),
		"debian": list(&d.Debian, packageName), "alpine": list(&d.Alpine, packageName), "alpine_path": list(&d.AlpinePath, directoryName),
		"exclude": list(&d.Exclude, pattern), "remove": list(&d.Remove, pattern),
		"env": environment(&d.Env), "cmd": list(&d.Cmd, word),
	}
	for _, p := range m {
		set, err := settings[p.Key], errors.New("no such setting")
		if set != nil {
			err = set(p.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", p.Line, p.Key, err)
		}
	}
	for _, need := range []struct {
		what  string
		empty bool
	}{{"title", d.Title == ""}, {"description", d.Description == ""}, {"debian", len(d.Debian) == 0}, {"cmd", len(d.Cmd) == 0}} {
		if need.empty {
			return nil, fmt.Errorf("%s is missing", need.what)
		}
	}
	return d, nil
}

// setter stores the value of a setting, if it has the right form.
type setter func(v any) error

func text(to *string, form *regexp.Regexp) setter {
	return func(v any) error {
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("it is %s, and must be a text", yamlite.Kind(v))
		}
		if !form.MatchString(s) {
			return fmt.Errorf("%q is not of the form %s", s, form)
		}
		*to = s
		return nil
	}
}

func list(to *[]string, form *regexp.Regexp) setter {
	return func(v any) error {
		items, ok := v.([]any)
		if !ok {
			return fmt.Errorf("it is %s, and must be a list", yamlite.Kind(v))
		}
		*to = make([]string, len(items))
		for i, item := range items {
			if err := text(&(*to)[i], form)(item); err != nil {
				return err
			}
		}
		return nil
	}
}

func environment(to *map[string]string) setter {
	return func(v any) error {
		m, ok := v.(yamlite.Map)
		if !ok {
			return fmt.Errorf("it is %s, and must be a mapping", yamlite.Kind(v))
		}
		*to = map[string]string{}
		for _, p := range m {
			if !variable.MatchString(p.Key) || p.Key == "PATH" || p.Key == "LANG" {
				return fmt.Errorf("%q is no name of a variable, or not one to change", p.Key)
			}
			var s string
			if err := text(&s, word)(p.Value); err != nil {
				return fmt.Errorf("%s: %w", p.Key, err)
			}
			(*to)[p.Key] = s
		}
		return nil
	}
}

// dpkgOptions say which files are not installed.
func (d *Definition) dpkgOptions() []string {
	options := slices.Clone(excludes)
	for _, e := range d.Exclude {
		options = append(options, "path-exclude="+e)
	}
	return options
}

// environ is what the image's programs start with, sorted.
func (d *Definition) environ() []string {
	env := []string{"LANG=C.UTF-8", "PATH=" + searchPath}
	for k, v := range d.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

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

// Repository is the prefix of the images' names.
const Repository = "sandbox-run/"

// Definition describes an image:
//
//	title: Python 3                # shown to users
//	description: CPython …
//	from: [python]                 # other images whose packages, languages and variables this one contains
//	languages: [python]            # languages of the programs that the image can run
//	debian: [python3]              # packages
//	alpine: [python3]
//	alpine_path: [/usr/lib/x/bin]  # directories that only Alpine needs on PATH
//	exclude: [/usr/lib/jvm/*/jmods/*]  # files of Debian's packages that dpkg does not unpack; * matches slashes
//	remove: [/usr/lib/*/tests]     # files that are removed after the installation, whose scripts need them; * does not match slashes
//	env: {MPLBACKEND: Agg}         # besides PATH and LANG
//	cmd: [python3]                 # default command
//
// Lookup resolves From: its result contains the parts of the other definitions.
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

// ErrUnknown is wrapped by Lookup's error if no definition has the name.
var ErrUnknown = errors.New("no such image definition")

// definitions parses all definitions at first use, so that other commands do not pay for it.
var definitions = sync.OnceValues(func() (map[string]*Definition, error) { return load(images.Files) })

// Names returns the sorted names of all definitions.
func Names() []string {
	all, err := definitions()
	if err != nil {
		panic(err) // the definitions are embedded, and a test parses them
	}
	return slices.Sorted(maps.Keys(all))
}

// Lookup returns a copy of a definition by its name, "python" or "sandbox-run/python", with From resolved. The caller owns the copy.
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

// load reads all definitions of a directory and resolves their From.
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

// gather adds the definitions that name is from to d, and then name's own.
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

// Forms of the values in a definition. Values become arguments and parts of shell commands in Dockerfiles, so the forms allow no
// character that a shell interprets.
var (
	imageName     = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	packageName   = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,99}$`)
	variable      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	directoryName = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+)+$`)
	pattern       = regexp.MustCompile(`^(/[A-Za-z0-9_.*-]+)+$`)
	word          = regexp.MustCompile(`^[A-Za-z0-9_./=:,+-]+$`)
	sentence      = regexp.MustCompile(`^[A-Za-z0-9 _./,+-]+$`)
)

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

// setter checks the form of a setting's value and stores it.
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

// dpkgOptions returns the options that keep dpkg from unpacking excluded files.
func (d *Definition) dpkgOptions() []string {
	options := slices.Clone(excludes)
	for _, e := range d.Exclude {
		options = append(options, "path-exclude="+e)
	}
	return options
}

// environ returns the environment of the image's programs, sorted.
func (d *Definition) environ() []string {
	env := []string{"LANG=C.UTF-8", "PATH=" + searchPath}
	for k, v := range d.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

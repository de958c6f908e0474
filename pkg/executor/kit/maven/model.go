package maven

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/coordinate"
)

// reader reads the POMs of a repository, each once.
type reader struct {
	fetch *fetcher
	reads atomic.Int64

	mu   sync.Mutex
	poms map[coordinate.Coordinate]*kept
}

// kept is a POM that was read, or is being read.
type kept struct {
	once sync.Once
	pom  *pom
	err  error
}

// read returns a POM. The caller does not change it.
func (r *reader) read(ctx context.Context, c coordinate.Coordinate) (*pom, error) {
	if r.reads.Add(1) > maxReads {
		return nil, fmt.Errorf("its POMs lead to more than %d others", maxReads)
	}
	c.Classifier = ""
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("%s %w", c, err)
	}
	r.mu.Lock()
	k := r.poms[c]
	if k == nil {
		k = new(kept)
		r.poms[c] = k
	}
	r.mu.Unlock()
	k.once.Do(func() { k.pom, k.err = r.fetch.fetchPOM(ctx, c) })
	return k.pom, k.err
}

// model is a POM with what it inherits, and without properties.
type model struct {
	*pom         // its own
	properties   properties
	dependencies []dependency
	managed      map[key]*dependency
	imports      []dependency
	path         []coordinate.Coordinate // of the POMs that import this one, and its own
}

// key is what a POM manages, by type, or what there can be one of on a class path, by file extension.
type key struct{ group, artifact, kind, classifier string }

// key returns the key under which a POM manages a dependency.
func (d *dependency) key() key { return key{d.Group, d.Artifact, cmp.Or(d.Type, "jar"), d.Classifier} }

// file returns the key of the file that the type of a dependency stands for.
func (d *dependency) file() key {
	k := d.key()
	switch d.Type {
	case "bundle", "ejb", "maven-plugin", "eclipse-plugin":
		k.kind = "jar"
	case "test-jar":
		k.kind, k.classifier = "jar", cmp.Or(k.classifier, "tests")
	}
	return k
}

// model reads a POM and its parents. importing is the path of the POMs that import it.
func (r *reader) model(ctx context.Context, c coordinate.Coordinate, importing []coordinate.Coordinate) (*model, error) {
	if slices.Contains(importing, c) || len(importing) == maxDepth {
		return nil, fmt.Errorf("%s imports itself, or through more than %d POMs", c, maxDepth)
	}
	m := &model{properties: properties{}, managed: map[key]*dependency{}, path: append(slices.Clone(importing), c)}
	chain, err := r.chain(ctx, c)
	if err != nil {
		return nil, err
	}
	m.pom = chain[0]
	for _, p := range slices.Backward(chain) {
		maps.Copy(m.properties, p.Properties)
	}
	m.setProject(c)
	at := map[key]int{}
	for _, p := range chain {
		inherited := len(m.dependencies) // from here on; of repetitions in one POM the last counts
		for _, d := range p.Dependencies {
			d.replace(m.expand)
			switch i, found := at[d.key()]; {
			case !found:
				at[d.key()] = len(m.dependencies)
				m.dependencies = append(m.dependencies, d)
			case i >= inherited:
				m.dependencies[i] = d
			}
		}
		for _, d := range p.Managed {
			d.replace(m.expand)
			if d.Type == "pom" && d.Scope == "import" {
				m.imports = append(m.imports, d)
			} else if err := m.manage(d.key(), &d); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// setProject sets the properties that name the POM itself. The names without a prefix are old ones, and give way to the POM's properties.
func (m *model) setProject(c coordinate.Coordinate) {
	own := properties{"groupId": c.Group, "artifactId": c.Artifact, "version": c.Version}
	if p := m.Parent; p != nil {
		own["parent.groupId"], own["parent.artifactId"], own["parent.version"] = p.Group, p.Artifact, p.Version
	}
	for name, value := range own {
		m.properties["project."+name], m.properties["pom."+name] = value, value
		if _, found := m.properties[name]; !found {
			m.properties[name] = value
		}
	}
}

// chain returns a POM and its parents.
func (r *reader) chain(ctx context.Context, c coordinate.Coordinate) (chain []*pom, err error) {
	seen := []coordinate.Coordinate{c}
	for {
		p, err := r.read(ctx, c)
		if err != nil {
			return nil, err
		}
		if chain = append(chain, p); p.Parent == nil {
			return chain, nil
		}
		child := c
		c = coordinate.Coordinate{Group: p.Parent.Group, Artifact: p.Parent.Artifact, Version: p.Parent.Version}
		if slices.Contains(seen, c) || len(seen) == maxDepth {
			return nil, fmt.Errorf("its parents form a circle, or are more than %d, at %s, the parent of %s", maxDepth, c, child)
		}
		seen = append(seen, c)
	}
}

// manage adds an entry, unless there is one of the key.
func (m *model) manage(k key, d *dependency) error {
	if m.managed[k] == nil {
		m.managed[k] = d
	}
	if len(m.managed) > maxManaged {
		return fmt.Errorf("its POMs manage more than %d artifacts", maxManaged)
	}
	return nil
}

// importManagement adds what imported POMs manage. The POM's own entries, and those of its parents, go first.
func (r *reader) importManagement(ctx context.Context, m *model) error {
	imports := m.imports
	m.imports = nil
	for _, d := range imports {
		c := coordinate.Coordinate{Group: d.Group, Artifact: d.Artifact, Version: d.Version}
		imported, err := r.model(ctx, c, m.path)
		if err == nil {
			err = r.importManagement(ctx, imported)
		}
		if err != nil {
			return fmt.Errorf("it imports %s: %w", c, err)
		}
		for k, entry := range imported.managed {
			if err := m.manage(k, entry); err != nil {
				return err
			}
		}
	}
	return nil
}

// complete sets what a dependency leaves to the management.
func (m *model) complete(d *dependency) {
	managed := m.managed[d.key()]
	if managed == nil {
		return
	}
	d.Version = cmp.Or(d.Version, managed.Version)
	d.Scope = cmp.Or(d.Scope, managed.Scope)
	if len(d.Exclusions) == 0 {
		d.Exclusions = managed.Exclusions
	}
}

// The bounds of a text with properties in it.
const (
	maxExpanded   = 1000 // bytes
	maxExpansions = 100
)

var errExpansion = errors.New("too many properties")

// expand replaces the properties in a text. What is no property, or has too many in it, stays as it is, and is no name of an artifact then.
func (m *model) expand(text string) string {
	if !strings.Contains(text, "${") {
		return text
	}
	steps := 0
	out, err := m.expanded(text, &steps)
	if err != nil {
		return text
	}
	return out
}

func (m *model) expanded(text string, steps *int) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			out.WriteString(text)
			return out.String(), nil
		}
		out.WriteString(before)
		value, known := m.properties[name]
		if *steps++; *steps > maxExpansions {
			return "", errExpansion
		}
		if !known {
			value = "${" + name + "}"
		} else {
			var err error
			if value, err = m.expanded(value, steps); err != nil {
				return "", err
			}
		}
		out.WriteString(value)
		if out.Len() > maxExpanded {
			return "", errExpansion
		}
		text = after
	}
}

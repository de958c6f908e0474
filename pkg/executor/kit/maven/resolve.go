package maven

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/coordinate"
)

// node is an artifact on the way from the coordinates that were asked for.
type node struct {
	coordinate.Coordinate
	kind       string // jar, or pom
	exclusions []reference
	parent     *node   // nil: above the coordinates that were asked for
	below      []*node // that no nearer artifact replaces
	depth      int
	model      *model
}

func (n *node) key() key { return key{n.Group, n.Artifact, n.kind, n.Classifier} }

// resolve returns the jars of a class path, in Maven's order: each artifact before what it needs.
func resolve(ctx context.Context, f *fetcher, coordinates []string) ([]*jar, error) {
	top := new(node) // above the coordinates
	var level []*node
	for _, text := range coordinates {
		c, err := coordinate.Parse(text)
		if err != nil {
			return nil, err
		}
		level = append(level, &node{Coordinate: c, kind: "jar", parent: top})
	}
	r := &reader{fetch: f, poms: map[coordinate.Coordinate]*kept{}}
	taken := map[key]bool{}
	for len(level) > 0 {
		level = slices.DeleteFunc(level, func(n *node) bool { return !take(taken, n) })
		if len(level) > 0 && len(taken) > maxArtifacts {
			return nil, fmt.Errorf("more than %d artifacts are needed%s", maxArtifacts, level[0].needed())
		}
		if err := forEach(ctx, len(level), func(ctx context.Context, i int) error { return r.load(ctx, level[i]) }); err != nil {
			return nil, err
		}
		var next []*node
		for _, n := range level {
			if c := n.model.path[0]; c.Name() != n.Name() { // it was relocated
				n.Group, n.Artifact = c.Group, c.Artifact
				if !take(taken, n) {
					continue
				}
			}
			n.Version = n.model.path[0].Version
			n.parent.below = append(n.parent.below, n)
			below, err := n.dependencies(taken)
			if err != nil {
				return nil, fmt.Errorf("%s: %w%s", n.Coordinate, err, n.needed())
			}
			next = append(next, below...)
		}
		level = next
	}
	return top.jars(nil), nil
}

// jars appends the jars below a node.
func (n *node) jars(all []*jar) []*jar {
	for _, b := range n.below {
		if b.kind == "jar" {
			all = append(all, &jar{Coordinate: b.Coordinate, optional: b.model.Packaging == "pom", needed: b.needed()})
		}
		all = b.jars(all)
	}
	return all
}

// take reports whether no nearer artifact has the node's key, and takes the key.
func take(taken map[key]bool, n *node) bool {
	found := taken[n.key()]
	taken[n.key()] = true
	return !found
}

// load reads the POM of a node, or of the artifact to which it was relocated, and what its dependencies leave to the management.
func (r *reader) load(ctx context.Context, n *node) (err error) {
	c := n.Coordinate
	c.Classifier = ""
	for range maxDepth {
		if n.model, err = r.model(ctx, c, nil); err != nil {
			break
		}
		to := n.model.Relocation
		if to == nil {
			// A POM whose dependencies are all for tests needs no imports, and they are many.
			if slices.ContainsFunc(n.model.dependencies, func(d dependency) bool { return !d.ignored() }) {
				err = r.importManagement(ctx, n.model)
			}
			break
		}
		moved := reference{n.model.expand(to.Group), n.model.expand(to.Artifact), n.model.expand(to.Version)}
		if moved.Group != "" {
			c.Group = moved.Group
		}
		if moved.Artifact != "" {
			c.Artifact = moved.Artifact
		}
		if moved.Version != "" {
			c.Version = moved.Version
		}
		err = errors.New("it is relocated too often")
	}
	if err != nil {
		return fmt.Errorf("%s: %w%s", n.Coordinate, err, n.needed())
	}
	return nil
}

// ignored reports whether a dependency is not for the class path of those who depend on its artifact.
func (d *dependency) ignored() bool {
	return d.Optional == "true" || d.Scope == "test" || d.Scope == "provided" || d.Scope == "system"
}

// dependencies returns the nodes below a node, without those whose keys nearer artifacts have.
func (n *node) dependencies(taken map[key]bool) (below []*node, err error) {
	for _, d := range n.model.dependencies {
		if d.ignored() {
			continue
		}
		n.model.complete(&d)
		k := d.file()
		if d.ignored() || n.excludes(&d) || taken[k] || k.kind != "jar" && k.kind != "pom" {
			continue
		}
		b := &node{
			Coordinate: coordinate.Coordinate{Group: d.Group, Artifact: d.Artifact, Version: d.Version, Classifier: k.classifier},
			kind:       k.kind, exclusions: d.Exclusions, parent: n, depth: n.depth + 1,
		}
		if err := b.Check(); err != nil {
			return nil, fmt.Errorf("its dependency %.200s:%.200s %w", d.Group, d.Artifact, err)
		}
		if b.depth > maxDepth {
			return nil, fmt.Errorf("its dependency %s is more than %d steps away", b.Coordinate, maxDepth)
		}
		below = append(below, b)
	}
	return below, nil
}

// excludes reports whether the node, or one on the way to it, excludes a dependency.
func (n *node) excludes(d *dependency) bool {
	fits := func(pattern, name string) bool { return pattern == "*" || pattern == name }
	for ; n != nil; n = n.parent {
		for _, e := range n.exclusions {
			if fits(e.Group, d.Group) && fits(e.Artifact, d.Artifact) {
				return true
			}
		}
	}
	return false
}

// needed says for which artifacts a node is needed.
func (n *node) needed() string {
	text := ""
	for n = n.parent; n.parent != nil; n = n.parent {
		text += "\n  needed by " + n.String()
	}
	return text
}

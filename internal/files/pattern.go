package files

import (
	"path"
	"slices"
	"strings"
)

// glob is a set of patterns, split into their components. It is walked along with a tree: in every directory a few
// components are awaited, and where none is, nothing beneath can match.
type glob [][]string

// spot is a component that is awaited.
type spot struct{ pattern, at int }

// anything is what is awaited beneath something that has matched.
var anything = []spot{{-1, 0}}

const anyDepth = "**"

// add takes a pattern, relative to the top of the tree; the empty one matches the top itself.
func (g *glob) add(pattern string) {
	var parts []string
	if pattern != "" {
		parts = strings.Split(pattern, "/")
	}
	// Two in a row mean what one means; at the end there has to be something in their place.
	parts = slices.CompactFunc(parts, func(a, b string) bool { return a == anyDepth && b == anyDepth })
	if n := len(parts); n > 0 && parts[n-1] == anyDepth {
		parts = append(parts, "*")
	}
	*g = append(*g, parts)
}

// top is what is awaited in the top directory.
func (g glob) top() (spots []spot) {
	for i, p := range g {
		if len(p) == 0 {
			return anything
		}
		spots = g.await(spots, spot{i, 0})
	}
	return spots
}

// await adds a spot that is not there yet. They come in order, so that equal ones are close together.
func (g glob) await(spots []spot, s spot) []spot {
	if !slices.Contains(spots[max(0, len(spots)-3):], s) {
		spots = append(spots, s)
	}
	if g[s.pattern][s.at] == anyDepth {
		return g.await(spots, spot{s.pattern, s.at + 1})
	}
	return spots
}

// step says what is awaited in an entry, if it is a directory. matched: the entry itself is meant, and all beneath. named:
// some component spoke of it, and not only ** of everything.
func (g glob) step(from []spot, name string) (spots []spot, matched, named bool) {
	for _, s := range from {
		if s.pattern < 0 {
			return anything, true, true
		}
		p := g[s.pattern]
		if p[s.at] == anyDepth {
			spots = g.await(spots, s)
			continue
		}
		if ok, err := path.Match(p[s.at], name); err != nil || !ok {
			continue
		}
		if s.at+1 == len(p) {
			return anything, true, true
		}
		named = true
		spots = g.await(spots, spot{s.pattern, s.at + 1})
	}
	return spots, false, named
}

// only is the one name that can match here, if there is just one: the directory then need not be read.
func (g glob) only(spots []spot) (name string, ok bool) {
	for _, s := range spots {
		if s.pattern < 0 {
			return "", false
		}
		part := g[s.pattern][s.at]
		if strings.ContainsAny(part, `*?[\`) || name != "" && part != name {
			return "", false
		}
		name = part
	}
	return name, name != ""
}

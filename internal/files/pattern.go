package files

import (
	"path"
	"slices"
	"strings"
)

// glob is a set of patterns, split into their components. A walk of a tree follows it: every directory has a few
// components that its entries can match, and where there is none, nothing beneath can match.
type glob [][]string

// spot is a component that entries of the current directory can match.
type spot struct{ pattern, at int }

// anything matches every entry beneath an entry that has matched.
var anything = []spot{{-1, 0}}

const anyDepth = "**"

// add adds a pattern, relative to the top of the tree; the empty one matches the top itself.
func (g *glob) add(pattern string) {
	var parts []string
	if pattern != "" {
		parts = strings.Split(pattern, "/")
	}
	// Two ** in a row mean the same as one; at the end ** needs an entry to match.
	parts = slices.CompactFunc(parts, func(a, b string) bool { return a == anyDepth && b == anyDepth })
	if n := len(parts); n > 0 && parts[n-1] == anyDepth {
		parts = append(parts, "*")
	}
	*g = append(*g, parts)
}

// top returns the spots of the top directory.
func (g glob) top() (spots []spot) {
	for i, p := range g {
		if len(p) == 0 {
			return anything
		}
		spots = g.addSpot(spots, spot{i, 0})
	}
	return spots
}

// addSpot adds a spot that is not in the list yet. Spots are added in order, so that equal ones are close together.
func (g glob) addSpot(spots []spot, s spot) []spot {
	if !slices.Contains(spots[max(0, len(spots)-3):], s) {
		spots = append(spots, s)
	}
	if g[s.pattern][s.at] == anyDepth {
		return g.addSpot(spots, spot{s.pattern, s.at + 1})
	}
	return spots
}

// step returns the spots of an entry, if it is a directory. matched: the entry itself matches, and all beneath. named:
// a component other than ** matches it.
func (g glob) step(from []spot, name string) (spots []spot, matched, named bool) {
	for _, s := range from {
		if s.pattern < 0 {
			return anything, true, true
		}
		p := g[s.pattern]
		if p[s.at] == anyDepth {
			spots = g.addSpot(spots, s)
			continue
		}
		if ok, err := path.Match(p[s.at], name); err != nil || !ok {
			continue
		}
		if s.at+1 == len(p) {
			return anything, true, true
		}
		named = true
		spots = g.addSpot(spots, spot{s.pattern, s.at + 1})
	}
	return spots, false, named
}

// only returns the one name that can match here, if there is just one: the directory then need not be read.
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

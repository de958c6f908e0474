package yamlite

import "strings"

// flow reads [ ], { } or a scalar at an offset, across line breaks, and returns the value and the offset after it.
func (r *reader) flow(at, depth int) (any, int, error) {
	if depth+r.depth > maxDepth {
		return nil, 0, r.errorf(r.lineOf(at), "nested more than %d deep", maxDepth)
	}
	switch r.src[at] {
	case '"', '\'':
		return r.quoted(at)
	case '[':
		return r.flowList(at+1, depth)
	case '{':
		return r.flowMap(at+1, depth)
	}
	return r.flowPlain(at)
}

// skip returns the offset after spaces, line breaks and comments.
func (r *reader) skip(at int) int {
	for at < len(r.src) {
		switch c := r.src[at]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			at++
		case c == '#' && strings.IndexByte(" \t\n", r.src[at-1]) >= 0:
			for at < len(r.src) && r.src[at] != '\n' {
				at++
			}
		default:
			return at
		}
	}
	return at
}

func (r *reader) unclosed(at int, end string) error {
	return r.errorf(r.lineOf(min(at, len(r.src))), "%s is missing", end)
}

func (r *reader) flowList(at, depth int) (any, int, error) {
	list := []any{}
	for {
		at = r.skip(at)
		if at >= len(r.src) {
			return nil, 0, r.unclosed(at, "]")
		}
		if r.src[at] == ']' {
			return list, at + 1, nil
		}
		v, end, err := r.flow(at, depth+1)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, v)
		if at = r.skip(end); at < len(r.src) && r.src[at] == ':' {
			return nil, 0, r.errorf(r.lineOf(at), "a key in a list needs { } around it")
		}
		if at, err = r.comma(at, ']'); err != nil {
			return nil, 0, err
		}
	}
}

// comma returns the offset after a comma, or that of the closing bracket.
func (r *reader) comma(at int, closing byte) (int, error) {
	switch {
	case at < len(r.src) && r.src[at] == ',':
		return at + 1, nil
	case at < len(r.src) && r.src[at] == closing:
		return at, nil
	}
	return 0, r.unclosed(at, ", or "+string(closing))
}

func (r *reader) flowMap(at, depth int) (any, int, error) {
	object, seen := Map{}, map[string]bool{}
	for {
		at = r.skip(at)
		if at >= len(r.src) {
			return nil, 0, r.unclosed(at, "}")
		}
		if r.src[at] == '}' {
			return object, at + 1, nil
		}
		name, end, err := r.flowKey(at)
		if err != nil {
			return nil, 0, err
		}
		if seen[name] {
			return nil, 0, r.errorf(r.lineOf(at), "key %q is given twice", name)
		}
		seen[name] = true
		pair := Pair{Key: name, Line: r.lineOf(at) + 1}
		if at = r.skip(end); at < len(r.src) && r.src[at] == ':' {
			if at = r.skip(at + 1); at >= len(r.src) {
				return nil, 0, r.unclosed(at, "}")
			}
			if r.src[at] != ',' && r.src[at] != '}' {
				if pair.Value, at, err = r.flow(at, depth+1); err != nil {
					return nil, 0, err
				}
				at = r.skip(at)
			}
		}
		object = append(object, pair)
		if at, err = r.comma(at, '}'); err != nil {
			return nil, 0, err
		}
	}
}

func (r *reader) flowKey(at int) (string, int, error) {
	switch r.src[at] {
	case '"', '\'':
		return r.quoted(at)
	case '[', '{':
		return "", 0, r.errorf(r.lineOf(at), "a key must be a text")
	}
	text, end, err := r.flowText(at)
	if err == nil && text == "<<" {
		err = r.errorf(r.lineOf(at), "merge keys (<<) are not supported")
	}
	return text, end, err
}

func (r *reader) flowPlain(at int) (any, int, error) {
	text, end, err := r.flowText(at)
	if err != nil {
		return nil, 0, err
	}
	v, err := r.resolve(text, r.lineOf(at))
	return v, end, err
}

// flowText reads a plain scalar between brackets; it stays on its line.
func (r *reader) flowText(at int) (string, int, error) {
	if err := r.plainStart(r.lineOf(at), r.src[at:min(at+2, len(r.src))]); err != nil { // two characters: a lone % differs
		return "", 0, err
	}
	end := at
	for ; end < len(r.src); end++ {
		c := r.src[end]
		if strings.IndexByte(",[]{}\n", c) >= 0 ||
			c == ':' && (end+1 == len(r.src) || strings.IndexByte(" \t\n,[]{}", r.src[end+1]) >= 0) ||
			c == '#' && (r.src[end-1] == ' ' || r.src[end-1] == '\t') {
			break
		}
	}
	text := strings.TrimRight(r.src[at:end], " \t\r")
	if text == "" {
		return "", 0, r.errorf(r.lineOf(at), "a value is missing before %q", r.src[at:end+min(1, len(r.src)-end)])
	}
	return text, end, nil
}

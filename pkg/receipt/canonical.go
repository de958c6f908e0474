package receipt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// maxDepth bounds the nesting of documents; ours have about five levels.
const maxDepth = 200

// Canonical returns a JSON document in the form that is digested: names sorted, no white space, numbers as written. It refuses
// ambiguous documents, such as those with a duplicate name. The form is not JCS (RFC 8785), which rounds integers beyond 2^53: two
// different results would have one digest.
func Canonical(doc []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	out, err := canonical(d, nil, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more text after the JSON document")
	}
	return out, nil
}

func canonical(d *json.Decoder, out []byte, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return appendScalar(out, token)
	}
	if delim == '[' {
		out = append(out, '[')
		for first := true; d.More(); first = false {
			if !first {
				out = append(out, ',')
			}
			if out, err = canonical(d, out, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return append(out, ']'), err
	}
	members := map[string][]byte{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := name.(string) // the decoder returns only strings here
		if _, twice := members[key]; twice {
			return nil, fmt.Errorf("key %q is given twice", key)
		}
		if members[key], err = canonical(d, nil, depth+1); err != nil {
			return nil, err
		}
	}
	out = append(out, '{')
	for i, key := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendScalar(out, key); err != nil {
			return nil, err
		}
		out = append(append(out, ':'), members[key]...)
	}
	_, err = d.Token()
	return append(out, '}'), err
}

// appendScalar appends a value without members. It escapes only the characters that JSON requires.
func appendScalar(out []byte, v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return append(out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...), nil
}

package receipt

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// maxDepth bounds how deep documents may be nested; ours are some five levels deep.
const maxDepth = 200

// Canonical writes a JSON document in the one form that is digested: names sorted, no white space, numbers as they are. What two
// readers could read in two ways, such as a name that comes twice, is refused. It is not JCS (RFC 8785), which rounds integers beyond 2^53:
// two results that differ would have one digest.
func Canonical(doc []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	out, err := canonical(d, nil, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON document")
	}
	return out, nil
}

func canonical(d *json.Decoder, out []byte, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels deep", maxDepth)
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
		key, _ := name.(string) // the decoder takes nothing else there
		if _, twice := members[key]; twice {
			return nil, fmt.Errorf("the name %q comes twice", key)
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

// appendScalar writes what has no parts. Of text, only what JSON demands is escaped.
func appendScalar(out []byte, v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return append(out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...), nil
}

// Digest is the SHA-256 of bytes, as it stands in a statement.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// DigestJSON is the digest of a document's canonical form.
func DigestJSON(doc []byte) (string, error) {
	c, err := Canonical(doc)
	if err != nil {
		return "", err
	}
	return Digest(c), nil
}

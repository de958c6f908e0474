package yamlite

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// The values of a document are nil, bool, Number, string, []any and Map.

// Number is a number in JSON's notation, with all its digits.
type Number string

// MarshalJSON returns the digits unchanged.
func (n Number) MarshalJSON() ([]byte, error) { return []byte(n), nil }

// Map keeps the order of the document.
type Map []Pair

// Pair is one entry of a Map.
type Pair struct {
	Key   string
	Value any
	Line  int // line of the key, from 1
}

// Get returns the value of a key.
func (m Map) Get(key string) (any, bool) {
	for _, p := range m {
		if p.Key == key {
			return p.Value, true
		}
	}
	return nil, false
}

// MarshalJSON writes an object in the document's order.
func (m Map) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range m {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := marshal(p.Key)
		if err != nil {
			return nil, err
		}
		value, err := marshal(p.Value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshal does not escape <, > and &, so that diffs stay readable.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Kind returns the kind of a value, for messages.
func Kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "true or false"
	case Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	case Map:
		return "a mapping"
	}
	return fmt.Sprintf("%T", v)
}

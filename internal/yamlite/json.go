package yamlite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// decodeJSON reads tokens, to keep the order of keys and all digits of numbers, and to detect duplicate keys.
func decodeJSON(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := jsonValue(dec, 0)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more text after the JSON document")
	}
	return v, nil
}

func jsonValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Number:
		return Number(t), nil
	case json.Delim:
		if t == '[' {
			return jsonList(dec, depth)
		}
		return jsonObject(dec, depth)
	}
	return token, nil
}

func jsonList(dec *json.Decoder, depth int) (any, error) {
	list := []any{}
	for dec.More() {
		v, err := jsonValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := dec.Token()
	return list, err
}

func jsonObject(dec *json.Decoder, depth int) (any, error) {
	object, seen := Map{}, map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("a key must be a string, not %v", key)
		}
		if seen[name] {
			return nil, fmt.Errorf("key %q is given twice", name)
		}
		seen[name] = true
		v, err := jsonValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		object = append(object, Pair{Key: name, Value: v})
	}
	_, err := dec.Token()
	return object, err
}

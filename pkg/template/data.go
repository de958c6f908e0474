package template

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
)

// The data of a template is nil, bool, int, float64, yamlite.Number (a number that the other types would write with other digits), string,
// []any and map[string]any; no value has a method that reaches beyond it.

const maxDataDepth = 100

// toData turns a value that a caller or a YAML document gives into data of a template.
func toData(v any) (any, error) { return convert(v, 0) }

func convert(v any, depth int) (any, error) {
	if depth > maxDataDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxDataDepth)
	}
	switch v := v.(type) {
	case nil, bool, string, int:
		return v, nil
	case int64:
		return int(v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v is no number that a program could be given", v)
		}
		return v, nil
	case json.Number:
		return number(yamlite.Number(v)), nil
	case yamlite.Number:
		return number(v), nil
	case []string:
		return convertList(v, depth)
	case []any:
		return convertList(v, depth)
	case map[string]string:
		return convertMap(v, depth)
	case map[string]any:
		return convertMap(v, depth)
	case yamlite.Map:
		object := make(map[string]any, len(v))
		for _, p := range v {
			object[p.Key] = p.Value
		}
		return convertMap(object, depth)
	}
	return nil, fmt.Errorf("a %T is no data for a template: use strings, numbers, booleans, lists and maps", v)
}

func convertList[T any](list []T, depth int) (any, error) {
	out := make([]any, len(list))
	for i, item := range list {
		var err error
		if out[i], err = convert(item, depth+1); err != nil {
			return nil, fmt.Errorf("item %d: %w", i+1, err)
		}
	}
	return out, nil
}

func convertMap[T any](object map[string]T, depth int) (any, error) {
	out := make(map[string]any, len(object))
	for key, item := range object {
		var err error
		if out[key], err = convert(item, depth+1); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return out, nil
}

// number gives a number a type that {{if}} knows, unless the number would then be written with other digits.
func number(n yamlite.Number) any {
	if i, err := strconv.Atoi(string(n)); err == nil && strconv.Itoa(i) == string(n) {
		return i
	}
	if f, err := strconv.ParseFloat(string(n), 64); err == nil && formatFloat(f) == string(n) {
		return f
	}
	return n
}

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// asText is how a value is printed.
func asText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int:
		return strconv.Itoa(v), nil
	case float64:
		return formatFloat(v), nil
	case yamlite.Number:
		return string(v), nil
	}
	return "", fmt.Errorf("%s can not be printed as it is; json, join or range can", kindOf(v))
}

func asTexts(values []any) ([]string, error) {
	out := make([]string, len(values))
	for i, v := range values {
		var err error
		if out[i], err = asText(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func kindOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "a map"
	case int, float64:
		return "a number"
	}
	return yamlite.Kind(v)
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	case yamlite.Number:
		n, err := strconv.ParseFloat(string(v), 64)
		return n, err == nil
	}
	return 0, false
}

// asInt reads a whole number; a text of digits is one, too.
func asInt(v any) (int, error) {
	if text, err := asText(v); err == nil {
		if n, err := strconv.Atoi(text); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s where a whole number is needed", kindOf(v))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

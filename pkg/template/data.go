package template

import (
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strconv"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
)

// Data within a template is nil, bool, int64, float64, yamlite.Number (all its digits), string,
// []any and map[string]any; nothing has methods that a template could call.

// plain turns what a caller gives into data.
func plain(v any, depth int) (any, error) {
	if depth > 100 {
		return nil, fmt.Errorf("nested more than 100 deep")
	}
	switch v := v.(type) {
	case nil, bool, string, int64, yamlite.Number:
		return v, nil
	case int:
		return int64(v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v is no number that a program could be given", v)
		}
		return v, nil
	case json.Number:
		return yamlite.Number(v), nil
	case []string:
		list := make([]any, len(v))
		for i, s := range v {
			list[i] = s
		}
		return list, nil
	case []any:
		list := make([]any, len(v))
		for i := range v {
			item, err := plain(v[i], depth+1)
			if err != nil {
				return nil, fmt.Errorf("item %d: %w", i+1, err)
			}
			list[i] = item
		}
		return list, nil
	case yamlite.Map:
		object := make(map[string]any, len(v))
		for _, p := range v {
			item, err := plain(p.Value, depth+1)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.Key, err)
			}
			object[p.Key] = item
		}
		return object, nil
	case map[string]string:
		object := make(map[string]any, len(v))
		for key, s := range v {
			object[key] = s
		}
		return object, nil
	case map[string]any:
		object := make(map[string]any, len(v))
		for key := range v {
			item, err := plain(v[key], depth+1)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			object[key] = item
		}
		return object, nil
	}
	return nil, fmt.Errorf("a %T is no data for a template: use strings, numbers, booleans, lists and maps", v)
}

// asText is how a value is printed.
func asText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	case yamlite.Number:
		return string(v), nil
	}
	return "", fmt.Errorf("%s can not be printed as it is; json, join or range can", kindOf(v))
}

func kindOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "a map"
	case int64, float64:
		return "a number"
	}
	return yamlite.Kind(v)
}

// truth is what if, and, or and not go by: empty and zero are false.
func truth(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	n, _ := asFloat(v)
	return n != 0
}

func asFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case yamlite.Number:
		n, err := strconv.ParseFloat(string(v), 64)
		return n, err == nil
	}
	return 0, false
}

func asInt(v any) (int, error) {
	switch v := v.(type) {
	case int64:
		return int(v), nil
	case yamlite.Number:
		if n, err := strconv.Atoi(string(v)); err == nil {
			return n, nil
		}
	case string:
		if n, err := strconv.Atoi(v); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s where a whole number is needed", kindOf(v))
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

package template

import (
	"fmt"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
)

// queryCase turns the tables and rows of a case into SQL: with is the list of common table
// expressions that stand for the tables, want_rows are rows of literals, columns are the names
// under which the rows of the query and of want are compared.
func queryCase(c map[string]any) error {
	tables, ok := c["tables"].(map[string]any)
	if !ok {
		return fmt.Errorf("tables: %s, and must be a mapping of names", kindOf(c["tables"]))
	}
	with := []any{}
	for _, name := range sortedKeys(tables) {
		t, err := tableExpression(name, tables[name])
		if err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
		with = append(with, t)
	}
	c["with"] = with
	rows, ok := c["want"].([]any)
	if !ok {
		return fmt.Errorf("want: %s, and must be a list of rows", kindOf(c["want"]))
	}
	wantRows, columns := []any{}, []any{}
	for i, row := range rows {
		cells, ok := row.([]any)
		if !ok {
			cells = []any{row}
		}
		if i > 0 && len(cells) != len(columns) || len(cells) == 0 {
			return fmt.Errorf("want: row %d has %d columns, and the first %d", i+1, len(cells), len(columns))
		}
		for len(columns) < len(cells) {
			columns = append(columns, fmt.Sprintf("c%d", len(columns)+1))
		}
		literals, err := sqlRow(cells)
		if err != nil {
			return fmt.Errorf("want: row %d: %w", i+1, err)
		}
		wantRows = append(wantRows, literals)
	}
	c["want_rows"], c["columns"] = wantRows, columns
	return nil
}

// tableExpression reads {columns: [a, b], rows: [[1, 2]]}, or a list of mappings with the same keys.
func tableExpression(name string, v any) (string, error) {
	var columns []string
	var rows [][]any
	switch t := v.(type) {
	case map[string]any:
		for _, key := range sortedKeys(t) {
			list, ok := t[key].([]any)
			if key != "columns" && key != "rows" || !ok {
				return "", fmt.Errorf("%s: a table has columns and rows, both lists", key)
			}
			for i, item := range list {
				if key == "columns" {
					s, err := asText(item)
					if err != nil {
						return "", err
					}
					columns = append(columns, s)
					continue
				}
				row, ok := item.([]any)
				if !ok {
					return "", fmt.Errorf("row %d is %s, and must be a list", i+1, kindOf(item))
				}
				rows = append(rows, row)
			}
		}
	case []any:
		for i, item := range t {
			object, ok := item.(map[string]any)
			if !ok {
				return "", fmt.Errorf("row %d is %s, and must be a mapping", i+1, kindOf(item))
			}
			if i == 0 {
				columns = sortedKeys(object)
			}
			row := make([]any, len(columns))
			for j, key := range columns {
				if row[j], ok = object[key]; !ok || len(object) != len(columns) {
					return "", fmt.Errorf("row %d must have the columns of the first: %s", i+1, strings.Join(columns, ", "))
				}
			}
			rows = append(rows, row)
		}
	default:
		return "", fmt.Errorf("%s, and must be columns and rows, or a list of mappings", kindOf(v))
	}
	if len(columns) == 0 {
		return "", fmt.Errorf("it has no columns")
	}
	return expression(name, columns, rows)
}

func expression(name string, columns []string, rows [][]any) (string, error) {
	var b strings.Builder
	names := make([]string, len(columns))
	nulls := make([]string, len(columns))
	for i, c := range columns {
		names[i], nulls[i] = sqlName(c), "NULL"
	}
	fmt.Fprintf(&b, "%s(%s) AS (", sqlName(name), strings.Join(names, ", "))
	if len(rows) == 0 {
		fmt.Fprintf(&b, "SELECT %s WHERE 1 = 0", strings.Join(nulls, ", "))
	} else {
		b.WriteString("VALUES ")
	}
	for i, row := range rows {
		if len(row) != len(columns) {
			return "", fmt.Errorf("row %d has %d values for %d columns", i+1, len(row), len(columns))
		}
		text, err := sqlRow(row)
		if err != nil {
			return "", fmt.Errorf("row %d: %w", i+1, err)
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "(%s)", text)
	}
	b.WriteByte(')')
	return b.String(), nil
}

func sqlName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func sqlRow(cells []any) (string, error) {
	out := make([]string, len(cells))
	for i, cell := range cells {
		switch v := cell.(type) {
		case nil:
			out[i] = "NULL"
		case bool:
			out[i] = "0"
			if v {
				out[i] = "1"
			}
		case string:
			s, err := quoteSQL(v)
			if err != nil {
				return "", err
			}
			out[i] = s
		case yamlite.Number:
			out[i] = string(v)
		default:
			return "", fmt.Errorf("%s is no value of a column", kindOf(cell))
		}
	}
	return strings.Join(out, ", "), nil
}

package template

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
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
	var err error
	switch t := v.(type) {
	case map[string]any:
		for _, key := range sortedKeys(t) {
			list, ok := t[key].([]any)
			if key != "columns" && key != "rows" || !ok {
				return "", fmt.Errorf("%s: a table has columns and rows, both lists", key)
			}
			if key == "columns" {
				if columns, err = asTexts(list); err != nil {
					return "", err
				}
				continue
			}
			for i, item := range list {
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
			if !slices.Equal(columns, sortedKeys(object)) {
				return "", fmt.Errorf("row %d must have the columns of the first: %s", i+1, strings.Join(columns, ", "))
			}
			row := make([]any, len(columns))
			for j, key := range columns {
				row[j] = object[key]
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
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = sqlName(c)
	}
	values := make([]string, len(rows))
	for i, row := range rows {
		if len(row) != len(columns) {
			return "", fmt.Errorf("row %d has %d values for %d columns", i+1, len(row), len(columns))
		}
		text, err := sqlRow(row)
		if err != nil {
			return "", fmt.Errorf("row %d: %w", i+1, err)
		}
		values[i] = "(" + text + ")"
	}
	selection := "VALUES " + strings.Join(values, ", ")
	if len(rows) == 0 {
		selection = "SELECT NULL" + strings.Repeat(", NULL", len(columns)-1) + " WHERE 1 = 0"
	}
	return fmt.Sprintf("%s(%s) AS (%s)", sqlName(name), strings.Join(names, ", "), selection), nil
}

func sqlName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func sqlRow(cells []any) (string, error) {
	out := make([]string, len(cells))
	for i, cell := range cells {
		var err error
		switch v := cell.(type) {
		case nil:
			out[i] = "NULL"
		case bool:
			out[i] = strconv.Itoa(rank(v))
		case string:
			out[i], err = quoteSQL(v)
		case []any, map[string]any:
			err = fmt.Errorf("%s is no value of a column", kindOf(cell))
		default:
			out[i], err = asText(v)
		}
		if err != nil {
			return "", err
		}
	}
	return strings.Join(out, ", "), nil
}

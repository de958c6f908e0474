package postgres

import (
	"regexp"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Check reports whether every statement ends with a semicolon, or the last line is a command of psql.
func (s *Session) Check(code string) protocol.Checked {
	if isComplete(code) {
		return protocol.Checked{Status: "complete"}
	}
	return protocol.Checked{Status: "incomplete"}
}

// dollar is the start and the end of a string in dollars.
var dollar = regexp.MustCompile(`^\$([A-Za-z_][A-Za-z_0-9]*)?\$`)

// isComplete reads code as psql does: quotes, strings in dollars, comments and parentheses.
func isComplete(code string) bool {
	ended, depth := true, 0
	for code != "" {
		size := 1
		switch rest := code; {
		case strings.HasPrefix(rest, "--"):
			size = len(rest)
			if end := strings.IndexByte(rest, '\n'); end >= 0 {
				size = end
			}
		case strings.HasPrefix(rest, "/*"):
			if size = comment(rest); size < 0 {
				return false
			}
		case rest[0] == '\'' || rest[0] == '"':
			end := strings.IndexByte(rest[1:], rest[0])
			if end < 0 {
				return false
			}
			size, ended = end+2, false
		case dollar.MatchString(rest):
			tag := dollar.FindString(rest)
			end := strings.Index(rest[len(tag):], tag)
			if end < 0 {
				return false
			}
			size, ended = end+2*len(tag), false
		case rest[0] == '\\': // a command, to the end of the line
			if size = strings.IndexByte(rest, '\n'); size < 0 {
				return depth == 0
			}
			ended = depth == 0
		case rest[0] == ';':
			ended = depth <= 0
		case strings.IndexByte(" \t\r\n\f", rest[0]) >= 0:
		default:
			ended = false
			switch rest[0] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		code = code[size:]
	}
	return ended
}

// comment returns the length of a comment, which may have others in it; -1 without an end.
func comment(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return i + 1
		}
	}
	return -1
}

// The queries of questions. Tables of the user are those that the search path shows, except the catalog's.
const (
	visible = ` FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE pg_catalog.pg_table_is_visible(c.oid) AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_toast'
AND c.relkind IN ('r', 'p', 'v', 'm', 'f')`
	columns = `(SELECT pg_catalog.string_agg(a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod)
|| CASE WHEN %[1]s AND a.attnotnull THEN ' NOT NULL' ELSE '' END, %[2]s ORDER BY a.attnum)
FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)`
	kind       = `CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' ELSE 'table' END`
	namesQuery = `SELECT c.relname` + visible + ` UNION SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attnum > 0
AND NOT a.attisdropped AND a.attrelid IN (SELECT c.oid` + visible + `) UNION SELECT p.proname FROM pg_catalog.pg_proc p
WHERE p.proname ~ '^[a-z]' AND p.proname ~* %s LIMIT 1000`
	keywordsQuery = `SELECT word FROM pg_catalog.pg_get_keywords()`
)

var (
	listColumns    = strings.NewReplacer("%[1]s", "false", "%[2]s", "', '").Replace(columns)
	describe       = strings.NewReplacer("%[1]s", "true", "%[2]s", "E',\\n  '").Replace(columns)
	variablesQuery = `SELECT c.relname, ` + kind + `, ` + listColumns + visible + ` ORDER BY 1 LIMIT 1000`
)

// Complete completes names of tables, columns and functions, and keywords.
func (s *Session) Complete(code string, cursor int) protocol.Completed {
	word := session.CompleteWord(code, cursor, nil, nil)
	var names, keywords []string
	start := regexp.QuoteMeta(code[word.Start:word.End])
	if start == "" {
		start = "$." // no function
	}
	for _, row := range s.rows(strings.Replace(namesQuery, "%s", literal("^"+start), 1)) {
		names = append(names, row[0])
	}
	for _, row := range s.rows(keywordsQuery) {
		keywords = append(keywords, row[0])
	}
	return session.CompleteWord(code, cursor, names, keywords)
}

// Inspect describes the columns of a table or view.
func (s *Session) Inspect(name string) protocol.Inspected {
	name = strings.Trim(strings.TrimSpace(name), ";")
	rows := s.rows(`SELECT ` + kind + ` || ' ' || c.oid::pg_catalog.regclass || E' (\n  ' || ` + describe + ` || E'\n)'` + visible +
		` AND c.oid = pg_catalog.to_regclass(` + literal(name) + `)`)
	if len(rows) == 0 {
		return protocol.Inspected{}
	}
	return protocol.Inspected{Found: true, Text: rows[0][0]}
}

// Variables lists the tables and views that the search path shows, with their columns.
func (s *Session) Variables() protocol.Variables {
	v := protocol.Variables{Variables: []protocol.Variable{}}
	for _, row := range s.rows(variablesQuery) {
		v.Variables = append(v.Variables, protocol.Variable{Name: row[0], Type: row[1], Value: row[2]})
	}
	return v
}

// literal is a text as a string of SQL.
func literal(text string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, "'", "''", "\x00", "").Replace(text) + "'"
}

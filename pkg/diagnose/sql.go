package diagnose

import "strings"

// parseSQL reads the errors of SQLite and of PostgreSQL.
//
//	/workspace/a.sql:2: no such column: nme      psql:/workspace/a.sql:2: ERROR:  column "nme" does not exist
//	  select nme from t;                         LINE 1: select nme from t;
//	         ^                                                   ^
func parseSQL(c *inquiry) {
	for i, line := range c.stderr {
		where, text, ok := strings.Cut(strings.TrimPrefix(line, "psql:"), ": ")
		at, isPlace := place(where)
		if !ok || !isPlace {
			if hint, ok := strings.CutPrefix(line, "HINT:  "); ok {
				c.help = append(c.help, "PostgreSQL: "+hint)
			}
			continue
		}
		at.Column = 0
		if i+2 < len(c.stderr) && strings.TrimSpace(c.stderr[i+2]) == "^" {
			shown, marks := strings.TrimPrefix(c.stderr[i+1], "  "), strings.IndexByte(c.stderr[i+2], '^')-2
			if n, source, ok := strings.Cut(c.stderr[i+1], ": "); ok && strings.HasPrefix(n, "LINE ") {
				shown, marks = source, marks-len(n)
			}
			file, _ := c.resolve(at.File)
			if indent := strings.Index(c.sourceLine(Location{File: file, Line: at.Line}), strings.TrimSpace(shown)); indent >= 0 && marks >= 0 {
				at.Column = indent + marks - (len(shown) - len(strings.TrimLeft(shown, " "))) + 1
			}
		}
		text = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(text, "ERROR:"), "FATAL:"))
		c.thrown = []thrown{{text: text, at: at}}
		c.help = nil
	}
}

package sqlite

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/tables"
)

var update = flag.Bool("update", false, "write what the scripts of testdata print into their archives")

// TestScripts runs the *.sql files of each archive of testdata, in the archive's directory. The archive's output.txt and tables.json are
// what comes of it, the error last.
func TestScripts(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal("no scripts:", err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testScript(t, path) })
	}
}

func testScript(t *testing.T, path string) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	o := Options{Data: ".", Tables: "tables.json"}
	want := map[string]string{}
	given := *archive
	given.Files = nil
	for _, f := range archive.Files {
		switch {
		case f.Name == "output.txt" || f.Name == "tables.json":
			want[f.Name] = string(f.Data)
			continue
		case filepath.Ext(f.Name) == ".sql":
			o.Files = append(o.Files, f.Name)
		}
		given.Files = append(given.Files, f)
	}
	if err := txtar.Write(&given, "."); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o.Out = &out
	err = Run(o)
	var script *ScriptError
	switch {
	case errors.As(err, &script):
		fmt.Fprintf(&out, "%v\nsyntax error: %v\n", err, script.Syntax)
	case err != nil:
		t.Fatal(err)
	}
	data, err := os.ReadFile("tables.json")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"output.txt": out.String(), "tables.json": strings.ReplaceAll(string(data), `},{"columns`, "},\n{\"columns")}
	if *update {
		for _, name := range []string{"output.txt", "tables.json"} {
			given.Files = append(given.Files, txtar.File{Name: name, Data: []byte(got[name])})
		}
		if err := os.WriteFile(filepath.Join(sourceDir, path), txtar.Format(&given), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for name, text := range got {
		if text != want[name] {
			t.Errorf("%s: got\n%s\nwant\n%s", name, text, want[name])
		}
	}
}

var sourceDir, _ = os.Getwd()

func run(t testing.TB, o Options, sql string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	o.In, o.Out = strings.NewReader(sql), &out
	err := Run(o)
	return out.String(), err
}

// TestDatabaseFile: the next run finds the tables of a database file, and no table of a CSV file.
func TestDatabaseFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "people.csv"), []byte("id,name\n1,Ann\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{Database: filepath.Join(dir, "a.db"), Data: dir}
	if _, err := run(t, o, "CREATE TABLE t AS SELECT * FROM people; INSERT INTO t VALUES (2, 'Bo');"); err != nil {
		t.Fatal(err)
	}
	o.Data = ""
	if out, err := run(t, o, "SELECT count(*) FROM t"); err != nil || !strings.Contains(out, "        2\n") {
		t.Errorf("%s%v", out, err)
	}
	if _, err := run(t, o, "SELECT * FROM people"); err == nil || !strings.Contains(err.Error(), "no such table: people") {
		t.Errorf("the CSV file's table is in the database's file: %v", err)
	}
	o.Database = filepath.Join(dir, "none", "a.db")
	if _, err := run(t, o, "SELECT 1"); err == nil || !strings.Contains(err.Error(), "unable to open") {
		t.Errorf("a database that can not be opened: %v", err)
	}
}

// TestLargeResult: rows are printed while the query runs, and the JSON is bounded.
func TestLargeResult(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tables.json")
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Run(Options{
			In: strings.NewReader("WITH RECURSIVE c(n) AS (VALUES(1) UNION ALL SELECT n+1 FROM c) SELECT n, 'x' FROM c LIMIT 100000; SELECT " +
				"'next';"),
			Out: writer, Tables: file,
		})
		writer.Close()
		done <- err
	}()
	// Nothing but the pipe moves the query on: the first rows are read before the last are made.
	first := make([]byte, 64<<10)
	if _, err := io.ReadFull(reader, first); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("the query was over before its first rows were read: %v", err)
	default:
	}
	rest, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if all := string(first) + string(rest); strings.Count(all, "\n") != 2+100_000+2+5 || !strings.Contains(all, "\n(100000 rows)\n") {
		t.Errorf("%d lines", strings.Count(all, "\n"))
	}
	var kept []struct {
		Rows      [][]any
		RowsTotal int `json:"rows_total"`
		Truncated bool
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &kept); err != nil {
		t.Fatal(err)
	}
	if len(kept) != 2 || len(kept[0].Rows) != tables.MostRows || kept[0].RowsTotal != 100_000 || !kept[0].Truncated {
		t.Errorf("first table: %d rows of %d, truncated %v", len(kept[0].Rows), kept[0].RowsTotal, kept[0].Truncated)
	}
	if len(kept[1].Rows) != 0 || !kept[1].Truncated || kept[1].RowsTotal != 1 {
		t.Errorf("second table: %+v", kept[1])
	}
}

// TestTablesBytes: large values count, too, and a table stays whole JSON.
func TestTablesBytes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tables.json")
	if _, err := run(t, Options{Tables: file}, "SELECT zeroblob(100) UNION ALL SELECT zeroblob(5000000); SELECT 1e999, -1e999, "+
		"9223372036854775807"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) || len(text) > tables.MostBytes || !bytes.Contains(text, []byte(`["Inf","-Inf",9223372036854775807]`)) ||
		!bytes.Contains(text, []byte(`"rows_total":2,"truncated":true`)) {
		t.Errorf("%.300s", text)
	}
}

// TestHostile: hostile scripts end, with an error or without.
func TestHostile(t *testing.T) {
	for name, c := range map[string]struct{ sql, want string }{
		"parentheses":  {"SELECT " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000), "limit"},
		"subqueries":   {"SELECT " + strings.Repeat("(SELECT ", 50_000) + "1" + strings.Repeat(")", 50_000), "limit"},
		"sums":         {"SELECT " + strings.Repeat("1+", 100_000) + "1", "too large"},
		"long line":    {"SELECT length('" + strings.Repeat("x", 32<<20) + "')", ""},
		"long token":   {"SELECT '" + strings.Repeat("x", 1<<20), "unrecognized token"},
		"zero byte":    {"SELECT 1;\n\x00", "not text"},
		"no text":      {"", ""},
		"comment":      {"/* never closed", ""},
		"no UTF-8":     {"SELECT '\xff\xfe'", ""},
		"semicolons":   {strings.Repeat(";", 1<<20), ""},
		"many":         {strings.Repeat("SELECT 1;\n", 20_000), ""},
		"many columns": {"SELECT " + strings.Repeat("1,", 5000) + "1", "too many columns"},
		"json":         {"SELECT json('" + strings.Repeat("[", 100_000) + "')", "malformed JSON"},
		"recursion": {"CREATE TABLE t(a); CREATE TRIGGER r AFTER INSERT ON t BEGIN INSERT INTO t VALUES(1); END; PRAGMA " +
			"recursive_triggers=ON; INSERT INTO t VALUES(1)", "nested too deep"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, Options{}, c.sql)
			var script *ScriptError
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%.500v", err)
			case c.want != "" && (!errors.As(err, &script) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%.500v, not an error of the script about %q", err, c.want)
			case err != nil && len(err.Error()) > 2000:
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestData(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"types.csv":   "i,r,t,zip,big,mixed,empty\n1,1.5,a,007,123456789012345678,1,\n-2,2e3,b,123,1,x,\n",
		"semi.csv":    "a;b\r\n1;\"x;y\"\r\n",
		"tabs.tsv":    "a\tb\tc\n1\t\tx\n",
		"names.csv":   "a,A,,\"b \"\"q\"\"\"\n1,2,3,4\n",
		"bom.csv":     "\ufeffid,x\n1,2\n",
		"lines.csv":   "id,text\n1,\"two\nlines\"\n",
		"short.csv":   "a,b,c\n1\n",
		"long.csv":    "a,b\n1,2\n1,2,3\n",
		"void.csv":    "",
		"header.csv":  "a,b\n",
		"my file.csv": "a\n1\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for sql, want := range map[string]string{
		"SELECT typeof(i), typeof(r), typeof(t), typeof(zip), typeof(big), typeof(mixed), " +
			"typeof(empty) FROM types LIMIT 1": "integer|real|text|text|integer|text|null",
		"SELECT big FROM types WHERE i=1":                                     "123456789012345678",
		"SELECT a, b FROM semi":                                               "1|x;y",
		"SELECT a, b IS NULL, c FROM TABS":                                    "1|1|x",
		`SELECT a, A_2, column3, "b ""q""" FROM names`:                        "1|2|3|4",
		"SELECT id, x FROM bom":                                               "1|2",
		"SELECT text FROM lines":                                              `two\nlines`,
		"SELECT a, b IS NULL FROM short":                                      "1|1",
		"SELECT count(*) FROM header":                                         "0",
		`SELECT a FROM "my file"`:                                             "1",
		"CREATE TABLE semi(z); SELECT count(z) FROM semi":                     "0",
		"CREATE VIEW v AS SELECT b FROM semi; SELECT * FROM v":                "x;y",
		"BEGIN; SELECT a FROM semi; ROLLBACK; SELECT b FROM semi":             "x;y",
		"INSERT INTO semi VALUES (3, 4); SELECT count(*) FROM semi":           "2",
		"SELECT t.t FROM types t JOIN semi s ON s.a=t.i JOIN short USING (a)": "a",
	} {
		out, err := run(t, Options{Data: dir}, sql)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		lines := strings.Split(out, "\n")
		cells := strings.Split(lines[len(lines)-4], "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if got := strings.Join(cells, "|"); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	for sql, want := range map[string]string{
		"SELECT 1;\nSELECT * FROM long":    "<stdin>:2: long.csv: line 3: 3 fields, but the header has 2",
		"SELECT * FROM void":               "void.csv: the file is empty",
		"SELECT * FROM absent":             "no such table: absent",
		"SELECT absent FROM semi":          "no such column: absent",
		"SELECT * FROM main.semi, other.x": "no such table: other.x",
	} {
		if _, err := run(t, Options{Data: dir}, sql); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
}

// FuzzScript: whatever the text, there is an end, and an error is about a line that exists.
func FuzzScript(f *testing.F) {
	for _, s := range []string{"SELECT 1;", "select '", "/* */ -- x\n.tables\n.x", "CREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; END;",
		"\ufeffselect\r\n1 form", "select 'ä' FORM ä;", ".schema '", "\x00", "select x'00', char(27)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if lower := strings.ToLower(sql); strings.Contains(lower, "attach") || strings.Contains(lower, "vacuum") ||
			strings.Contains(lower, "recursive") || strings.Contains(lower, "pragma") {
			t.Skip("writes files, or takes for ever")
		}
		_, err := run(t, Options{Database: ":memory:"}, sql)
		var script *ScriptError
		if err == nil {
			return
		}
		if !errors.As(err, &script) {
			t.Fatalf("%v", err)
		}
		if script.Line < 1 || script.Line > 1+strings.Count(sql, "\n") {
			t.Errorf("line %d", script.Line)
		}
		if script.Column > len(script.Text) {
			t.Errorf("column %d of %q", script.Column, script.Text)
		}
		if escape(script.Text) != script.Text && !strings.Contains(sql, `\`) {
			t.Errorf("%q is not safe to print", script.Text)
		}
	})
}

// FuzzCSV: whatever the file, each record becomes a row, or there is an error of the script.
func FuzzCSV(f *testing.F) {
	for _, s := range []string{"a,b\n1,2\n", "a\n\"", "\ufeffa;b\n;", "a,a,,\n1,2,3\n", "\"a\"\"\"\n1e999\n-0\n", "a\n\x00\n\xff\n", ",\n",
		"\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "t.csv")
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		records := -1
		if err := eachRecord(bytes.NewReader(text), path, func(int, []string) error { records++; return nil }); err != nil {
			records = -1
		}
		out, err := run(t, Options{Data: dir}, "SELECT 'rows ' || count(*) FROM t")
		var script *ScriptError
		if err != nil && !errors.As(err, &script) {
			t.Fatal(err)
		}
		if err == nil && !strings.Contains(out, fmt.Sprintf("rows %d\n", records)) {
			t.Errorf("%d records, %s", records, out)
		}
	})
}

func TestText(t *testing.T) {
	for s, want := range map[string]struct {
		escaped string
		width   int
	}{
		"plain": {"plain", 5}, "é": {"é", 1}, "e\u0301": {"e\u0301", 1}, "日本": {"日本", 4}, "🙂": {"🙂", 2}, "\x1b[31m": {`\x1B[31m`, 8},
		"a\tb\n": {`a\tb\n`, 6}, "\u009b": {`\x9B`, 4}, "\u202e": {`\u202E`, 6}, "\xff": {`\xFF`, 4}, "\ufffd": {"\ufffd", 1},
	} {
		if got := escape(s); got != want.escaped || width(got) != want.width {
			t.Errorf("%q: %q of width %d, want %q of width %d", s, got, width(got), want.escaped, want.width)
		}
	}
}

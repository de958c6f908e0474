package sqlite

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"
)

// data is a directory whose *.csv and *.tsv files are tables. A file is imported when a statement needs a missing table: tables
// that the script makes come first, and unused files cost nothing. Nothing is ever written back.
type data struct {
	dir    string
	schema string // of the tables: "temp" if the database is a file, so that they are not stored in it
}

func newData(dir string, apart bool) *data {
	d := &data{dir: dir, schema: "main"}
	if apart {
		d.schema = "temp"
	}
	return d
}

// load imports the table that err reports as missing, if there is a file for it.
func (d *data) load(db *database, err error) (bool, error) {
	var f *failure
	if d.dir == "" || !errors.As(err, &f) || f.code != sqlite3.SQLITE_ERROR {
		return false, nil
	}
	name, missing := strings.CutPrefix(f.text, "no such table: ")
	if !missing {
		return false, nil
	}
	if d.schema == "main" {
		name = strings.TrimPrefix(name, "main.") // SQLite adds it for a table of a view
	}
	path := d.find(name)
	if path == "" {
		return false, nil
	}
	stem := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	if err := d.importFile(db, path, stem); err != nil {
		return false, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return true, nil
}

// find searches the file of a table. As in SQL, case does not matter, unless two files differ in nothing else.
func (d *data) find(table string) string {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return ""
	}
	found := ""
	for _, e := range entries {
		extension := strings.ToLower(filepath.Ext(e.Name()))
		if extension != ".csv" && extension != ".tsv" {
			continue
		}
		stem := e.Name()[:len(e.Name())-len(extension)]
		if stem == table {
			found = e.Name()
			break
		}
		if found == "" && strings.EqualFold(stem, table) {
			found = e.Name()
		}
	}
	if found == "" {
		return ""
	}
	path := filepath.Join(d.dir, found)
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return "" // opening a FIFO would block
	}
	return path
}

// importFile reads a file twice: once for the types, once for the rows. A savepoint, not a transaction: the script may have
// one open.
func (d *data) importFile(db *database, path, table string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return errors.New(reason(err))
	}
	defer f.Close()
	columns, err := columnsOf(f, path)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return errors.New(reason(err))
	}
	if err := db.execute("SAVEPOINT sandbox_kit_import"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = db.execute("ROLLBACK TO sandbox_kit_import") // the first error is returned
		}
		err = errors.Join(err, db.execute("RELEASE sandbox_kit_import"))
	}()
	name := d.schema + "." + identifier(table)
	definitions := make([]string, len(columns))
	for i, c := range columns {
		definitions[i] = identifier(c.name) + " " + c.affinity()
	}
	if err := db.execute("CREATE TABLE " + name + " (" + strings.Join(definitions, ", ") + ")"); err != nil {
		return err
	}
	insert, err := db.prepareText("INSERT INTO " + name + " VALUES (" + strings.TrimSuffix(strings.Repeat("?,", len(columns)), ",") + ")")
	if err != nil {
		return err
	}
	defer insert.finalize()
	return eachRecord(f, path, func(line int, record []string) error {
		if line == 0 {
			return nil
		}
		for i := range columns {
			// An empty field is NULL, as in other databases that import such files.
			if i >= len(record) || record[i] == "" {
				insert.bindNull(i + 1)
			} else if err := insert.bind(i+1, record[i]); err != nil {
				return err
			}
		}
		_, err := insert.step()
		insert.reset()
		return err
	})
}

// column is the result of the first reading of a column.
type column struct {
	name    string
	any     bool // some field is not empty
	notInt  bool
	notReal bool
}

func (c column) affinity() string {
	switch {
	case c.any && !c.notInt:
		return "INTEGER"
	case c.any && !c.notReal:
		return "REAL"
	}
	return "TEXT"
}

func columnsOf(f io.Reader, path string) ([]column, error) {
	var columns []column
	err := eachRecord(f, path, func(line int, record []string) error {
		if line == 0 {
			columns = named(record)
			return nil
		}
		if len(record) > len(columns) {
			return fmt.Errorf("line %d: %d fields, but the header has %d", line, len(record), len(columns))
		}
		for i, field := range record {
			c := &columns[i]
			if field == "" || c.notInt && c.notReal {
				continue
			}
			c.any = true
			integer, number := looksNumeric(field)
			c.notInt = c.notInt || !integer
			c.notReal = c.notReal || !number
		}
		return nil
	})
	if err == nil && columns == nil {
		err = errors.New("the file is empty: there is no header line to name the columns")
	}
	return columns, err
}

// named makes column names of a header: none empty, no two equal.
func named(header []string) []column {
	columns := make([]column, len(header))
	taken := map[string]bool{}
	for i, name := range header {
		name = strings.TrimSpace(strings.ReplaceAll(name, "\x00", ""))
		if name == "" {
			name = "column" + strconv.Itoa(i+1)
		}
		unique := name
		for n := 2; taken[strings.ToLower(unique)]; n++ {
			unique = name + "_" + strconv.Itoa(n)
		}
		taken[strings.ToLower(unique)] = true
		columns[i].name = unique
	}
	return columns
}

// looksNumeric reports whether a field can be converted without a loss: 007 is no number, and a number of twenty digits
// is no integer.
func looksNumeric(s string) (integer, number bool) {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || digits[0] < '0' || digits[0] > '9' {
		return false, false
	}
	if len(digits) > 1 && digits[0] == '0' && digits[1] != '.' && digits[1] != 'e' && digits[1] != 'E' {
		return false, false
	}
	rest := strings.TrimLeft(digits, "0123456789")
	if rest == "" {
		// Beyond 15 digits, a real number loses some.
		return len(digits) <= 18 && s != "-0", len(digits) <= 15
	}
	if strings.Trim(rest, "0123456789.eE+-") != "" {
		return false, false
	}
	_, err := strconv.ParseFloat(s, 64)
	return false, err == nil
}

// eachRecord calls do for the header (line 0) and each record with the number of its line. A record is only valid during the call.
func eachRecord(f io.Reader, path string, do func(line int, record []string) error) error {
	in := bufio.NewReaderSize(f, 64<<10)
	if mark, _ := in.Peek(3); string(mark) == "\ufeff" {
		_, _ = in.Discard(3)
	}
	r := csv.NewReader(in)
	r.FieldsPerRecord = -1
	r.LazyQuotes = true
	r.ReuseRecord = true
	r.Comma = separator(in, path)
	r.TrimLeadingSpace = r.Comma != '\t'
	for header := true; ; header = false {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errors.New(reason(err))
		}
		line := 0
		if !header {
			line, _ = r.FieldPos(0)
		}
		if err := do(line, record); err != nil {
			return err
		}
	}
}

// separator is a tab in a TSV file; in a CSV file a comma, or another separator that the header has.
func separator(in *bufio.Reader, path string) rune {
	if strings.EqualFold(filepath.Ext(path), ".tsv") {
		return '\t'
	}
	head, _ := in.Peek(4096)
	line, _, _ := strings.Cut(string(head), "\n")
	for _, s := range ",;\t|" {
		if strings.ContainsRune(line, s) {
			return s
		}
	}
	return ','
}

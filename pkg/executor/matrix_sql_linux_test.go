package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/sql"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// tables holds the results of a query against what they must be, as JSON.
func tables(text string) func(*testing.T, *Result) {
	return func(t *testing.T, r *Result) {
		t.Helper()
		have, err := json.Marshal(r.Tables)
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		if err := errors.Join(json.Unmarshal(have, &a), json.Unmarshal([]byte(text), &b)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(withoutTypes(a), withoutTypes(b)) {
			t.Errorf("the data is %s instead of %s", have, text)
		}
	}
}

// withoutTypes drops what differs between databases.
func withoutTypes(v any) any {
	list, _ := v.([]any)
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			delete(m, "types")
		}
	}
	return v
}

func TestSQLite(t *testing.T) {
	runRows(t, "sql", []row{
		{name: "several statements",
			req: Request{Code: "create table t(id integer, name text);\ninsert into t values (1,'one'),(22,'zwei');\n" +
				"select * from t order by id;\nselect count(*) as n from t;"},
			want: want{stdout: " id | name \n----+------\n  1 | one\n 22 | zwei\n(2 rows)\n\n n \n---\n 2\n(1 row)\n\n", silent: true},
			more: tables(`[{"columns":["id","name"],"rows":[[1,"one"],[22,"zwei"]],"rows_total":2,"truncated":false},` +
				`{"columns":["n"],"rows":[[2]],"rows_total":1,"truncated":false}]`)},
		{name: "version", req: Request{Code: "select sqlite_version() as v"}, more: func(t *testing.T, r *Result) {
			if len(r.Tables) != 1 || r.Tables[0].Rows[0][0] != r.Version || r.Version != sql.Version {
				t.Errorf("the kit has %+v, and %q is what we say", r.Tables, r.Version)
			}
		}},
		{name: "CSV files", req: Request{Code: "select city, sum(people) as people from cities group by city order by 1;",
			Inputs: tree("cities.csv", "city,people\nWien,3\nLinz,1\nWien,2\n")}, want: want{has: []string{"Linz", "Wien", "5"}},
			more: tables(`[{"columns":["city","people"],"rows":[["Linz",1],["Wien",5]],"rows_total":2,"truncated":false}]`)},
		{name: "CSV files of the program", req: Request{Files: tree("q.sql", "select count(*) as n from data", "data.csv", "a\n1\n2\n")},
			want: want{has: []string{"2"}}},
		{name: "set-up",
			req: Request{Files: tree("schema.sql", "create table t(x);", "data.sql", "insert into t values (7);", "q.sql", "select x from t;"),
				Options: LanguageOptions{Setup: []string{"schema.sql", "data.sql"}}}, want: want{has: []string{"7"}}},
		{name: "set-up of inputs", req: Request{Code: "select x from t;",
			Inputs: tree("schema.sql", "create table t(x); insert into t values(8);"), Options: LanguageOptions{Setup: []string{"./schema.sql"}}},
			want: want{has: []string{"8"}}},
		{name: "syntax error", req: Request{Code: "-- a comment\nselec 1;\nselect 2;\n"},
			want: want{verdict: noSyntax, said: []string{"main.sql:2", "syntax error"}}},
		{name: "syntax error of a later statement", req: Request{Code: "select 1;\nselec 2;\n"},
			want: want{verdict: nonzero, said: []string{"main.sql:2", "syntax error"}, has: []string{" 1\n"}}},
		{name: "error", req: Request{Code: "select 1 as a;\nselect * from nowhere;\n"},
			want: want{verdict: nonzero, said: []string{"main.sql:2", "nowhere"}, has: []string{" 1\n"}},
			more: tables(`[{"columns":["a"],"rows":[[1]],"rows_total":1,"truncated":false}]`)},
		{name: "constraint", req: Request{Code: "create table t(x unique); insert into t values (1),(1);"},
			want: want{verdict: nonzero, said: []string{"UNIQUE"}}},
		{name: "Unicode", req: Request{Code: "select 'grüße 日本 🎉' as s, length('日本') as n"}, want: want{has: []string{"grüße 日本 🎉"}},
			more: tables(`[{"columns":["s","n"],"rows":[["grüße 日本 🎉",2]],"rows_total":1,"truncated":false}]`)},
		{name: "values", req: Request{Code: "select null as a, 1.5 as b, x'00ff' as c, '' as d, 9007199254740993 as e"},
			more: func(t *testing.T, r *Result) {
				if len(r.Tables) != 1 || len(r.Tables[0].Rows) != 1 || r.Tables[0].Rows[0][0] != nil || r.Tables[0].Rows[0][3] != "" {
					t.Errorf("%+v", r.Tables)
				}
				if text, err := json.Marshal(r.Tables); err != nil || !strings.Contains(string(text), "9007199254740993") {
					t.Errorf("digits are lost: %s, %v", text, err)
				}
			}},
		{name: "functions",
			req: Request{Code: `select json_extract('{"a":[1,2]}', '$.a[1]') as j, sum(x) over (order by x) as w
				from (select 1 as x union select 2) order by w desc limit 1;
				with recursive c(n) as (select 1 union all select n+1 from c where n < 5) select group_concat(n) from c;`},
			want: want{has: []string{"2", "1,2,3,4,5"}}},
		{name: "files", req: Request{Code: "attach 'out.db' as o; create table o.t as select 42 as x;",
			Outputs: sandbox.Selection{Patterns: []string{"out.db"}}}, more: func(t *testing.T, r *Result) {
			if len(r.Files) != 1 || !strings.HasPrefix(string(r.Files[0].Data), "SQLite format 3") {
				t.Errorf("%+v", r.Files)
			}
		}},
		{name: "time limit", req: Request{Code: "with recursive c(n) as (select 1 union all select n+1 from c) select count(*) from c;",
			Limits: sandbox.Limits{Wall: ms(900)}}, want: want{verdict: sandbox.VerdictTimeLimit}},
		{name: "memory limit", req: Request{Code: "select length(hex(zeroblob(200000000))) as n;",
			Limits: sandbox.Limits{Memory: 128 * sandbox.MiB}}, want: want{verdict: sandbox.VerdictMemoryLimit}},
		{name: "disk limit",
			req: Request{Code: "create table t as with recursive c(n) as (select 1 union all select n+1 from c limit 100000000) select n, " +
				"randomblob(1000) as b from c;", Limits: sandbox.Limits{Disk: 16 * sandbox.MiB}, Inputs: named("x.db")},
			want: want{verdict: sandbox.VerdictDiskLimit, exit: 1}},
		{name: "disk limit in a temporary database",
			req: Request{Code: "create table t as with recursive c(i) as (select 1 union all select i+1 from c where i < 100000) select " +
				"randomblob(1000) as b from c;", Limits: sandbox.Limits{Disk: 16 * sandbox.MiB}},
			want: want{verdict: sandbox.VerdictDiskLimit, exit: 1},
			more: func(t *testing.T, r *Result) {
				if len(r.Notes) > 0 || len(r.Violations) != 1 || r.Violations[0].Kind != "disk" {
					t.Errorf("notes %q, violations %+v", r.Notes, r.Violations)
				}
			}},
		{name: "no further rowid",
			req: Request{Code: "create table t(i integer primary key autoincrement); insert into t values (9223372036854775807); " +
				"insert into t values (null);"},
			want: want{verdict: sandbox.VerdictNonzeroExit, exit: 1, said: []string{"database or disk is full"}}},
	})
	for name, req := range map[string]Request{
		"args":                    {Language: "sql", Code: "select 1", Args: []string{"x"}},
		"setup that is not there": {Language: "sql", Code: "select 1", Options: LanguageOptions{Setup: []string{"x.sql"}}},
	} {
		if _, err := realEngine(t).Execute(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSQLiteDatabase(t *testing.T) {
	made := expect(t, Request{Language: "sql", Code: "create table things(name, price); insert into things values ('pen', 2), ('book', 20);",
		Inputs: named("shop.db"), Outputs: sandbox.Selection{Patterns: []string{"shop.db"}}}, want{})
	if len(made.Files) != 1 || len(made.Files[0].Data) == 0 {
		t.Fatalf("%+v", made.Files)
	}
	content := made.Files[0].Data
	given := []File{{Path: "shop.db", Data: content}}
	r := expect(t, Request{Language: "sql", Code: "insert into things values ('cup', 5); select sum(price) as total from things;",
		Inputs: given, Outputs: sandbox.Selection{Patterns: []string{"*.db"}}}, want{has: []string{"27"}})
	if len(r.Files) != 1 || len(r.Files[0].Data) == 0 {
		t.Fatalf("%+v", r.Files)
	}
	given[0].Data = r.Files[0].Data
	expect(t, Request{Files: append(tree("q.sql", "select count(*) as n from things"), given...)}, want{has: []string{"3"}})
	// With two databases the executor opens neither.
	r = expect(t, Request{Language: "sql", Code: "attach 'shop.db' as s; select count(*) as n from s.things;",
		Inputs: append(named("other.sqlite"), given...)}, want{has: []string{"3"}})
	if len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "shop.db") {
		t.Errorf("notes are %q", r.Notes)
	}
}

func TestPostgres(t *testing.T) {
	runRows(t, "postgres", []row{
		{name: "several statements",
			req:  Request{Code: "create table t(id int, name text);\ninsert into t values (1,'one'),(22,'zwei');\nselect * from t order by id;"},
			want: want{stdout: "CREATE TABLE\nINSERT 0 2\n id | name \n----+------\n  1 | one\n 22 | zwei\n(2 rows)\n\n", silent: true}},
		{name: "version", req: Request{Code: "show server_version"}, more: func(t *testing.T, r *Result) {
			if !strings.Contains(string(r.Stdout.Bytes()), r.Version) || r.Version == "" {
				t.Errorf("%q is not in %s", r.Version, r.Stdout.Bytes())
			}
		}},
		{name: "set-up", req: Request{Language: "postgres",
			Files: tree("schema.sql", "create table t(x int);", "data.sql", "insert into t select generate_series(1,10);", "q.sql",
				"select sum(x) from t;"), Options: LanguageOptions{Setup: []string{"schema.sql", "data.sql"}}}, want: want{has: []string{" 55\n"}}},
		{name: "syntax error", req: Request{Code: "-- a comment\nselec 1;\nselect 2;\n"},
			want: want{verdict: noSyntax, said: []string{"/workspace/main.sql:2: ERROR:  syntax error"}}},
		{name: "syntax error of a later statement", req: Request{Code: "select 1;\nselec 2;\n"},
			want: want{verdict: nonzero, said: []string{"/workspace/main.sql:2: ERROR:  syntax error"}, has: []string{" 1\n"}}},
		{name: "results as data", req: Request{Code: `create table t(id bigint, s text, ok boolean, n numeric, f float8, b bytea);
				insert into t values (9007199254740993, 'a"b', true, 1.50, 'infinity', '\x01'), (2, null, false, 'NaN', -1e-5, null);
				select * from t; \d t
				select 1 as none where false; select * from nowhere;`},
			want: want{verdict: nonzero, has: []string{"Table \"public.t\""}},
			more: tables(`[{"columns":["id","s","ok","n","f","b"],"rows_total":2,"truncated":false,"rows":[` +
				`[9007199254740993,"a\"b",true,1.50,"Infinity","\\x01"],[2,null,false,"NaN",-1e-05,null]]},` +
				`{"columns":["none"],"rows":[],"rows_total":0,"truncated":false}]`)},
		{name: "error", req: Request{Code: "select 1;\nselect 1/0;\nselect 3;"},
			want: want{verdict: nonzero, said: []string{"/workspace/main.sql:2: ERROR:  division by zero"}}},
		{name: "what only it can",
			req: Request{Code: `do $$ begin raise notice 'from plpgsql'; end $$;
				create function f(x int) returns int language sql as 'select x*2';
				select f(21), '{"a":[1,2]}'::jsonb #> '{a,1}', array_agg(x) from generate_series(1,3) x;`},
			want: want{has: []string{"42", "{1,2,3}"}, said: []string{"from plpgsql"}}},
		{name: "Unicode", req: Request{Code: "select 'grüße 日本 🎉' as s, length('日本') as n"}, want: want{has: []string{"grüße 日本 🎉", "2"}}},
		{name: "files", req: Request{Code: `\copy (select x, x*x from generate_series(1,3) x) to 'squares.csv' csv`,
			Outputs: sandbox.Selection{Patterns: []string{"*.csv"}}}, want: want{files: map[string]string{"squares.csv": "1,1\n2,4\n3,9\n"}}},
		{name: "CSV in", req: Request{Code: "create table c(city text, n int);\n\\copy c from 'in.csv' csv header\nselect sum(n) from c;",
			Inputs: tree("in.csv", "city,n\nWien,3\nLinz,4\n")}, want: want{has: []string{" 7\n"}}},
		{name: "transactions", req: Request{Code: "create table t(x int); begin; insert into t values (1); rollback; select count(*) from t;"},
			want: want{has: []string{" 0\n"}}},
		{name: "processes of its own", req: Request{Code: `\! echo from the shell`}, want: want{has: []string{"from the shell"}}},
		{name: "time limit", req: Request{Code: "select pg_sleep(60)", Limits: sandbox.Limits{Wall: 4 * time.Second}},
			want: want{verdict: sandbox.VerdictTimeLimit}},
		{name: "memory limit", req: Request{Code: "select length(string_agg(repeat('x', 1000), '')) from generate_series(1, 900000) g;",
			Limits: sandbox.Limits{Memory: 192 * sandbox.MiB}}, want: want{verdict: sandbox.VerdictMemoryLimit}},
	})
}

// Concurrent requests make the cluster once, and none of them sees an incomplete one.
func TestPostgresTemplate(t *testing.T) {
	e := realEngine(t)
	var prepared atomic.Int32
	o := e.opts
	o.WarmDir = filepath.Join(shared.dir, "warm-of-its-own")
	o.OnPrepare = func(string) func() { prepared.Add(1); return func() {} }
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			o := o
			o.Toolchains = &toolchain.Finder{NoStore: true} // as another process
			r, err := New(shared.manager, o).Execute(t.Context(),
				Request{Language: "postgres", Code: fmt.Sprintf("select 'run %d'", i), Limits: sandbox.Limits{Wall: 2 * time.Minute}})
			if err != nil || r.Verdict != sandbox.VerdictOK || !strings.Contains(string(r.Stdout.Bytes()), fmt.Sprintf("run %d", i)) {
				t.Errorf("%d: %v, %+v", i, err, r)
			}
		})
	}
	all.Wait()
	dirs, err := filepath.Glob(filepath.Join(o.WarmDir, "postgres-*", "cluster*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%q, %v", dirs, err)
	}
	before, err := os.Stat(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	// What a program does to its database is its own.
	prepared.Store(0)
	for range 2 {
		expectOn(t, New(shared.manager, o), Request{Language: "postgres",
			Code: "create table t(x int); insert into t values (1); select count(*) from t"}, want{has: []string{" 1\n"}})
	}
	after, err := os.Stat(dirs[0])
	if err != nil || !os.SameFile(before, after) || prepared.Load() != 0 {
		t.Errorf("it was made anew: %v", err)
	}
	// A making that was called off leaves nothing that could be taken for a cluster.
	o.WarmDir = filepath.Join(shared.dir, "warm-called-off")
	ctx, cancel := context.WithCancel(t.Context())
	o.OnPrepare = func(string) func() { time.AfterFunc(300*time.Millisecond, cancel); return func() {} }
	_, err = New(shared.manager, o).Execute(ctx, Request{Language: "postgres", Code: "select 1"})
	cancel()
	if err == nil {
		t.Error("nothing was called off: the test proves nothing")
	}
	if dirs, _ := filepath.Glob(filepath.Join(o.WarmDir, "postgres-*", "cluster*")); len(dirs) != 0 {
		t.Errorf("%q is left", dirs)
	}
	o.OnPrepare = nil
	expectOn(t, New(shared.manager, o), Request{Language: "postgres", Code: "select 42"}, want{has: []string{"42"}})
}

package kit

import (
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol/drivertest"
)

// startSQLite starts the driver of a session of SQLite.
func startSQLite(t *testing.T) *drivertest.Driver {
	t.Helper()
	path, err := kitpath.Find()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), kitpath.Name) // by which the test's executable is the kit
	if err := os.Symlink(path, name); err != nil {
		t.Fatal(err)
	}
	d, ready := drivertest.Start(t, nil, name, "sqlite-session")
	if ready.Language != "sql" || !strings.HasPrefix(ready.Version, "3.") || ready.How != "message" {
		t.Errorf("%+v", ready)
	}
	return d
}

func ok(t *testing.T, d *drivertest.Driver, code, printed string) {
	t.Helper()
	if c := d.Execute(code); !c.OK {
		t.Errorf("%q: %+v %+v", code, c.Done, c.Error)
	}
	d.Printed(printed)
}

func TestSQLiteSession(t *testing.T) {
	d := startSQLite(t)
	ok(t, d, "create table t(a integer, b text); insert into t values (1, 'first')", "")
	ok(t, d, "begin; insert into t values (2, 'second'); create temp table u(c)", "")
	ok(t, d, "select count(*) || ' in it' from t", "2 in it")
	ok(t, d, "rollback; select count(*) || ' after it' from t", "1 after it")
	c := d.Execute("insert into t values (3, 'third');\nselect 'partial' from t;\nselect nope from t;")
	if c.OK || c.Error == nil || c.Error.Line != 3 || c.Error.Message != "no such column: nope" || c.Status != 1 {
		t.Errorf("%+v %+v", c.Done, c.Error)
	}
	d.Printed("partial")
	d.Printed("cell:3: no such column: nope\n")
	if c = d.Execute("selec"); c.OK || c.Error == nil || c.Error.Name != "syntax error" {
		t.Errorf("%+v %+v", c.Done, c.Error)
	}
	if c = d.Execute("select 'a\x00b'"); c.OK {
		t.Errorf("%+v", c.Done)
	}
	ok(t, d, "select count(*) || ' remain' from t", "2 remain")
	ok(t, d, ".tables", "t\n")
	const forever = "with recursive r(n) as (select 1 union all select n + 1 from r) select "
	id := d.Send("insert into t values (4, 'kept'); select 'begun'; " + forever + "count(*) from r; select 'never'")
	d.Printed("begun")
	if err := d.Write(protocol.KindInterrupt, id, ""); err != nil {
		t.Fatal(err)
	}
	if c := d.Finish(id); c.OK || !c.Interrupted {
		t.Errorf("%+v", c.Done)
	}
	id = d.Send(forever + "'early' from r where n < 0") // the interrupt may arrive before the cell begins
	if err := d.Write(protocol.KindInterrupt, id, ""); err != nil {
		t.Fatal(err)
	}
	if c := d.Finish(id); c.OK || !c.Interrupted {
		t.Errorf("%+v", c.Done)
	}
	if err := d.Write(protocol.KindInterrupt, id, ""); err != nil { // without a cell
		t.Fatal(err)
	}
	ok(t, d, "select group_concat(a) from t", "1,3,4")
	if strings.Contains(d.Stdout(), "never") {
		t.Error("the cell went on after its interrupt")
	}
}

func TestSQLiteQuestions(t *testing.T) {
	d := startSQLite(t)
	ok(t, d, "create table t(a integer, b text not null); create temp view v as select 1 as one", "")
	for code, want := range map[string]string{
		"": "complete", "-- note": "complete", "/* open": "incomplete", "select 1": "incomplete", "select 1;": "complete",
		"select ';": "incomplete",
		".tables":   "complete", "create trigger x after insert on t begin select 1;": "incomplete",
	} {
		var got protocol.Checked
		d.Ask(protocol.KindCheck, code, &got)
		if got.Status != want {
			t.Errorf("%q is %s instead of %s", code, got.Status, want)
		}
	}
	for code, want := range map[string]protocol.Completed{
		"selec":           {Matches: []string{"select"}, Start: 0, End: 5},
		"SELECT on":       {Matches: []string{"on", "one"}, Start: 7, End: 9},
		"select 'ä', one": {Matches: []string{"one"}, Start: 13, End: 16},
		"zzz":             {Matches: []string{}, Start: 0, End: 3},
	} {
		var got protocol.Completed
		d.Ask(protocol.KindComplete, code, &got, strconv.Itoa(len(code)))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v instead of %+v", code, got, want)
		}
	}
	var found, none protocol.Inspected
	d.Ask(protocol.KindInspect, "T", &found)
	d.Ask(protocol.KindInspect, "nope", &none)
	if found.Text != "CREATE TABLE t(a integer, b text not null);" || !found.Found || none.Found {
		t.Errorf("%+v %+v", found, none)
	}
	var v protocol.Variables
	d.Ask(protocol.KindVariables, "", &v)
	want := []protocol.Variable{{Name: "t", Type: "table", Value: "a integer, b text"}, {Name: "temp.v", Type: "view", Value: "one"}}
	if !reflect.DeepEqual(v.Variables, want) {
		t.Errorf("%+v", v.Variables)
	}
}

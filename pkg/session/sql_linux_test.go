package session

import (
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// testSQL tests what both databases have in common. forever is a query that does not end.
func testSQL(t *testing.T, language, forever string) {
	s := create(t, newManager(t, Options{}), in(language))
	s.do("create table t(a integer, b text); insert into t values (1, 'one')")
	s.shows("select * from t", " a |  b  \n---+-----\n 1 | one\n(1 row)")
	s.do("begin; insert into t values (2, 'two'); create temp table u(c integer)")
	s.shows("select count(*) as n from t", " n \n---\n 2\n(1 row)")
	s.do("rollback")
	s.shows("select count(*) as n from t", " n \n---\n 1\n(1 row)")
	r := s.do("insert into t values (3, 'three');\nselect nope from t;\ndelete from t;")
	if r.Verdict != sandbox.VerdictNonzeroExit || r.Error == nil || r.Error.Line != 2 || r.State != StateIdle {
		t.Errorf("%s %+v %s", r.Verdict, r.Error, r.State)
	}
	s.shows("select count(*) as n from t", " n \n---\n 2\n(1 row)")
	s.cancels("select 'begun'; " + forever)
	s.shows("select count(*) as n from t", " n \n---\n 2\n(1 row)")
	v, err := s.Variables(t.Context())
	if err != nil || len(v.Variables) != 1 || v.Variables[0].Name != "t" || v.Variables[0].Value != "a integer, b text" {
		t.Errorf("%+v %v", v, err)
	}
	for code, want := range map[string]string{"select 1": "incomplete", "select 1;": "complete", "select ';": "incomplete"} {
		if c, err := s.Check(t.Context(), code); err != nil || c.Status != want {
			t.Errorf("%s: %+v %v", code, c, err)
		}
	}
	if c, err := s.Complete(t.Context(), "select * from t", 15); err != nil || len(c.Matches) < 2 || c.Matches[0] != "t" || c.Start != 14 {
		t.Errorf("%+v %v", c, err)
	}
	if i, err := s.Inspect(t.Context(), "t"); err != nil || !i.Found {
		t.Errorf("%+v %v", i, err)
	}
	s.pace("select 1+1 as n", " n \n---\n 2\n(1 row)")
}

func TestSQLiteSession(t *testing.T) {
	testSQL(t, "sql", "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r")
}

func TestPostgresSession(t *testing.T) { testSQL(t, "postgres", "select pg_sleep(1000)") }

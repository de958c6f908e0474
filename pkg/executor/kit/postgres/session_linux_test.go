package postgres

import "testing"

func TestIsComplete(t *testing.T) {
	for code, want := range map[string]bool{
		"": true, "select 1": false, "select 1;": true, "select ';": false, "select ';';": true, `select ";`: false, "-- ;": true,
		"select 1 -- ;": false,
		"/* ; */":       true, "/* /* */": false, "/* /* */ */ select 1;": true, "select $$;": false, "select $$;$$;": true,
		"do $x$ ; $$ ; $x$;": true,
		"select $1;":         true, "select (1;": false, "select (1);": true, `\d`: true, "\\d\nselect 1": false, "select 1 \\gx": true,
		";": true,
	} {
		if got := isComplete(code); got != want {
			t.Errorf("%q: %v", code, got)
		}
	}
}

// FuzzIsComplete: every code is read to its end.
func FuzzIsComplete(f *testing.F) {
	f.Add("select $a$ /* ")
	f.Fuzz(func(_ *testing.T, code string) { isComplete(code) })
}

// FuzzMessages: no message does harm.
func FuzzMessages(f *testing.F) {
	f.Add([]byte("SERROR\x00C42601\x00Mno\x00P8\x00\x00"), []byte("\x00\x01\x00\x00\x00\x011"))
	f.Fuzz(func(_ *testing.T, failure, row []byte) {
		c := &cell{query: "select", error: fields(failure)}
		c.line("x\nselect")
		r := &results{}
		r.add('D', row)
	})
}

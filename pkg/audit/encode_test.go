package audit

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fillIn gives every field of a struct a value, so that one nobody thought of is missed.
func fillIn(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(rapid.Int64Range(0, 1<<34).Draw(t, "time"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillIn(t, v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillIn(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), rapid.IntRange(1, 3).Draw(t, "length"), 3))
		for i := range v.Len() {
			fillIn(t, v.Index(i))
		}
	case reflect.String:
		v.SetString("x" + rapid.String().Draw(t, "text"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(1, 1<<40).Draw(t, "number"))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64Range(1, math.MaxInt64).Draw(t, "count"))
	case reflect.Float64:
		v.SetFloat(rapid.Float64Range(1e-9, 1e12).Draw(t, "float"))
	case reflect.Bool:
		v.SetBool(true)
	default:
		t.Fatalf("a field of kind %s is not filled in: teach this test", v.Kind())
	}
}

// Every field is written under the name that its tag promises, with its value: what encoding/json makes of an entry
// is what a reader finds.
func TestEncoderAgreesWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e Entry
		fillIn(t, reflect.ValueOf(&e).Elem())
		line, err := e.line()
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var got, reference any
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if err := json.Unmarshal(want, &reference); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, reference) {
			t.Fatalf("\n got %s\nwant %s", line, want)
		}
	})
	empty := Entry{Prev: strings.Repeat("0", hashLen), Metrics: &monitor.Metrics{}, Policy: Policy{Limits: &sandbox.Limits{}}, Repaired: &Repaired{}}
	line, err := empty.line()
	must(t, err)
	want, err := json.Marshal(empty)
	must(t, err)
	if got := strings.TrimSuffix(string(line), "\n"); got != string(want) {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestWhatJSONDoesNotHave(t *testing.T) {
	l := newLog(t, Options{})
	e := sample(0)
	e.Metrics.CPUPercent = math.NaN()
	if err := l.Append(e); err == nil || !strings.Contains(err.Error(), "cpu_percent is NaN") {
		t.Errorf("%v", err)
	}
	e = sample(0)
	e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := l.Append(e); err == nil || !strings.Contains(err.Error(), "year 10000") {
		t.Errorf("%v", err)
	}
	must(t, l.Append(sample(0)))
	intact(t, l, 1)
}

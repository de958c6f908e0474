package executor

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestBadRequests: names that could mean another place (A7), and requests that say too little or too much.
func TestBadRequests(t *testing.T) {
	e := New(nil, Options{})
	long := strings.Repeat("x", 256)
	for name, c := range map[string]struct {
		req  Request
		says string
	}{
		"nothing":            {Request{}, "no code"},
		"nothing but a name": {Request{Language: "python", Name: "x.py"}, "no code"},
		"both":               {Request{Code: "1", Files: named("a.py")}, "both"},
		"unknown language":   {Request{Code: "1", Language: "pyton"}, "python"},
		"unknown code":       {Request{Code: "print(1)"}, "nothing says"},
		"absolute":           {Request{Files: named("/etc/x.py")}, "/etc/x.py"},
		"up":                 {Request{Files: named("../x.py")}, "../x.py"},
		"up inside":          {Request{Files: named("a/../../x.py")}, "a/../../x.py"},
		"dot":                {Request{Files: named("./x.py")}, "./x.py"},
		"the tree":           {Request{Files: named(".")}, `"."`},
		"empty":              {Request{Files: named("")}, "no name"},
		"double slash":       {Request{Files: named("a//x.py")}, "a//x.py"},
		"trailing slash":     {Request{Files: named("a/")}, `"a/"`},
		"NUL":                {Request{Files: named("a\x00.py")}, "NUL"},
		"long part":          {Request{Files: named(long + "/x.py")}, "256 bytes"},
		"long":               {Request{Files: named(strings.Repeat("x/", 2000) + "x.py")}, "bytes long"},
		"twice":              {Request{Files: named("a.py", "a.py")}, "two files"},
		"file and directory": {Request{Files: named("a", "a/b.py")}, "directory of"},
		"input up":           {Request{Language: "python", Code: "1", Inputs: named("../x")}, "../x"},
		"input absolute":     {Request{Language: "python", Code: "1", Inputs: named("/x")}, `"/x"`},
		"name up":            {Request{Language: "python", Code: "1", Name: "../../etc/cron.d/x"}, "../../etc"},
		"too many":           {Request{Files: make([]File, language.MaxFiles+1)}, "most is"},
		"entry not there":    {Request{Files: named("a.py", "b.py"), Entry: "c.py"}, "c.py"},
		"foreign option":     {Request{Language: "python", Code: "1", Options: LanguageOptions{Commands: []string{"ls"}}}, "commands"},
		"foreign setup":      {Request{Language: "shell", Code: "1", Options: LanguageOptions{Setup: []string{"x"}}}, "setup"},
		"foreign imports":    {Request{Language: "shell", Code: "1", Options: LanguageOptions{ForbidImports: []string{"x"}}}, "forbid-imports"},
		"foreign release":    {Request{Language: "shell", Code: "1", Options: LanguageOptions{Release: true}}, "release"},
		"foreign edition":    {Request{Language: "shell", Code: "1", Options: LanguageOptions{Edition: "2021"}}, "edition"},
		"foreign test":       {Request{Language: "shell", Code: "1", Options: LanguageOptions{Test: true}}, "test"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := e.newJob(&c.req)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v does not say %q", err, c.says)
			}
			if name != "image" && !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("%v is not called invalid", err)
			}
		})
	}
	j := fakeJob(t, Request{Language: "python", Code: "1", Options: LanguageOptions{ForbidImports: []string{"a b"}}})
	if _, err := newPlan(j, bigMachine); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "a b") {
		t.Error(err)
	}
	for _, pattern := range []string{"../etc/passwd", "/etc/passwd", "a/../../x", "[", "/tmp/../etc/x", "/"} {
		j := fakeJob(t, Request{Language: "python", Code: "1", Outputs: sandbox.Selection{Patterns: []string{pattern}}})
		if _, err := newPlan(j, bigMachine); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s is found out after the run: %v", pattern, err)
		}
	}
	j = fakeJob(t, Request{Language: "python", Code: "1", Outputs: sandbox.Selection{Patterns: slices.Repeat([]string{"x"}, 1000)}})
	if _, err := newPlan(j, bigMachine); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
	// The control: what is allowed, strange as it is.
	if _, err := e.newJob(&Request{Files: named("ä b\n.py", "...py", "-x.py", "a.py.d/x"), Entry: "-x.py"}); err != nil {
		t.Error(err)
	}
}

func TestFileJSON(t *testing.T) {
	for _, f := range []File{
		{Path: "a.py", Data: []byte("text ü")},
		{Path: "b.bin", Data: []byte{0xff, 0, 1}, Mode: 0o755},
		{Path: "c", Data: []byte{}},
	} {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var back File
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(f, back) {
			t.Errorf("%s is %+v (%v) instead of %+v", text, back, err, f)
		}
	}
	opened := File{Path: "x", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("opened")), nil }}
	if text, err := json.Marshal(opened); err != nil || !strings.Contains(string(text), "opened") {
		t.Errorf("%s, %v", text, err)
	}
	for _, bad := range []string{
		`{"path":"x","content":"%","encoding":"base64"}`, `{"path":"x","encoding":"rot13"}`, `{"path":"x","mode":"9"}`, `{"path":"x","mode":"7x"}`, `{"path":"x","mode":"4755"}`, `{"path":"x","mode":"rwx"}`, `[]`,
	} {
		var f File
		if err := json.Unmarshal([]byte(bad), &f); err == nil {
			t.Errorf("%s was taken for %+v", bad, f)
		}
	}
}

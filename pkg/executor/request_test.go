package executor

import (
	"errors"
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
		"link up":            {Request{Files: []File{{Path: "a/x.py", Link: "../../x.py"}}}, "../../x.py"},
		"link absolute":      {Request{Files: []File{{Path: "x.py", Link: "/etc/passwd"}}}, "/etc/passwd"},
		"file below a link":  {Request{Files: append(named("a/b.py"), File{Path: "a", Link: "c"})}, "directory of"},
		"foreign module":     {Request{Language: "shell", Code: "1", Options: LanguageOptions{Module: "x"}}, "module"},
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

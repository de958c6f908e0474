package template

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Create writes a commented starter into a directory, which it makes where there is none, and
// returns the file's name. It never writes over a file.
func Create(dir, name, language string) (string, error) {
	l := canonical(language)
	if l == "" {
		return "", sandbox.Invalid("--lang", "a template needs a language: %s", strings.Join(languageNames(), ", "))
	}
	body, known := starters()[l]
	if !known {
		return "", sandbox.Invalid(fmt.Sprintf("--lang %q", language), "no such language: %s; there are: %s", withNear([]string{language}, languageNames()), strings.Join(languageNames(), ", "))
	}
	if _, err := callIdent(nil, []any{strings.ReplaceAll(name, "-", "_")}); err != nil || strings.Contains(name, ".") {
		return "", sandbox.Invalid(fmt.Sprintf("template %q", name), "a template's name is made of letters, digits, - and _")
	}
	path := filepath.Join(dir, name+"."+extensionOf(l))
	failed := func(err error) error { return &sandbox.Error{Op: "template " + path, Err: err} }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", failed(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return "", &sandbox.Error{Op: "template " + path, Kind: sandbox.ErrInvalid, Err: errors.New("it is there already"), Hint: "another name"}
	}
	if err != nil {
		return "", failed(err)
	}
	_, err = fmt.Fprintf(f, starterHead, name, l, body)
	return path, errors.Join(err, f.Close())
}

func languageNames() []string {
	names := make([]string, len(languages))
	for i, l := range languages {
		names[i] = l.name
	}
	return names
}

const starterHead = `---
# What list and show say.
name: %s
description: Greets somebody
language: %s
# Each variable the body uses. One without a default has to be given: --var who=World
variables:
  who:
    description: whom to greet
  times:
    description: how many times
    default: 1
---
{{- /* The body. {{quote .who}} is a string literal of the language, whatever is in it; other
functions: json, indent, lines, join, split, upper, lower, trim, replace, contains, ident, list, len,
index, add, eq, ne, lt, le, gt, ge, and, or, not. Lines "-- PATH --" begin further files. */ -}}
%s`

// starters are bodies that run as they are.
func starters() map[string]string {
	return map[string]string{
		"go": `package main

import "fmt"

func main() {
	for range {{.times}} {
		fmt.Println("Hello, " + {{quote .who}})
	}
}
`,
		"python": `for _ in range({{.times}}):
    print("Hello, " + {{quote .who}})
`,
		"javascript": `for (let i = 0; i < {{.times}}; i++) console.log("Hello, " + {{quote .who}})
`,
		"typescript": `const who: string = {{quote .who}}
for (let i = 0; i < {{.times}}; i++) console.log("Hello, " + who)
`,
		"rust": `fn main() {
    for _ in 0..{{.times}} {
        println!("Hello, {}", {{quote .who}});
    }
}
`,
		"java": `public class Main {
  public static void main(String[] args) {
    for (int i = 0; i < {{.times}}; i++) System.out.println("Hello, " + {{quote .who}});
  }
}
`,
		"shell": `for ((i = 0; i < {{.times}}; i++)); do
  printf 'Hello, %s\n' {{quote .who}}
done
`,
		"sql": `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {{.times}})
SELECT 'Hello, ' || {{quote .who}} FROM n;
`,
	}
}

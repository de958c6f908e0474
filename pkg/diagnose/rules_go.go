package diagnose

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// goRules explain errors of Go's compiler, of vet and of Go programs.
var goRules = []rule{
	{kind: KindModule, pattern: "no required module provides package *", explain: missingGoModule},
	{kind: KindModule, pattern: "package * is not in std", explain: missingGoPackage},
	{kind: KindVersion, pattern: "requires go >= * (running go *;", cause: "the program needs Go $1; Go $2 is installed",
		suggest: []string{"a lower version after go in go.mod", stepImage}},
	{kind: KindVersion, pattern: "requires go* or later", cause: "the file uses what Go $1 has", suggest: []string{"go $1 in go.mod"}},
	{kind: KindMain, pattern: "function main is undeclared in the main package", cause: "the package has no function main",
		suggest: []string{"func main() { … }"}},
	{kind: KindMain, pattern: "is not a main package", cause: "a program is a package main", suggest: []string{"package main"}},
	{kind: KindName, pattern: "undefined: *", explain: undefinedGoName},
	{kind: KindName, pattern: "* undefined (type * has no field or method *, but does have * *)",
		suggest: []string{"probably $5 is meant"}},
	{kind: KindName, pattern: "* undefined (type * has no field or method *)", cause: "$2 has no $3"},
	{kind: KindCompile, pattern: "declared and not used: *", cause: "Go refuses variables that are not used",
		suggest: []string{"remove $1, or write _ = $1"}},
	{kind: KindCompile, pattern: `"*" imported and not used`, cause: "Go refuses imports that are not used",
		suggest: []string{`remove the import "$1"`}},
	{kind: KindCompile, pattern: "missing return", cause: "the function can end without a return"},
	{kind: KindType, pattern: "cannot use * (* of type *) as * value in", cause: "the value is of type $3, and $4 is needed"},
	{kind: KindType, pattern: "cannot use * as * value in"},
	{kind: KindType, pattern: "mismatched types * and *)", cause: "$1 and $2 can not be combined",
		suggest: []string{"convert one of them"}},
	{kind: KindType, pattern: "not enough arguments in call to *"},
	{kind: KindType, pattern: "too many arguments in call to *"},
	{kind: KindType, pattern: "assignment mismatch: "},
	{kind: KindValue, pattern: "unexpected end of JSON input", cause: "the JSON is empty or cut off"},
	{kind: KindSyntax, pattern: "syntax error: "},
	{kind: KindIndex, pattern: "index out of range [*] with length *", explain: indexWithLength},
	{kind: KindIndex, pattern: "index out of range [*]", cause: "the index is $1"},
	{kind: KindIndex, pattern: "slice bounds out of range [*] with capacity *", cause: "the bounds are $1, and the capacity is $2"},
	{kind: KindIndex, pattern: "slice bounds out of range [*] with length *", cause: "the bounds are $1, and the length is $2"},
	{kind: KindIndex, pattern: "slice bounds out of range [*]", cause: "the bounds are $1"},
	{kind: KindNull, pattern: "invalid memory address or nil pointer dereference",
		cause:   "a pointer is nil: it was never set, or a function returned nil",
		suggest: []string{"check the pointer, and the error returned with it, before it is used"}},
	{kind: KindNull, pattern: "assignment to entry in nil map", cause: "the map is nil: it was declared and not made",
		suggest: []string{"make(map[K]V)"}},
	{kind: KindDivision, pattern: "integer divide by zero", cause: "the divisor is 0",
		suggest: []string{"check the divisor before the division"}},
	{kind: KindDeadlock, pattern: "all goroutines are asleep - deadlock!",
		cause: "every goroutine waits for another: probably a channel without a receiver or sender, or a WaitGroup that is never done"},
	{kind: KindRecursion, pattern: "stack overflow",
		cause:   "a function calls itself too often: probably the end of the recursion is never reached",
		suggest: []string{"check the condition that ends the recursion"}},
	{kind: KindType, pattern: "interface conversion: * is *, not *", cause: "the value is of type $2, and not $3",
		suggest: []string{"value, ok := x.(T)"}},
	{kind: KindError, pattern: "concurrent map writes", cause: "several goroutines write to a map at a time",
		suggest: []string{"guard it with a sync.Mutex"}},
	{kind: KindError, pattern: "send on closed channel", cause: "a channel was closed before the last value was sent"},
	{kind: KindValue, pattern: "strconv.*: parsing *: invalid syntax", cause: "the text $2 is not a number"},
	{kind: KindCommand, pattern: `exec: "*": executable file not found in $PATH`, cause: "the command $1 is not in the sandbox"},
}

// goStandard are common packages of the standard library.
var goStandard = [...]string{
	"bufio", "bytes", "cmp", "compress/gzip", "container/heap", "container/list", "context", "crypto/rand", "crypto/sha256",
	"database/sql",
	"encoding/base64", "encoding/binary", "encoding/csv", "encoding/hex", "encoding/json", "encoding/xml", "errors", "flag", "fmt",
	"html/template", "io",
	"io/fs", "iter", "log", "log/slog", "maps", "math", "math/big", "math/bits", "math/rand", "net", "net/http", "net/url", "os",
	"os/exec", "os/signal",
	"path", "path/filepath", "reflect", "regexp", "runtime", "slices", "sort", "strconv", "strings", "sync", "sync/atomic", "testing",
	"text/template", "time",
	"unicode", "unicode/utf8",
}

// missingGoModule names the module of a package: with a known host the first three parts, else the package.
func missingGoModule(c *inquiry, _ *thrown, m []string) *answer {
	name, _, _ := strings.Cut(m[0], ":")
	name, _, _ = strings.Cut(name, ";")
	name = strings.TrimSpace(name)
	if !isName(name, "./-~") {
		return answered(KindModule, "")
	}
	parts := strings.Split(name, "/")
	module := name
	if len(parts) > 2 && (parts[0] == "github.com" || parts[0] == "gitlab.com" || parts[0] == "bitbucket.org" || parts[0] == "golang.org") {
		module = strings.Join(parts[:3], "/")
		if len(parts) > 3 && len(parts[3]) > 1 && parts[3][0] == 'v' && atoi(parts[3][1:]) > 1 {
			module += "/" + parts[3]
		}
	}
	return answered(KindModule, "no module with the package "+name+" is installed in the sandbox", c.depsStep(module))
}

func missingGoPackage(_ *inquiry, _ *thrown, m []string) *answer {
	name := m[0]
	last := path.Base(name)
	var bases []string
	for _, p := range goStandard {
		if path.Base(p) == last && p != name {
			return answered(KindModule, "the standard library has no package "+name, didYouMean(p))
		}
		bases = append(bases, path.Base(p))
	}
	if similar := near(last, bases); similar != "" {
		return answered(KindModule, "the standard library has no package "+name, didYouMean(goStandard[slices.Index(bases, similar)]))
	}
	return answered(KindModule, "the standard library has no package "+name, didYouMean(near(name, goStandard[:])))
}

func undefinedGoName(c *inquiry, t *thrown, m []string) *answer {
	name, before := m[0], ""
	if i := strings.IndexByte(name, '.'); i > 0 {
		before, name = name[:i], name[i+1:]
	}
	if before != "" {
		return answered(KindName, "the package "+before+" has no "+name)
	}
	for _, p := range goStandard {
		if path.Base(p) == name {
			return answered(KindName, "the package "+p+" is not imported", `import "`+p+`"`)
		}
	}
	if similar := near(name, c.identifiers(t.at)); similar != "" {
		return answered(KindName, "nothing has the name "+name, didYouMean(similar))
	}
	return answered(KindName, "nothing has the name "+name)
}

func indexWithLength(_ *inquiry, _ *thrown, m []string) *answer {
	length := strings.TrimSpace(m[1])
	if i := strings.IndexFunc(length, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		length = length[:i]
	}
	switch {
	case length == "0":
		return answered(KindIndex, "the index is "+m[0]+", and there are no elements")
	case strings.HasPrefix(m[0], "-"):
		return answered(KindIndex, "the index "+m[0]+" is negative")
	}
	return answered(KindIndex, "the index is "+m[0]+" and the length is "+length+": the last index is "+number(atoi(length)-1))
}

// rustRules explain errors of rustc and of Rust programs. rustc's own help is kept where no rule has a step.
var rustRules = []rule{
	{kind: KindModule, class: "E0432|E0433", explain: missingCrate},
	{kind: KindModule, class: "E0463", pattern: "can't find crate for `*`", explain: missingCrateOf},
	{kind: KindMain, class: "E0601", cause: "the program has no function main", suggest: []string{"fn main() { … }"}},
	{kind: KindName, class: "E0425|E0412|E0405", pattern: "cannot find * `*`"},
	{kind: KindName, class: "E0599", pattern: "no * named `*` found for * `*`", cause: "$4 has no $1 $2"},
	{kind: KindName, pattern: "cannot find macro `*`", cause: "there is no macro $1!"},
	{kind: KindType, class: "E0308", pattern: "mismatched types", explain: rustTypes},
	{kind: KindCompile, class: "E0382", pattern: "borrow of moved value: `*`", cause: "$1 has moved to another owner before this use",
		suggest: []string{"borrow it with &$1, or give away $1.clone()"}},
	{kind: KindCompile, class: "E0382", pattern: "use of moved value: `*`", cause: "$1 has moved to another owner before this use",
		suggest: []string{"borrow it with &$1, or give away $1.clone()"}},
	{kind: KindCompile, class: "E0384|E0596", pattern: "`*`", cause: "$1 is not declared as mutable", suggest: []string{"let mut $1"}},
	{kind: KindVersion, class: "E0554|E0658", cause: "the feature is not in this stable Rust", suggest: []string{stepImage}},
	{kind: KindSyntax, pattern: "expected one of "},
	{kind: KindSyntax, pattern: "this file contains an unclosed delimiter", cause: "a bracket is not closed"},
	{kind: KindIndex, class: "panic", pattern: "index out of bounds: the len is * but the index is *",
		explain: func(c *inquiry, t *thrown, m []string) *answer { return indexWithLength(c, t, []string{m[1], m[0]}) }},
	{kind: KindIndex, class: "panic", pattern: "range end index * out of range for slice of length *",
		cause: "the range ends at $1, and the length is $2"},
	{kind: KindNull, class: "panic", pattern: "called `Option::unwrap()` on a `None` value", cause: "the value is None",
		suggest: []string{"match, if let, or unwrap_or(…) in place of unwrap()"}},
	{kind: KindValue, class: "panic", pattern: "called `Result::unwrap()` on an `Err` value: ParseIntError { kind: * }",
		cause:   "the text is not a number ($1)",
		suggest: []string{"match, or unwrap_or(…) in place of unwrap()"}},
	{kind: KindValue, class: "panic", pattern: "called `Result::unwrap()` on an `Err` value: ParseFloatError",
		cause: "the text is not a number"},
	{kind: KindDivision, class: "panic", pattern: "attempt to divide by zero", cause: "the divisor is 0",
		suggest: []string{"checked_div, or check the divisor"}},
	{kind: KindValue, class: "panic", pattern: "attempt to * with overflow", cause: "the result does not fit into its type",
		suggest: []string{"a larger type, or checked_, wrapping_ or saturating_ operations"}},
	{kind: KindRecursion, pattern: "stack overflow",
		cause:   "a function calls itself too often: probably the end of the recursion is never reached",
		suggest: []string{"check the condition that ends the recursion"}},
	{kind: KindError, class: "panic", pattern: "already borrowed", cause: "a RefCell is borrowed twice at a time"},
}

// rustStandard are crates that need no installation.
var rustStandard = [...]string{"std", "core", "alloc", "crate", "self", "super"}

// rustCrates are the crates whose names have dashes.
var rustCrates = [...][2]string{
	{"actix_web", "actix-web"}, {"async_trait", "async-trait"}, {"aws_sdk_s3", "aws-sdk-s3"}, {"chrono_tz", "chrono-tz"},
	{"crossbeam_channel", "crossbeam-channel"}, {"crossbeam_utils", "crossbeam-utils"}, {"futures_util", "futures-util"},
	{"num_bigint", "num-bigint"},
	{"num_traits", "num-traits"}, {"proc_macro2", "proc-macro2"}, {"tokio_stream", "tokio-stream"},
	{"tokio_util", "tokio-util"}, {"tower_http", "tower-http"}, {"tracing_subscriber", "tracing-subscriber"},
	{"unicode_segmentation", "unicode-segmentation"}, {"unicode_width", "unicode-width"}, {"wasm_bindgen", "wasm-bindgen"},
}

func missingCrate(c *inquiry, t *thrown, _ []string) *answer {
	for _, pattern := range []string{"unresolved import `*`", "use of undeclared crate or module `*`",
		"use of unresolved module or unlinked crate `*`",
		"use of undeclared type `*`", "cannot find type `*`", "cannot find module or crate `*`"} {
		parts, ok := capture(pattern, t.text)
		if !ok {
			continue
		}
		name, further, _ := strings.Cut(parts[0], "::")
		if strings.Contains(pattern, "type") {
			return answered(KindName, "nothing has the name "+name+" here")
		}
		if slices.Contains(rustStandard[:], name) {
			return answered(KindModule, name+" has no "+further)
		}
		if !isName(name, "-") {
			break
		}
		if similar := near(name, rustStandard[:3]); similar != "" {
			return answered(KindModule, "there is no crate "+name, didYouMean(similar))
		}
		if c.hasFile(name + ".rs") {
			return answered(KindModule, "the file of the module "+name+" is there, and the module is not declared", "mod "+name+";")
		}
		return answered(KindModule, "the crate "+name+" is not installed in the sandbox", c.depsStep(cmp.Or(lookUp(rustCrates[:],
			name), name)))
	}
	return answered(KindModule, "")
}

func missingCrateOf(c *inquiry, _ *thrown, m []string) *answer {
	if m[0] == "std" || m[0] == "core" || !isName(m[0], "-") {
		return answered(KindModule, "the library "+quoted(m[0])+" is missing for this target")
	}
	return answered(KindModule, "the crate "+m[0]+" is not installed in the sandbox", c.depsStep(cmp.Or(lookUp(rustCrates[:], m[0]),
		m[0])))
}

func rustTypes(c *inquiry, _ *thrown, _ []string) *answer {
	for _, line := range c.stderr {
		if parts, ok := capture("expected `*`, found `*`", line); ok {
			return answered(KindType, "the value is of type "+parts[1]+", and "+parts[0]+" is needed")
		}
	}
	return &answer{kind: KindType}
}

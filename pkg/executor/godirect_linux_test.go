package executor

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// directPrograms are whole ones and broken ones, each in its own way.
var directPrograms = map[string]string{
	"hello":     "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n",
	"no import": "package main\n\nfunc main() { println(1) }\n",
	"several imports": "package main\n\nimport (\n\t\"bufio\"\n\t\"encoding/json\"\n\tf \"fmt\"\n\t\"os\"\n\t\"sort\"\n\t\"strings\"\n" +
		"\t\"time\"\n)\n\nfunc main() {\n\tb, err := json.Marshal(map[string]int{\"a\": 1})\n" +
		"\tf.Println(string(b), err, strings.ToUpper(\"x\"), time.Duration(3))\n\tx := []int{2, 1}\n\tsort.Ints(x)\n" +
		"\tw := bufio.NewWriter(os.Stdout)\n\tf.Fprintln(w, x)\n\tw.Flush()\n}\n",
	"rare import": "package main\n\nimport (\n\t\"container/ring\"\n\t\"fmt\"\n)\n\nfunc main() { fmt.Println(ring.New(3).Len()) }\n",
	"build info": "package main\n\nimport (\n\t\"fmt\"\n\t\"runtime\"\n\t\"runtime/debug\"\n)\n\nfunc main() {\n" +
		"\ti, ok := debug.ReadBuildInfo()\n\tfmt.Println(i, ok, runtime.Version(), runtime.GOROOT())\n}\n",
	"panic": "package main\n\nimport \"errors\"\n\nfunc f(n int) {\n\tif n == 0 {\n\t\tpanic(errors.New(\"no\"))\n\t}\n" +
		"\tf(n - 1)\n}\n\nfunc main() { f(3) }\n",
	"caller": "package main\n\nimport (\n\t\"fmt\"\n\t\"runtime\"\n)\n\nfunc main() { fmt.Println(runtime.Caller(0)) }\n",
	"generics": "package main\n\nimport \"fmt\"\n\nfunc m[T, U any](l []T, f func(T) U) (r []U) {\n\tfor _, x := range l {\n" +
		"\t\tr = append(r, f(x))\n\t}\n\treturn r\n}\n\n" +
		"func main() { fmt.Println(m([]int{1, 2}, func(i int) string { return fmt.Sprint(i * i) })) }\n",
	"line directive":  "package main\n\nfunc main() {\n//line other.go:7\n\tpanic(1)\n}\n",
	"cgo":             "package main\n\nimport \"C\"\n\nfunc main() {}\n",
	"embed":           "package main\n\nimport _ \"embed\"\n\n//go:embed main.go\nvar s string\n\nfunc main() { println(len(s)) }\n",
	"constraint":      "//go:build ignore\n\npackage main\n\nfunc main() { println(2) }\n",
	"debug directive": "//go:debug panicnil=1\npackage main\n\nfunc main() { defer func() { println(recover() == nil) }(); panic(nil) }\n",
	"linkname": "package main\n\nimport _ \"unsafe\"\n\n//go:linkname nanotime runtime.nanotime\nfunc nanotime() int64\n\n" +
		"func main() { println(nanotime() > 0) }\n",
	"no body":          "package main\n\nfunc f()\n\nfunc main() { f() }\n",
	"unused variable":  "package main\n\nfunc main() {\n\tx := 1\n\ty()\n}\n",
	"unused import":    "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { os.Exit(0) }\n",
	"syntax":           "package main\n\nfunc main() {\n\tif {\n}\n",
	"no main":          "package main\n\nfunc f() {}\n",
	"main twice":       "package main\n\nfunc main() {}\nfunc main() {}\n",
	"main with a type": "package main\n\nfunc main() int { return 1 }\n",
	"unknown package":  "package main\n\nimport \"no/such\"\n\nfunc main() { such.F() }\n",
	"foreign package":  "package main\n\nimport \"github.com/x/y\"\n\nfunc main() { y.F() }\n",
	"internal package": "package main\n\nimport \"internal/abi\"\n\nfunc main() { println(abi.FuncPCABI0(main)) }\n",
	"vendored package": "package main\n\nimport \"golang.org/x/net/http/httpguts\"\n\n" +
		"func main() { println(httpguts.ValidHeaderFieldName(\"a\")) }\n",
	"vendor by name": "package main\n\nimport \"vendor/golang.org/x/net/http/httpguts\"\n\n" +
		"func main() { println(httpguts.ValidHeaderFieldName(\"a\")) }\n",
	"command":           "package main\n\nimport \"cmd/go\"\n\nfunc main() {}\n",
	"local import":      "package main\n\nimport \"./x\"\n\nfunc main() { x.F() }\n",
	"odd import":        "package main\n\nimport \"fmt \"\n\nfunc main() {}\n",
	"import of nothing": "package main\n\nimport \"\"\n\nfunc main() {}\n",
	"types": "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tvar s string = 1\n\tvar i int = \"a\"\n\tfmt.Println(s + i)\n" +
		"\tfmt.Printn()\n}\n",
	"ten errors":        "package main\n\nfunc main() {\n" + strings.Repeat("\tundefined()\n", 15) + "}\n",
	"import cycle":      "package main\n\nimport \"main\"\n\nfunc main() {}\n",
	"not text":          "package main\n\nfunc main() { println(\"\xff\xfe\") }\n",
	"zero byte":         "package main\n\nfunc main() { println(\"\x00\") }\n",
	"import comment":    "package main // import \"x.org/y\"\n\nfunc main() { println(3) }\n",
	"type too large":    "package main\n\ntype t [1 << 62]int\n\nfunc main() { var x t; println(len(x)) }\n",
	"constant overflow": "package main\n\nfunc main() { var x int8 = 300; println(x) }\n",
	"old loop": "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tvar f []func() int\n\tfor i := 0; i < 3; i++ {\n" +
		"\t\tf = append(f, func() int { return i })\n\t}\n\tfor _, g := range f {\n\t\tfmt.Print(g())\n\t}\n}\n",
	"vet would mind": "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Printf(\"%d\\n\", \"x\") }\n",
}

// addresses are in traces, where the runtime does not know whether they are right.
var addresses = regexp.MustCompile(`0x[0-9a-f]+\?`)

// What the compiler and the linker make of a program, and say of it, is what the go command does.
func TestGoDirectly(t *testing.T) {
	e := realEngine(t)
	opts := e.opts
	opts.Cache = nil
	e = New(e.manager, opts)
	for name, code := range directPrograms {
		t.Run(name, func(t *testing.T) {
			direct, err := e.Execute(t.Context(), Request{Language: "go", Code: code})
			if err != nil {
				t.Fatal(err)
			}
			// A variable of the go command's, and even one that means nothing, leaves it to the go command.
			asked, err := e.Execute(t.Context(), Request{Language: "go", Code: code, Env: map[string]string{"GO_NOTHING": "1"}})
			if err != nil {
				t.Fatal(err)
			}
			if a, b := string(direct.Stdout.Bytes()), string(asked.Stdout.Bytes()); a != b {
				t.Errorf("stdout: %q instead of %q", a, b)
			}
			if a, b := addresses.ReplaceAllString(string(direct.Stderr.Bytes()), "0x…?"),
				addresses.ReplaceAllString(string(asked.Stderr.Bytes()), "0x…?"); a != b {
				t.Errorf("stderr: %q instead of %q", a, b)
			}
			if direct.Verdict != asked.Verdict || direct.Exit != asked.Exit {
				t.Errorf("%s, %+v instead of %s, %+v", direct.Verdict, direct.Exit, asked.Verdict, asked.Exit)
			}
		})
	}
}

// The go command is not asked where it need not be: with one that can only fail, a program is still built, and one that is wrong is not.
func TestGoIsNotAsked(t *testing.T) {
	e := realEngine(t)
	expectOn(t, e, Request{Language: "go", Code: directPrograms["hello"]}, want{stdout: "hello\n"}) // the cache is filled
	opts := e.opts
	opts.Cache = nil
	e = New(e.manager, opts)
	for _, c := range []struct {
		code string
		want want
	}{
		{directPrograms["hello"] + "// again\n", want{stdout: "hello\n"}},
		{directPrograms["unused variable"], want{verdict: sandbox.VerdictCompileError}},
		{directPrograms["constraint"], want{verdict: sandbox.VerdictCompileError}},
	} {
		req := Request{Language: "go", Code: c.code, OnPlan: func(p *Plan) {
			for _, args := range [][]string{p.Phases[0].Process.Args, p.Phases[0].Again.Args} {
				i := slices.IndexFunc(args, func(a string) bool { return filepath.Base(a) == "go" && filepath.IsAbs(a) })
				if i >= 0 { // the two may be one
					args[i] = "/bin/false"
				}
			}
		}}
		if r := expectOn(t, e, req, c.want); c.want.verdict != "" && len(r.Stderr.Bytes()) > 0 {
			t.Errorf("stderr of another program: %s", r.Stderr.Bytes())
		}
	}
}

package executor

import (
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// customEngine is the shared engine with languages of a file.
func customEngine(t *testing.T) *Executor {
	e := realEngine(t)
	o := e.opts
	o.Languages = cLanguages(t)
	return New(e.manager, o)
}

func TestCustomLanguages(t *testing.T) {
	e := customEngine(t)
	runRowsOn(t, e, "c", []row{
		{name: "single file", req: Request{Code: "#include <stdio.h>\nint main(int c, char **v){ printf(\"hello %s\\n\", v[1]); return 0; }",
			Args: []string{"you"}}, want: want{stdout: "hello you\n", silent: true}},
		{name: "several files",
			req: Request{Files: tree("main.c",
				"#include \"util.h\"\n#include <stdio.h>\n#include <math.h>\nint main(){ printf(\"%d %.0f\\n\", f(), sqrt(16)); }", "util.c",
				"int f(){return 42;}", "util.h", "int f();")}, want: want{stdout: "42 4\n"}},
		{name: "stdin and exit code", req: Request{Code: "#include <stdio.h>\nint main(){ int c, n=0; while((c=getchar())!=EOF) n++; return n; }",
			Stdin: strings.NewReader("12345")}, want: want{verdict: nonzero, exit: 5}},
		{name: "compile error", req: Request{Code: "int main(){\n  return x;\n}"},
			want: want{verdict: noSyntax, said: []string{"main.c:2:10: error", "undeclared"}}},
		{name: "crash", req: Request{Code: "#include <stdlib.h>\nint main(){ abort(); }"}, want: want{verdict: sandbox.VerdictSignaled}},
		{name: "memory limit of the file",
			req:  Request{Code: "#include <stdlib.h>\n#include <string.h>\nint main(){ for(;;) memset(malloc(1<<20), 1, 1<<20); }"},
			want: want{verdict: sandbox.VerdictMemoryLimit}, more: func(t *testing.T, r *Result) {
				if r.Limits.Memory != 64*sandbox.MiB {
					t.Errorf("the limit is %v", r.Limits.Memory)
				}
			}},
	})
	runRowsOn(t, e, "c++", []row{
		{name: "C++",
			req: Request{Files: tree("main.cpp",
				"#include <iostream>\n#include <cstdlib>\n#include <util.h>\n"+
					"int main(int c, char **v){ std::cout << f() << v[1] << getenv(\"GREETING\") << std::endl; }", "src/util.cc",
				"#include <util.h>\nint f() { return 42; }", "include/util.h", "int f();")}, want: want{stdout: "42--from the file\n"}},
		{name: "awk by shebang", req: Request{Files: tree("sum", "#!/usr/bin/env -S awk -f\n{s += $1}\nEND {print s}"),
			Stdin: strings.NewReader("1\n2\n")}, want: want{stdout: "3\n"}},
		{name: "the others are still there", req: Request{Language: "python", Code: "print(1)"}, want: want{stdout: "1\n"}},
	})
	req := Request{Language: "c", Code: "#include <stdio.h>\nint main(){puts(\"once\");}"}
	first, second := expectOn(t, e, req, want{}), expectOn(t, e, req, want{stdout: "once\n"})
	if first.Phases[0].Cached || !second.Phases[0].Cached || first.Version == "" {
		t.Errorf("%+v\n%+v", first.Phases, second.Phases)
	}
}

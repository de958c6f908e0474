package golang

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// Tests are compiled in the compile phase, with the checks of go vet that go test makes. The run phase executes them one after the other
// and reports each package as go test does. Unlike go test ./..., it shows the output of tests while they run, that of passing ones too.

// testBinary returns the path of the compiled tests of a package.
func testBinary(i int) string { return language.BuildDir + "/" + strconv.Itoa(i) + ".test" }

// testFunction is a function of a shell that runs the tests of one package. Its arguments are the import path, the directory, the
// program and the arguments of the program. The kernel counts the time in hundredths of a second.
const testFunction = `code=0
run() {
	name=$1 dir=$2 program=$3
	shift 3
	begin=0.00 end=0.00
	read begin rest </proc/uptime
	(cd "$dir" && exec "$program" -test.paniconexit0 -test.timeout=10m0s "$@") 2>&1
	status=$?
	read end rest </proc/uptime
	took=$(((${end%.*} - ${begin%.*}) * 100 + 1${end#*.} - 1${begin#*.}))
	took=$(printf '%d.%02d0s' $((took / 100)) $((took % 100)))
	if [ $status = 0 ]; then
		printf 'ok  \t%s\t%s\n' "$name" "$took"
		return
	fi
	code=1
	if [ $status -gt 128 ]; then
		echo "signal $((status - 128))"
	elif [ $one = 1 ]; then
		echo "exit status $status"
	fi
	printf 'FAIL\t%s\t%s\n' "$name" "$took"
}
`

// testScript returns the script that runs the tests of all packages, even if one of them fails.
func testScript(j *language.Job, p *goProgram) string {
	all := slices.Concat(p.tests, p.untested)
	slices.SortFunc(all, func(a, b goTest) int { return strings.Compare(a.name, b.name) })
	var script strings.Builder
	begin := "" // of a package
	if j.Request.Tests != nil {
		begin = packageLine
		if j.Request.Tests.FailFast {
			begin = "[ $code = 0 ] && " + begin
		}
	}
	if len(all) == 1 {
		script.WriteString("one=1 ")
	} else {
		script.WriteString("one=0 ")
	}
	script.WriteString(testFunction)
	for _, t := range all {
		if i := slices.Index(p.tests, t); i >= 0 {
			if begin != "" {
				script.WriteString(begin + quoteShell(t.name) + " " + quoteShell(t.dir) + " && ")
			}
			script.WriteString("run " + quoteShell(t.name) + " " + quoteShell(j.Inside(t.dir)) + " " + testBinary(i) + " \"$@\"\n")
		} else {
			script.WriteString("printf '?   \\t%s\\t[no test files]\\n' " + quoteShell(t.name) + "\n")
		}
	}
	if len(all) > 1 {
		script.WriteString("[ $code = 0 ] || echo FAIL\n")
	}
	if j.Request.Tests != nil {
		script.WriteString(`printf '\026=== END\n'` + "\n")
	}
	return script.String() + "exit $code"
}

// testFlags are the flags of go test that the test program has under a longer name.
var testFlags = []string{
	"artifacts", "bench", "benchmem", "benchtime", "blockprofile", "blockprofilerate", "count", "cpu", "cpuprofile", "failfast", "fullpath",
	"fuzz", "fuzzminimizetime", "fuzztime", "list", "memprofile", "memprofilerate", "mutexprofile", "mutexprofilefraction", "outputdir",
	"parallel", "run", "short", "shuffle", "skip", "timeout", "trace", "v",
}

// testArgs returns arguments of go test as the test program takes them: -test.v for -v. It passes on what follows -args unchanged.
func testArgs(args []string) []string {
	var out []string
	for i, a := range args {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(a, "-"), "-"), "=")
		switch {
		case a == "-args" || a == "--args":
			return append(out, args[i+1:]...)
		case strings.HasPrefix(a, "-") && slices.Contains(testFlags, name):
			a = "-test." + strings.TrimLeft(a, "-")
		}
		out = append(out, a)
	}
	return out
}

// packageLine prints the line of a report at which the tests of a package begin: its name, and its directory in the program.
const packageLine = `printf '\026=== PACKAGE %s\t%s\n' `

// reportTests returns the flags with which test programs write a report, and run the tests that the request selects.
func reportTests(j *language.Job) []string {
	j.Plan.Framework, j.Plan.Report = "go test", language.ReportGo
	asked := j.Request.Tests
	args := []string{"-test.v=test2json"}
	if asked.Filter != "" {
		args = append(args, "-test.run="+asked.Filter)
	}
	if len(asked.Names) > 0 {
		args = append(args, "-test.run="+selectTests(asked.Names))
	}
	if asked.FailFast {
		args = append(args, "-test.failfast")
	}
	return args
}

// selectTests returns the pattern of -run for tests of a report. A test of a test is run with the whole test that it belongs to.
func selectTests(names []string) string {
	var tops []string
	for _, name := range names {
		name = name[strings.LastIndexByte(name, ' ')+1:] // without the package
		top, _, _ := strings.Cut(name, "/")
		tops = append(tops, regexp.QuoteMeta(top))
	}
	slices.Sort(tops)
	return "^(" + strings.Join(slices.Compact(tops), "|") + ")$"
}

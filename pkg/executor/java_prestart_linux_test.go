package executor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// javaTrial is one program of testdata/ahead/java.txtar, whose first lines say what is in it.
type javaTrial struct {
	name    string
	short   bool // in every run of the tests
	req     Request
	in      string
	cold    bool // no machine is to wait for it
	same    bool // what it prints differs from run to run
	compile bool // javac waits, too
}

const javaUsual = "import java.io.*; import java.lang.reflect.*; import java.math.*; import java.nio.charset.*; import " +
	"java.nio.file.*; import java.time.*; import java.util.*; import java.util.concurrent.*; import java.util.function.*; import " +
	"java.util.stream.*; "

func javaTrials(t *testing.T) []javaTrial {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", "ahead", "java.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var all []javaTrial
	for _, f := range archive.Files {
		c := javaTrial{name: strings.TrimPrefix(f.Name, "!"), short: strings.HasPrefix(f.Name, "!"), req: Request{Language: "java"}}
		code := string(f.Data)
		file, latin, repeat := "", false, 1
		for strings.HasPrefix(code, "//: ") {
			var line string
			line, code, _ = strings.Cut(code, "\n")
			word, rest, _ := strings.Cut(strings.TrimPrefix(line, "//: "), " ")
			n, _ := strconv.Atoi(rest)
			switch word {
			case "args":
				c.req.Args = shellWords(rest)
			case "stdin":
				c.in = strings.ReplaceAll(rest, `\n`, "\n")
			case "memory":
				c.req.Limits.Memory = sandbox.Size(n) * sandbox.MiB
			case "wall":
				c.req.Limits.Wall = time.Duration(n) * time.Second
			case "entry":
				c.req.Entry = rest
			case "env":
				k, v, _ := strings.Cut(rest, "=")
				c.req.Env = map[string]string{k: v}
			case "file":
				file = rest
			case "repeat":
				repeat = n
			case "latin":
				latin = true
			case "cold":
				c.cold = true
			case "same":
				c.same = true
			case "compile":
				c.compile = true
			default:
				t.Fatalf("%s: %q", f.Name, line)
			}
		}
		if repeat > 1 {
			var b strings.Builder
			for i := range repeat {
				b.WriteString(strings.ReplaceAll(code, "V", "v"+strconv.Itoa(i)))
			}
			code = b.String()
		}
		code = strings.ReplaceAll(code, "CHAIN", "0"+strings.Repeat(" + args.length", 500))
		if latin {
			code = strings.ReplaceAll(code, "BYTE", "\xe4")
		}
		if !strings.Contains(code, " main(") && !strings.Contains(code, "class Main {") {
			code = javaUsual + "public class Main { public static void main(String[] args) throws Exception {\n" + code + "} }\n"
		}
		if file == "" {
			c.req.Code = code
		} else {
			c.req.Files = tree(file, code)
		}
		all = append(all, c)
	}
	return all
}

// shellWords takes words apart at blanks, but for those in double quotes.
func shellWords(s string) (words []string) {
	for s = strings.TrimLeft(s, " "); s != ""; s = strings.TrimLeft(s, " ") {
		var w strings.Builder
		quoted := false
		i := 0
		for ; i < len(s) && (quoted || s[i] != ' '); i++ {
			switch {
			case s[i] == '"':
				quoted = !quoted
			case s[i] == '\\' && i+1 < len(s):
				i++
				fallthrough
			default:
				w.WriteByte(s[i])
			}
		}
		words, s = append(words, w.String()), s[i:]
	}
	return words
}

// Programs do, say and end the same by a machine that waited for them as by one that was started for them.
func TestJavaAhead(t *testing.T) {
	w := newTwice(t)
	cached := &Cache{Dir: filepath.Join(t.TempDir(), "compiled")}
	n, short := 0, 0
	for _, c := range javaTrials(t) {
		n++
		if c.short {
			short++
		}
		if !testenv.All() && !(c.short && short%3 == 1) { // make test: every third of those that are marked as short
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			// What is compiled the same way twice need not be: the classes are brought to the machine that waits.
			if w.e.opts.Cache = cached; c.compile {
				w.e.opts.Cache = nil
			}
			cold, warm, served := w.run(t, func() Request {
				req := c.req
				if c.in != "" {
					req.Stdin = strings.NewReader(c.in)
				}
				return req
			})
			if (served == 0) != c.cold && !(served == 0 && cold.Verdict == sandbox.VerdictCompileError && !c.compile) {
				t.Errorf("%d processes had waited", served)
			}
			compareRuns(t, cold, warm, c.same)
		})
	}
	if n < 200 {
		t.Errorf("only %d programs", n)
	}
}

// compareRuns holds two runs of a program against each other.
func compareRuns(t *testing.T, cold, warm *Result, same bool) {
	t.Helper()
	if cold.Verdict != warm.Verdict || cold.Exit != warm.Exit {
		t.Errorf("%s, %+v cold; %s, %+v ahead", cold.Verdict, cold.Exit, warm.Verdict, warm.Exit)
	}
	if same {
		return
	}
	for _, s := range []struct {
		name       string
		cold, warm []byte
	}{{"stdout", cold.Stdout.Bytes(), warm.Stdout.Bytes()}, {"stderr", cold.Stderr.Bytes(), warm.Stderr.Bytes()}} {
		if string(s.cold) != string(s.warm) {
			t.Errorf("%s differs:\n%s\n— ahead:\n%s", s.name, firstDifference(s.cold, s.warm), firstDifference(s.warm, s.cold))
		}
	}
	if len(cold.Phases) != len(warm.Phases) {
		t.Errorf("%d phases cold, %d ahead", len(cold.Phases), len(warm.Phases))
		return
	}
	names := func(r *Result) (list []string) {
		for i, p := range r.Phases {
			if warm.Phases[i].Cached { // no compiler has run, so there is no output
				p.Stdout, p.Stderr = "", ""
			}
			list = append(list, fmt.Sprint(p.Name, p.Verdict, p.ExitCode, p.Stdout, p.Stderr))
		}
		return list
	}
	if a, b := names(cold), names(warm); !slices.Equal(a, b) {
		t.Errorf("phases: %q cold, %q ahead", a, b)
	}
}

// firstDifference is a text from a little before where it differs from another.
func firstDifference(a, b []byte) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return short(string(a[max(0, i-100):min(len(a), i+1000)]))
}

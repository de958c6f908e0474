package executor

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/pool"
)

// The programs behave the same cold and warm, byte for byte. A program begins with a line of its name and settings:
//
//	=== name key=value…     lang, name (of the file), args, stdin, env, timeout (s), memory (MiB), network, loose, cold
//	…
//	--- path                further files of it
//
//go:embed testdata/same
var samePrograms embed.FS

type sameProgram struct {
	name string
	req  Request
	cold bool
	in   string
	// loose: what it says on standard error has addresses and times in it
	loose bool
}

// readSame reads the programs of a file of testdata/same.
func readSame(t testing.TB, file, lang string) (list []sameProgram) {
	t.Helper()
	text, err := samePrograms.ReadFile("testdata/same/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range strings.Split("\n"+string(text), "\n=== ")[1:] {
		head, body, _ := strings.Cut(section, "\n")
		words := splitWords(head)
		p := sameProgram{name: words[0], req: Request{Language: lang}}
		main := map[string]string{"ts": "main.ts", "typescript": "main.ts", "python": "main.py", "rust": "main.rs"}[lang]
		if main == "" {
			main = "main.js"
		}
		key := ""
		for _, w := range words[1:] {
			k, v, ok := strings.Cut(w, "=")
			if key != "args" || ok && k == "stdin" {
				key = k
			} else {
				v = w
			}
			switch key {
			case "lang":
				p.req.Language, main = v, "main."+v
			case "name":
				main = v
			case "args":
				p.req.Args = append(p.req.Args, unescaped(t, v))
			case "stdin":
				p.in = unescaped(t, v)
			case "env":
				name, value, _ := strings.Cut(v, "=")
				if p.req.Env == nil {
					p.req.Env = map[string]string{}
				}
				p.req.Env[name] = value
				p.cold = p.cold || language.ReadAtStart(name)
			case "timeout":
				n, _ := strconv.Atoi(v)
				p.req.Limits.Wall, p.req.Limits.Grace = time.Duration(n)*time.Second, 3*time.Second
			case "memory":
				n, _ := strconv.Atoi(v)
				p.req.Limits.Memory = sandbox.Size(n) * sandbox.MiB
			case "network":
				p.req.Policy.Network = network.Policy{Mode: network.Mode(v)}
			case "files":
			case "loose":
				p.loose = true
			case "cold":
				p.cold = true
			default:
				t.Fatalf("%s: %s: what is %q?", file, p.name, w)
			}
		}
		parts := strings.Split("\n"+body, "\n--- ")
		p.req.Files = []File{{Path: main, Data: []byte(strings.TrimPrefix(parts[0], "\n"))}}
		p.req.Entry = main
		for _, part := range parts[1:] {
			name, content, _ := strings.Cut(part, "\n")
			p.req.Files = append(p.req.Files, File{Path: name, Data: []byte(content)})
		}
		list = append(list, p)
	}
	return list
}

// splitWords splits at spaces; a word in quotes may have some. The last key but args takes what is left of the line.
func splitWords(s string) (words []string) {
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		if strings.HasPrefix(s, "stdin=") {
			return append(words, s)
		}
		if at := strings.Index(s, "env="); at == 0 && !strings.Contains(s[4:], " env=") {
			return append(words, s)
		}
		prefix := ""
		if strings.HasPrefix(s, `args="`) {
			prefix, s = "args=", s[5:]
		}
		if s[0] == '"' {
			if q, err := strconv.QuotedPrefix(s); err == nil {
				w, _ := strconv.Unquote(q)
				words, s = append(words, prefix+w), s[len(q):]
				continue
			}
		}
		w, rest, _ := strings.Cut(s, " ")
		words, s = append(words, prefix+w), rest
	}
	return words
}

func unescaped(t testing.TB, s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	u, err := strconv.Unquote(`"` + s + `"`)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return u
}

// unpooled is the same engine without a pool: it asks for the very same sandboxes, and starts everything cold.
var unpooled struct {
	once sync.Once
	*Executor
}

func unpooledEngine(t testing.TB) *Executor {
	e, _ := pooledEngine(t)
	unpooled.once.Do(func() { unpooled.Executor = New(shared.manager, e.opts) })
	return unpooled.Executor
}

// have has the pool keep a member that a request will get.
func have(t testing.TB, e *Executor, p *pool.Pool, req Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	x := &execution{e: e, req: &req, plan: plan}
	spec := plan.Spec
	spec.Ahead = x.prestarted(plan.Phases)
	if spec, err = e.manager.Complete(spec); err != nil {
		t.Fatal(err)
	}
	if err := p.Warm(ctx, &spec); err != nil {
		t.Fatal(err)
	}
	for { // another run may have taken the sandbox that Warm counted
		n := 0
		for _, s := range p.Stats().Shapes {
			if s.Sandboxes < s.Wanted {
				n++
			}
		}
		if n == 0 || ctx.Err() != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ownPid is in Node's warnings and Rust's panics. Which it is depends on how many threads the init has had by then.
var ownPid = regexp.MustCompile(`\(node:\d+\)|(?m:^)(thread '.*' )\(\d+\)`)

// outcome is what has to be the same.
func outcome(r *Result) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "verdict %s, exit %d, signal %d\n", r.Verdict, r.Exit.Code, r.Exit.Signal)
	for _, p := range r.Phases {
		fmt.Fprintf(&b, "phase %s %s %d\n%s%s", p.Name, p.Verdict, p.ExitCode, p.Stdout, p.Stderr)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "violation %s %s %s\n", v.Kind, v.Name, v.Detail)
	}
	fmt.Fprintf(&b, "--- stdout %v\n%s\n--- stderr %v\n%s\n", r.Stdout.Truncated(), r.Stdout.Bytes(), r.Stderr.Truncated(), r.Stderr.Bytes())
	return ownPid.ReplaceAllString(b.String(), "$1(pid N)")
}

// same runs programs cold and warm, and compares. step leaves most of them out unless all are asked for.
func same(t *testing.T, file, language string, step int) {
	e, p := pooledEngine(t)
	cold := unpooledEngine(t)
	for i, program := range readSame(t, file, language) {
		if !testenv.All() && i%step != 0 {
			continue
		}
		t.Run(program.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			request := func() Request {
				r := program.req
				if program.in != "" {
					r.Stdin = io.Reader(strings.NewReader(program.in))
				}
				return r
			}
			if !program.cold {
				have(t, e, p, request())
			}
			before := p.Stats()
			warm, err := e.Execute(ctx, request())
			if err != nil {
				t.Fatal(err)
			}
			after := p.Stats()
			if woken := after.Warm - before.Warm; (woken == 0) != program.cold {
				t.Errorf("%d processes were started warm; %d fell back, %d missed", woken, after.Fallbacks-before.Fallbacks, after.Misses-before.Misses)
			}
			want, err := cold.Execute(ctx, request())
			if err != nil {
				t.Fatal(err)
			}
			if w, c := outcome(warm), outcome(want); w != c && !program.loose {
				t.Errorf("%d bytes and %d, %d and %d\ncold:\n%.3000s\nwarm:\n%.3000s", len(want.Stdout.Bytes()), len(warm.Stdout.Bytes()),
					len(want.Stderr.Bytes()), len(warm.Stderr.Bytes()), c, w)
			} else if program.loose && (warm.Verdict != want.Verdict || warm.Exit != want.Exit ||
				!bytes.Equal(warm.Stdout.Bytes(), want.Stdout.Bytes())) {
				t.Errorf("cold:\n%.3000s\nwarm:\n%.3000s", c, w)
			}
		})
	}
}

func TestSameNodeBasics(t *testing.T)  { same(t, "node-basics.txt", "javascript", 8) }
func TestSameNodeEndings(t *testing.T) { same(t, "node-endings.txt", "javascript", 8) }
func TestSameNodeModules(t *testing.T) { same(t, "node-modules.txt", "javascript", 6) }
func TestSameNodeDoing(t *testing.T)   { same(t, "node-doing.txt", "javascript", 8) }
func TestSameRust(t *testing.T)        { same(t, "rust.txt", "rust", 8) }

package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/pool"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// pooled is a real engine over a pool.
var pooled struct {
	once    sync.Once
	err     error
	pool    *pool.Pool
	manager *sandbox.Manager
	*Executor
}

// pooledEngine is the engine whose sandboxes are kept ready. Nothing is cached: every program is compiled.
func pooledEngine(t testing.TB) (*Executor, *pool.Pool) {
	t.Helper()
	realEngine(t)
	pooled.once.Do(func() {
		var b *native.Backend
		if b, pooled.err = native.New(native.Options{CacheDir: filepath.Join(shared.dir, "disks")}); pooled.err != nil {
			return
		}
		pooled.pool = pool.New(b, pool.Options{MessageTimeout: 30 * time.Second, ReadyTimeout: 2 * time.Minute}) // the machine may be busy
		pooled.manager = sandbox.NewManager(pooled.pool, sandbox.Options{})
		kit, _ := kitpath.Find()
		pooled.Executor = New(pooled.manager, Options{
			Toolchains: &toolchain.Finder{Store: filepath.Join(shared.dir, "toolchains")}, Kit: kit, WarmDir: filepath.Join(shared.dir, "warm"),
			Prestart: true,
		})
	})
	if pooled.err != nil {
		t.Fatal(pooled.err)
	}
	return pooled.Executor, pooled.pool
}

// readied waits until the pool has members for a language's ordinary programs.
func readied(t testing.TB, e *Executor, p *pool.Pool, languages ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	specs, err := e.PrestartSpecs(ctx, languages...)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) != len(languages) {
		t.Fatalf("%d of %v can be made ready", len(specs), languages)
	}
	if err := p.Warm(ctx, specs...); err != nil {
		t.Fatal(err)
	}
}

// execute runs a program that a member waits for, and fails if it was not started by it.
func execute(t testing.TB, e *Executor, p *pool.Pool, req Request) *Result {
	t.Helper()
	have(t, e, p, req)
	before := p.Stats()
	res, err := e.Execute(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	if after := p.Stats(); after.Warm == before.Warm {
		t.Fatalf("it was started cold: %+v", after)
	}
	return res
}

// Languages that can wait are ready before anybody asks.
func TestAheadOfTime(t *testing.T) {
	e, p := pooledEngine(t)
	readied(t, e, p, "javascript", "typescript")
	for language, code := range map[string]string{"javascript": "console.log('ready', 1)",
		"typescript": "const n: number = 1; console.log('ready', n)"} {
		res := execute(t, e, p, Request{Language: language, Code: code})
		if string(res.Stdout.Bytes()) != "ready 1\n" || res.Verdict != sandbox.VerdictOK || len(res.Stderr.Bytes()) > 0 {
			t.Errorf("%s: %s", language, outcome(res))
		}
	}
	// the sandbox alone
	if specs, err := e.PrestartSpecs(context.Background(), "shell"); err != nil || len(specs) != 1 || specs[0].Ahead[0].Warm != nil {
		t.Errorf("%v %v", specs, err)
	}
	if _, err := e.PrestartSpecs(context.Background(), "klingon"); err == nil {
		t.Error("a language that there is not")
	}
}

// However a program is started, one pipe for both streams keeps the order of its writes, and a line arrives when it is printed. Python is
// forked here, and Node waits for its program.
func TestOutputOfEveryStart(t *testing.T) {
	warm, p := pooledEngine(t)
	for language, code := range map[string]string{
		"python": "import sys\nfor i in range(3):\n    print('out', i)\n    print('err', i, file=sys.stderr)\ninput()\nprint('end')\n",
		"javascript": "for (let i = 0; i < 3; i++) { console.log('out', i); console.error('err', i) }\n" +
			"process.stdin.once('data', () => { console.log('end'); process.exit() })\n",
		"shell": "for i in 0 1 2; do echo out $i; echo err $i >&2; done; read x; echo end\n",
	} {
		for _, start := range []string{"cold", "warm"} {
			for _, merged := range []bool{true, false} {
				t.Run(fmt.Sprint(language, " ", start, " merged ", merged), func(t *testing.T) {
					in, typed := io.Pipe()
					defer in.Close()
					var events []string
					lines := 0
					req := Request{Language: language, Code: code, Stdin: in, Policy: Policy{MergeOutput: merged},
						Limits: sandbox.Limits{Wall: 5 * time.Minute}, OnEvent: func(ev sandbox.Event) {
							if len(ev.Data) == 0 {
								return
							}
							events = append(events, string(ev.Kind)+" "+string(ev.Data))
							if lines += bytes.Count(ev.Data, []byte("\n")); lines == 6 { // the program waits
								go fmt.Fprintln(typed)
							}
						}}
					var r *Result
					var err error
					if start == "warm" {
						have(t, warm, p, req)
						before := p.Stats()
						r, err = warm.Execute(t.Context(), req)
						if after := p.Stats(); language != "shell" && after.Warm == before.Warm {
							t.Errorf("it was started cold: %+v", after)
						}
					} else {
						r, err = unpooledEngine(t).Execute(t.Context(), req)
					}
					if err != nil {
						t.Fatal(err)
					}
					want, wantErr := "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\nend\n", ""
					if !merged {
						want, wantErr = "out 0\nout 1\nout 2\nend\n", "err 0\nerr 1\nerr 2\n"
					}
					if stdout, stderr := string(r.Stdout.Bytes()), string(r.Stderr.Bytes()); stdout != want || stderr != wantErr {
						t.Errorf("%q, %q", stdout, stderr)
					}
					if last := events[len(events)-1]; last != "stdout end\n" {
						t.Errorf("the last event is %q of %q", last, events)
					}
				})
			}
		}
	}
}

// Nothing of a run is in the next, nor of its request in what is made ready (W1).
func TestAheadLeavesNothing(t *testing.T) {
	e, p := pooledEngine(t)
	secret := "hunter2-" + t.Name()
	const each = `const fs = require("fs"); for (const d of ["/tmp", "/home/sandbox", "/workspace", "/dev/shm"]) `
	leave := each + `fs.writeFileSync(d + "/left", process.env.SECRET); console.log(process.argv[2], process.env.SECRET)`
	look := each + `console.log(d, fs.readdirSync(d)); console.log(process.argv.slice(2), Object.keys(process.env), ` +
		`fs.readFileSync("/proc/self/environ", "latin1"), fs.readFileSync("/proc/self/cmdline", "latin1"), require("child_process").` +
		`execSync("env; cat /proc/*/environ /proc/*/cmdline", { maxBuffer: 1 << 24 }).toString("latin1"))`
	for range 3 {
		res := execute(t, e, p, Request{Language: "javascript", Code: leave, Args: []string{secret}, Env: map[string]string{"SECRET": secret}})
		if want := secret + " " + secret + "\n"; string(res.Stdout.Bytes()) != want {
			t.Fatalf("the control: %s", outcome(res))
		}
		out := string(execute(t, e, p, Request{Language: "javascript", Code: look}).Stdout.Bytes())
		if strings.Contains(out, secret) || strings.Contains(out, "left") || strings.Contains(out, "NODE_OPTIONS") ||
			!strings.Contains(out, "/dev/shm []") {
			t.Errorf("%.3000s", out)
		}
	}
}

// No two runs have the same chance (W2).
func TestAheadChance(t *testing.T) {
	e, p := pooledEngine(t)
	seen := map[string]int{}
	for range 4 {
		res := execute(t, e, p, Request{Language: "javascript",
			Code: `const c = require("crypto"); console.log(Math.random(), c.randomUUID(), c.randomBytes(8).toString("hex"), ` +
				`crypto.getRandomValues(new Uint32Array(2)).join("-"))`})
		for _, word := range strings.Fields(string(res.Stdout.Bytes())) {
			if seen[word]++; seen[word] > 1 {
				t.Errorf("%s twice", word)
			}
		}
	}
	if len(seen) != 16 {
		t.Errorf("%d of 16", len(seen))
	}
}

// postureProgram tells all that a process can see of where and what it is.
const postureProgram = `
const fs = require("fs"), cp = require("child_process");
const tell = (name, text) => console.log("## " + name + "\n" + text);
const read = (f) => { try { return fs.readFileSync(f, "latin1"); } catch (e) { return e.code; } };
const varying = new RegExp("^(Name|Pid|NSpid|Tgid|NStgid|NSpgid|NSsid|Ngid|PPid|Vm|Rss|HugetlbPages|voluntary|nonvoluntary|" +
  "Cpus_allowed|Mems_allowed)");
tell("status", read("/proc/self/status").split("\n").filter((l) => !varying.test(l)).join("\n"));
for (const f of ["limits", "cgroup", "oom_score_adj", "oom_adj", "uid_map", "gid_map", "setgroups", "personality", "coredump_filter",
  "timerslack_ns", "loginuid", "sessionid", "comm", "attr/current", "environ", "cmdline", "timens_offsets", "autogroup"]) {
  const text = read("/proc/self/" + f);
  tell(f, f === "environ" ? text.replace(/\0+$/, "") :
    f === "uid_map" || f === "gid_map" ? text.replace(/\d+/g, (n) => (n > 65536 ? "N" : n)) : f === "autogroup" ? "" : text);
}
tell("mounts", read("/proc/self/mountinfo").split("\n").map((l) => l.replace(/^\d+ \d+ \d+:\d+/, "").
  replace(/(master|shared):\d+/g, "").replace(/\/dev\/loop\d+/g, "loop").
  replace(/lowerdir=[^, ]*/g, "").replace(/inode64|[ug]id=\d+|lowerdir\S*/g, "")).join("\n"));
tell("ns", fs.readdirSync("/proc/self/ns").join(" "));
tell("fd", fs.readdirSync("/proc/self/fd").map((n) => { try {
  return n + " " + fs.readlinkSync("/proc/self/fd/" + n).replace(/\d{3,}/g, "N") + " " +
    read("/proc/self/fdinfo/" + n).match(/flags:\s*(\d+)/)[1];
} catch { return ""; } }).filter(Boolean).join("\n"));
tell("threads", fs.readdirSync("/proc/self/task").map((t) => read("/proc/self/task/" + t + "/comm").trim()).sort().join(" "));
tell("root", [fs.readlinkSync("/proc/self/root"), fs.readlinkSync("/proc/self/cwd"), fs.readlinkSync("/proc/self/exe")].join(" "));
tell("stat", (() => { const f = read("/proc/self/stat"); const a = f.slice(f.lastIndexOf(")") + 2).split(" ");
  return ["tty", a[4], "flags", a[6], "prio", a[15], a[16], "threads", a[17], "signal", a[35], "policy", a[38]].join(" "); })());
tell("sh", cp.execSync("ulimit -a; ulimit -Ha; umask; id; hostname; uname -sm; " +
  "ls -lan / /dev /workspace /tmp /home/sandbox /opt /opt/sandbox-run | sed -E 's/[A-Z][a-z]{2} +[0-9]+ +[0-9:]+//; s/^total.*//; " +
  "s/^(dr-xr-xr-x +)[0-9]+( .* proc)$/\\1N\\2/; s/ +/ /g'; cat /proc/net/dev; ls /proc | grep -v '^[0-9]'; ls /sys; " +
  "cat /proc/sys/kernel/hostname; grep -E '^Sig|^Cap|^Sec|^NoN' /proc/self/status", { stdio: ["ignore", "pipe", "pipe"] }).toString());
`

// A process that has waited stands in the very walls of one that has not (D11, W3).
func TestAheadPosture(t *testing.T) {
	e, p := pooledEngine(t)
	req := Request{Language: "javascript", Code: postureProgram}
	want, err := unpooledEngine(t).Execute(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	got := execute(t, e, p, req)
	if got.Verdict != sandbox.VerdictOK || len(want.Stdout.Bytes()) < 5000 {
		t.Fatalf("%s\n%s", outcome(want), outcome(got))
	}
	if diff := gocmp.Diff(strings.Split(string(want.Stdout.Bytes()), "\n"), strings.Split(string(got.Stdout.Bytes()), "\n")); diff != "" {
		t.Errorf("cold -, warm +:\n%s", diff)
	}
	if diff := gocmp.Diff(want.Isolation, got.Isolation); diff != "" {
		t.Error(diff)
	}
}

// What a run is said to have used is its own, and is what it uses when it is started cold, but for the start.
func TestAheadMetrics(t *testing.T) {
	e, p := pooledEngine(t)
	req := Request{Language: "javascript", Code: `
const used = () => { const u = process.cpuUsage(); return u.user + u.system }; // how much of it is whose, the kernel only guesses
const a = Buffer.alloc(40 << 20, 1); const end = used() + 300e3; while (used() < end); console.log(a.length)`}
	want, err := unpooledEngine(t).Execute(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	have(t, e, p, req)
	time.Sleep(2 * time.Second) // the waiting time must not count
	got := execute(t, e, p, req)
	cold, warm := want.Metrics, got.Metrics
	t.Logf("cold %+v\nwarm %+v", cold, warm)
	if warm.CPUTime.Duration() < 280*time.Millisecond || warm.CPUTime > cold.CPUTime*3/2 {
		t.Errorf("CPU: cold %v, warm %v", cold.CPUTime.Duration(), warm.CPUTime.Duration())
	}
	if warm.MemoryPeak < 40<<20 || warm.MemoryPeak > cold.MemoryPeak*3/2 {
		t.Errorf("memory: cold %d, warm %d", cold.MemoryPeak, warm.MemoryPeak)
	}
	if warm.WallTime.Duration() < 200*time.Millisecond || warm.CPUPercent > 300 {
		t.Errorf("time: cold %v, warm %v", cold.WallTime.Duration(), warm.WallTime.Duration())
	}
	// A limit on processor time counts from the message on, too.
	req.Limits.CPUTime = 200 * time.Millisecond
	if got := execute(t, e, p, req); got.Verdict != sandbox.VerdictCPULimit {
		t.Error(outcome(got))
	}
	req.Limits.CPUTime = 0
	req.Limits.Wall = 3 * time.Second
	req.Code = `setTimeout(() => console.log("made it"), 400)`
	have(t, e, p, req)
	time.Sleep(req.Limits.Wall) // nor is that counted
	began := time.Now()
	got = execute(t, e, p, req)
	if took := time.Since(began); got.Verdict != sandbox.VerdictOK && took < req.Limits.Wall {
		t.Errorf("after %v: %s", took, outcome(got))
	}
}

// What is refused to a program that waited is told of, and nothing that was refused to its driver.
func TestAheadRefusals(t *testing.T) {
	e, p := pooledEngine(t)
	quiet := execute(t, e, p, Request{Language: "javascript", Code: "1"})
	if len(quiet.Violations) > 0 {
		t.Errorf("%+v", quiet.Violations)
	}
	loud := execute(t, e, p, Request{Language: "javascript",
		Code: `try { require("child_process").execSync("unshare -U true", { stdio: "ignore" }) } catch {}`})
	if !slices.ContainsFunc(loud.Violations, func(v sandbox.Violation) bool { return v.Kind == sandbox.ViolationSyscall }) {
		t.Errorf("%+v", loud.Violations)
	}
}

// Sandboxes that are not like those that wait are made as ever.
func TestAheadNotAtAll(t *testing.T) {
	e, p := pooledEngine(t)
	for name, req := range map[string]Request{
		"a terminal": {Language: "javascript", Code: "process.stdout.write(String(process.stdout.isTTY))",
			TTY: &sandbox.TTY{Rows: 24, Cols: 80}},
		"a volume": {Language: "javascript", Code: "console.log(true)",
			Policy: Policy{Volumes: []sandbox.Volume{{Source: t.TempDir(), Target: "/data"}}}},
		"another directory": {Language: "javascript", Code: "console.log(process.cwd() === '/usr')", Policy: Policy{Workdir: "/usr"}},
		"not text":          {Language: "javascript", Code: "console.log(process.argv.length === 3)", Args: []string{"\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := p.Stats()
			for range 3 {
				res, err := e.Execute(context.Background(), req)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.TrimSpace(string(res.Stdout.Bytes())); got != "true" {
					t.Error(outcome(res))
				}
			}
			if after := p.Stats(); after.Warm != before.Warm {
				t.Errorf("%+v", after)
			}
		})
	}
}

// Where no interpreter can be forked, as for an ordinary user, one waits in each sandbox. Variables that it has looked at when it
// started, and those of a request that it has not, make no difference to a cold start.
func TestAheadPythonVariables(t *testing.T) {
	cold := realEngine(t)
	b, err := native.New(native.Options{CacheDir: filepath.Join(shared.dir, "disks")})
	if err != nil {
		t.Fatal(err)
	}
	p := pool.New(struct{ sandbox.Backend }{b}, pool.Options{MessageTimeout: 30 * time.Second, ReadyTimeout: 2 * time.Minute})
	m := sandbox.NewManager(p, sandbox.Options{})
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	warm := New(m, Options{Toolchains: &toolchain.Finder{Store: filepath.Join(shared.dir, "toolchains")},
		WarmDir: filepath.Join(shared.dir, "warm"), Prestart: true})
	readied(t, warm, p, "python")
	for name, waits := range map[string]bool{"": true, "COLOUR": true, "TZ": false, "LC_ALL": false, "HOME": false, "PYTHONHASHSEED": false,
		"__PYVENV_LAUNCHER__": false} {
		t.Run(name, func(t *testing.T) {
			req := Request{Language: "python",
				Code: "import locale, os, site, sys, time\n" +
					"print(time.tzname, time.localtime(0).tm_hour, locale.setlocale(locale.LC_CTYPE), site.USER_SITE, sys.flags, " +
					"sorted(os.environ.items()), sys.path, os.listdir('/tmp'), sys.stdout.line_buffering)\n"}
			if value, ok := map[string]string{"COLOUR": "red", "TZ": "Asia/Tokyo", "LC_ALL": "POSIX", "HOME": "/tmp", "PYTHONHASHSEED": "0",
				"__PYVENV_LAUNCHER__": "/bin/x"}[name]; ok {
				req.Env = map[string]string{name: value}
			}
			if waits {
				have(t, warm, p, req)
			}
			before := p.Stats()
			got, err := warm.Execute(context.Background(), req)
			if err != nil {
				t.Fatal(err)
			}
			if after := p.Stats(); waits != (after.Warm == before.Warm+1) {
				t.Errorf("it waited: %v", after.Warm != before.Warm)
			}
			want, err := cold.Execute(context.Background(), req)
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Stdout.Bytes()) != string(want.Stdout.Bytes()) || got.Verdict != want.Verdict {
				t.Errorf("%s\ncold: %s", outcome(got), outcome(want))
			}
		})
	}
}

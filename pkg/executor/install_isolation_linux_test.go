package executor

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// scripted is a language whose installation is a shell script and whose program is another: what a hostile tool could do.
func scripted(online, offline string) *Language {
	return &Language{
		Name: "scripted", Title: "Scripted", Extensions: []string{".scripted"}, Source: "main.scripted",
		Toolchain: &toolchain.Description{Name: "scripted", Programs: []string{"sh"}, Query: func(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
			t := &toolchain.Toolchain{Version: "1", Path: "/bin/sh", Home: "/usr"}
			return s.Finish(t, s.View(), found, nil)
		}},
		Packages: func(j *language.Job) (*language.Packages, error) {
			return &language.Packages{
				Registry: "pypi", Requirements: j.Request.Options.Deps, Env: map[string]string{"INDEX": language.Index},
				Files: []sandbox.File{{Path: sandbox.WorkspaceDir + "/asked", Data: []byte(strings.Join(j.Request.Options.Deps, "\n"))}},
				Steps: []language.Step{{Args: []string{"/bin/sh", "-c", "mkdir -p layer && { " + online + "\n} > layer/online 2>&1"}},
					{Args: []string{"/bin/sh", "-c", "{ " + offline + "\n} > layer/offline 2>&1"}, Offline: true}},
				ReadLock: func(map[string][]byte) (*language.Lock, error) { return &language.Lock{}, nil },
			}, nil
		},
		Plan: func(j *language.Job) error {
			if j.Layer != nil {
				j.Mount(j.Layer.Dir, language.ToolDir+"/layer")
			}
			j.AddRun("/bin/sh", j.Inside(j.Entry))
			return nil
		},
	}
}

// packageEngineOf is packageEngine with another language.
func packageEngineOf(t *testing.T, l *Language, indexes map[string]string) *Executor {
	t.Helper()
	e := packageEngine(t, indexes)
	o := e.opts
	o.Languages = []*Language{l}
	return New(e.manager, o)
}

// get is a shell function that prints the answer of an HTTP server, or the reason why there is none.
const get = `get() { python3 - "$@" <<'END'
import sys, urllib.request
try: print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode()[:200])
except Exception as e: print("no answer:", e)
END
}
`

// TestInstallIsolation: an installation reaches its registry, and neither the host, nor other hosts, nor what the run has.
func TestInstallIsolation(t *testing.T) {
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the host's secret")) }))
	defer inside.Close()
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the registry")) }))
	volume := t.TempDir()
	if err := os.WriteFile(volume+"/private", []byte("the run's file"), 0o644); err != nil {
		t.Fatal(err)
	}
	attempts := get + `get "$INDEX"
		for host in "` + strings.TrimPrefix(inside.URL, "http://") + `" registry.sandbox-run.internal:8080 example.com 169.254.169.254; do echo "$host"; get "http://$host/"; done
		echo "env: $SECRET"; cat /data/private; cat input; wc -c; ls /opt/sandbox-run /var/cache/sandbox-run 2>/dev/null; echo "id: $(id -u)"`
	e := packageEngineOf(t, scripted(attempts, attempts), map[string]string{"pypi": s.URL + "/"})
	req := Request{
		Language: "scripted", Code: `cat /opt/sandbox-run/layer/online; echo ==; cat /opt/sandbox-run/layer/offline; echo == "$SECRET"; cat /data/private
			echo x > /opt/sandbox-run/layer/online && echo written`,
		Env: map[string]string{"SECRET": "of the run"}, Stdin: strings.NewReader("the run's input"),
		Inputs:  []File{{Path: "input", Data: []byte("the run's input file")}},
		Options: LanguageOptions{Deps: []string{"a"}},
		Policy:  Policy{Volumes: []sandbox.Volume{{Source: volume, Target: "/data"}}},
	}
	r := expectOn(t, e, req, want{verdict: sandbox.VerdictNonzeroExit, exit: 2})
	online, rest, _ := strings.Cut(string(r.Stdout.Bytes()), "==\n")
	offline, run, _ := strings.Cut(rest, "== ")
	for name, text := range map[string]string{"online": online, "offline": offline} {
		for _, secret := range []string{"host's secret", "of the run", "run's file", "run's input"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: it has %q:\n%s", name, secret, text)
			}
		}
		if n := strings.Count(text, "no answer"); n != map[string]int{"online": 4, "offline": 5}[name] || !strings.Contains(text, "\n0\n") {
			t.Errorf("%s: %d refusals:\n%s", name, n, text)
		}
	}
	if !strings.Contains(online, "the registry") || strings.Contains(offline, "the registry") {
		t.Errorf("the registry:\n%s\n%s", online, offline)
	}
	// The controls: the run itself has its variables and volumes; and it can not change the layer.
	if !strings.Contains(run, "of the run") || !strings.Contains(run, "the run's file") || strings.Contains(run, "written") {
		t.Errorf("the run: %s", run)
	}
	refused := map[string]bool{}
	for _, v := range r.Violations {
		refused[v.Name] = true
	}
	if !refused["example.com"] || !refused["169.254.169.254"] {
		t.Errorf("%+v", r.Violations)
	}
}

// TestInstallOnce: identical installations at a time are one; those of other tenants are their own.
func TestInstallOnce(t *testing.T) {
	var asked atomic.Int32
	s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("ok"))
	}))
	e := packageEngineOf(t, scripted(get+`get "$INDEX"`, "true"), map[string]string{"pypi": s.URL + "/"})
	run := func(key string) *Result {
		return expectOn(t, e, Request{Language: "scripted", Code: "cat /opt/sandbox-run/layer/online", Asker: Asker{Key: key},
			Options: LanguageOptions{Deps: []string{"a"}}}, want{stdout: "ok\n"})
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { run("") })
	}
	all.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("%d installations", n)
	}
	if run("b"); asked.Load() != 2 || !run("b").Deps.Cached {
		t.Errorf("another tenant: %d installations", asked.Load())
	}
}

// TestInstallFails: a failure is install_error with the tool's words, and leaves nothing that a later installation would take for whole.
func TestInstallFails(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	s := testregistry.New(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte("ok"))
	}))
	online := get + `text=$(get "$INDEX"); echo "$text"; [ "$text" = ok ] || { echo "tool: $text" >&2; cat layer/online >/dev/stderr; exit 3; }`
	l := scripted("true", "true")
	script := online
	l.Packages = func(j *language.Job) (*language.Packages, error) {
		return &language.Packages{
			Registry: "pypi", Requirements: j.Request.Options.Deps, Env: map[string]string{"INDEX": language.Index},
			Steps:    []language.Step{{Args: []string{"/bin/sh", "-c", "mkdir layer; exec 3>layer/online; " + strings.ReplaceAll(script, "cat layer/online >/dev/stderr; ", "")}}},
			ReadLock: func(map[string][]byte) (*language.Lock, error) { return &language.Lock{}, nil },
		}, nil
	}
	e := packageEngineOf(t, l, map[string]string{"pypi": s.URL + "/"})
	req := Request{Language: "scripted", Code: "echo ran", Options: LanguageOptions{Deps: []string{"a"}}}
	r := expectOn(t, e, req, want{verdict: sandbox.VerdictInstallError, exit: 3, said: []string{"tool: no answer", "500"}})
	if r.ExitCode() != 1 || r.Deps != nil {
		t.Errorf("%d %+v", r.ExitCode(), r.Deps)
	}
	list, err := e.opts.Layers.List()
	if err != nil || len(list) > 0 {
		t.Errorf("%v %v", list, err)
	}
	// Cancelled in the middle, too.
	ctx, cancel := context.WithCancel(t.Context())
	script = "sleep 1000"
	time.AfterFunc(300*time.Millisecond, cancel)
	if r, err := e.Execute(ctx, req); err == nil && r.Verdict != sandbox.VerdictCancelled {
		t.Errorf("%v", r.Verdict)
	}
	script = online
	broken.Store(false)
	expectOn(t, e, req, want{stdout: "ran\n"})
}

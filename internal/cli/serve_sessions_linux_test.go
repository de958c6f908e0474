package cli

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// A server that is killed while its sessions execute cells leaves no process. Of its sessions, the next server has nothing but the files of
// a workspace.
func TestServeKilledWithSessions(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	args = append(args, "--listen", "unix://"+filepath.Join(dir, "run", "s"), "--allow-workspaces")
	data := "XDG_DATA_HOME=" + filepath.Join(dir, "data")
	start := func() *serverProcess {
		return startCommand(t, exec.Command("/usr/bin/env", append([]string{"--default-signal=HUP,INT,QUIT,TERM", data, binary(t), "serve"}, args...)...))
	}
	cells := map[string]string{"python": "sum(range(1000))", "javascript": "1 + 1", "shell": "echo $((1 + 1))"}
	rounds := 1
	if testenv.All() {
		rounds = 10
	}
	for round := range rounds {
		s := start()
		kept := s.request(0, "POST", "/v1/sessions", `{"language":"python","workspace":"kept"}`)
		ids := []string{kept.field(t, "id")}
		made := s.request(0, "POST", "/v1/sessions/"+ids[0]+"/cells", `{"code":"open('file', 'w').write('text')"}`)
		if made.field(t, "verdict") != "ok" {
			t.Fatalf("%d %s; %d %s", kept.code, kept.body, made.code, made.body)
		}
		var clients sync.WaitGroup
		var once sync.Once
		first := make(chan struct{})
		for language, code := range cells {
			r := s.request(0, "POST", "/v1/sessions", `{"language":"`+language+`"}`)
			id := r.field(t, "id")
			if id == "" {
				t.Fatalf("%d %s", r.code, r.body)
			}
			ids = append(ids, id)
			clients.Go(func() {
				for {
					if _, err := s.tryRequest(0, "POST", "/v1/sessions/"+id+"/cells", `{"code":"`+code+`"}`); err != nil {
						return // the server is gone
					}
					once.Do(func() { close(first) })
				}
			})
		}
		<-first
		time.Sleep(time.Duration(round) * 7 * time.Millisecond) // any moment will do
		below := processesBelow(s.cmd.Process.Pid)
		if len(below) < 2*len(ids) {
			t.Fatalf("%d processes of %d sessions", len(below), len(ids))
		}
		s.signal(syscall.SIGKILL)
		<-s.over
		clients.Wait()
		for end := time.Now().Add(serveTime); slices.ContainsFunc(below, isRunning); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("processes of the sessions live")
			}
		}
		again := start()
		for _, id := range ids {
			if r := again.request(0, "GET", "/v1/sessions/"+id, ""); r.code != 404 {
				t.Errorf("%d %s", r.code, r.body)
			}
		}
		r := again.request(0, "POST", "/v1/sessions", `{"language":"python","workspace":"kept"}`)
		r = again.request(0, "POST", "/v1/sessions/"+r.field(t, "id")+"/cells", `{"code":"open('file').read()"}`)
		if !strings.Contains(r.body, `'text'`) {
			t.Errorf("%d %s", r.code, r.body)
		}
		again.signal(syscall.SIGTERM)
		if code := again.wait(); code != 0 {
			t.Errorf("exit code %d\n%s", code, again.log())
		}
	}
}

package serve

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// A session is served over the unix socket and over TCP, with receipts, metrics and audit entries. A cell that runs when the server shuts down
// ends in peace; then the session ends.
func TestSessions(t *testing.T) {
	s := startObserved(t, func(o *operator.Settings) {
		o.Listen, o.SessionsPerKey = append(o.Listen, "127.0.0.1:0"), 1
	})
	status, _, text := s.ask(http.MethodPost, wire.PathSessions, `{"language":"python"}`)
	var info session.Info
	if status != http.StatusCreated || json.Unmarshal([]byte(text), &info) != nil {
		t.Fatalf("%d %s", status, text)
	}
	path := wire.PathSessions + "/" + info.ID
	if status, _, text := s.ask(http.MethodPost, wire.PathSessions, `{"language":"python"}`); status != http.StatusTooManyRequests {
		t.Errorf("%d %s", status, text)
	}
	status, head, text := s.ask(http.MethodPost, path+"/cells", `{"code":"x = 41","receipt":true}`)
	if status != http.StatusOK || head.Get(wire.HeaderReceipt) == "" || head.Get(wire.HeaderRunID) != info.ID+"/1" {
		t.Errorf("%d %v %s", status, head, text)
	}
	tcp := "http://" + regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(s.log.String())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, tcp+path+"/cells", strings.NewReader(`{"code":"x + 1"}`))
	must(t, err)
	r.Header.Set("Content-Type", wire.TypeJSON)
	r.Header.Set("Authorization", "Bearer "+s.token)
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	var result struct{ Value string }
	must(t, json.NewDecoder(answer.Body).Decode(&result))
	answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if result.Value != "42" {
		t.Errorf("%d %+v", answer.StatusCode, result)
	}
	_, _, metrics := s.ask(http.MethodGet, "/metrics", "")
	for _, want := range []string{"sandbox_run_sessions 1\n", `sandbox_run_cells_total{language="python",verdict="ok"} 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in %s", want, metrics)
		}
	}
	last := make(chan string, 1)
	go func() {
		_, _, text := s.ask(http.MethodPost, path+"/cells", `{"code":"import time; time.sleep(3); 'in peace'"}`)
		last <- text
	}()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		_, _, text := s.ask(http.MethodGet, path, "")
		if strings.Contains(text, `"state":"busy"`) {
			break
		}
		if time.Now().After(end) {
			t.Fatal(text)
		}
	}
	s.stop()
	if text := <-last; !strings.Contains(text, `"value":"'in peace'"`) {
		t.Error(text)
	}
	log, err := os.ReadFile(filepath.Join(s.dir, "audit.jsonl"))
	must(t, err)
	for _, want := range []string{`"kind":"session","run":"` + info.ID + `"`, `"reason":"created"`, `"reason":"ended"`, `"run":"` + info.ID + `/1"`} {
		if !strings.Contains(string(log), want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
}

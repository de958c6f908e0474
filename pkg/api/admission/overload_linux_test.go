package admission_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/admission"
	"github.com/sandbox-run/sandbox-run/pkg/api/internal/apitest"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// server serves the API over real sandboxes and a queue, on a socket.
func server(t *testing.T, o admission.Options, keys apitest.Tokens) (*apitest.Client, *admission.Queue, *sandbox.Manager) {
	t.Helper()
	engine, manager := apitest.Real(t)
	q, err := admission.New(o)
	apitest.Must(t, err)
	return apitest.New(t, api.Options{Executor: engine, Admission: q, Auth: keys}, nil), q, manager
}

func shell(code string, fields ...string) string {
	return fmt.Sprintf(`{"language":"shell","code":%q,"memory":"64MiB","cpus":1%s}`, code, strings.Join(append([]string{""}, fields...), ","))
}

// answer is the outcome of a request.
type answer struct {
	status int
	retry  int
	body   []byte
	took   time.Duration
}

func ask(ctx context.Context, t *testing.T, c *apitest.Client, token, body string) (a answer) {
	t.Helper()
	client := *c
	client.Token = token
	begin := time.Now()
	res, err := client.Post(ctx, wire.PathRun, body)
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return a
	}
	defer res.Body.Close()
	a.status = res.StatusCode
	a.retry, _ = strconv.Atoi(res.Header.Get("Retry-After"))
	a.body, _ = io.ReadAll(res.Body)
	a.took = time.Since(begin)
	return a
}

func printed(t *testing.T, a answer) string {
	t.Helper()
	r, err := wire.DecodeResult(a.body)
	if err != nil {
		t.Errorf("%v: %s", err, a.body)
		return ""
	}
	return string(r.Verdict) + " " + string(r.Stdout.Bytes())
}

// resident returns the resident memory of this process.
func resident(t *testing.T) sandbox.Size {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	apitest.Must(t, err)
	pages, err := strconv.ParseUint(strings.Fields(string(b))[1], 10, 64)
	apitest.Must(t, err)
	return sandbox.Size(pages) * sandbox.Size(os.Getpagesize())
}

// A5: under four times the load that fits, accepted runs are correct, others get a Retry-After, memory is bounded, and the server then
// recovers.
func TestOverload(t *testing.T) {
	const slots, queue = 4, 12
	c, q, manager := server(t, admission.Options{CPUs: slots, Memory: 2 * sandbox.GiB, Queue: queue, Wait: 20 * time.Second},
		apitest.Tokens{"a": {}, "b": {}, "c": {Concurrency: 2, Rate: 1, Burst: 1}})
	warm := ask(t.Context(), t, c, "a", shell("echo hello"))
	if warm.status != 200 {
		t.Fatalf("%d %s", warm.status, warm.body)
	}
	before := resident(t)
	lasts := 4 * time.Second
	if testenv.All() {
		lasts = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var done, busy, mine, wrong atomic.Int64
	var peak atomic.Uint64
	var clients sync.WaitGroup
	for i := range 4 * (slots + queue) {
		clients.Go(func() {
			token := []string{"a", "b", "c"}[i%3]
			for n := 0; ctx.Err() == nil; n++ {
				// Wait for accepted runs and check their results.
				text := fmt.Sprintf("%d %d", i, n)
				a := ask(t.Context(), t, c, token, shell("echo "+text+"; sleep 0.02"))
				switch {
				case a.status == 200 && printed(t, a) == "ok "+text+"\n":
					done.Add(1)
				case a.status == http.StatusServiceUnavailable && a.retry > 0:
					busy.Add(1)
				case a.status == http.StatusTooManyRequests && a.retry > 0 && token == "c":
					mine.Add(1)
				default:
					if wrong.Add(1) < 5 {
						t.Errorf("%s: %d, Retry-After %d: %s", token, a.status, a.retry, a.body)
					}
				}
				if a.status != 200 {
					time.Sleep(time.Duration(20+rand.IntN(50)) * time.Millisecond) // impatient, as the worst clients are
				}
			}
		})
	}
	clients.Go(func() {
		for ctx.Err() == nil {
			if l := q.Load(); l.CPUs > slots || l.Memory > 2*sandbox.GiB || l.Reserved+l.Waiting > queue {
				t.Errorf("over the budget: %+v", l)
			}
			peak.Store(max(peak.Load(), uint64(resident(t))))
			time.Sleep(20 * time.Millisecond)
		}
	})
	clients.Wait()
	over := time.Now()
	t.Logf("%d done, %d found it busy, %d were over their own share; %s before, %s at the most", done.Load(), busy.Load(), mine.Load(), before,
		sandbox.Size(peak.Load()))
	if done.Load() == 0 || busy.Load() == 0 || mine.Load() == 0 || wrong.Load() > 0 {
		t.Errorf("%d done, %d busy, %d over their share, %d wrong", done.Load(), busy.Load(), mine.Load(), wrong.Load())
	}
	if grown := sandbox.Size(peak.Load()) - min(before, sandbox.Size(peak.Load())); grown > 300*sandbox.MiB {
		t.Errorf("memory grew by %s", grown)
	}
	apitest.Eventually(t, "no run runs or waits", func() bool { l := q.Load(); return l.Running == 0 && l.Waiting == 0 && l.Memory == 0 })
	after := ask(t.Context(), t, c, "b", shell("echo again"))
	if took := time.Since(over); after.status != 200 || took > max(30*time.Second, 20*warm.took) {
		t.Errorf("normal again after %v: %d (a run took %v before)", took, after.status, warm.took)
	}
	apitest.Eventually(t, "no sandbox is left", func() bool { return len(manager.List()) == 0 })
}

// A greedy key does not keep other keys from being served.
func TestMisbehavingNeighbour(t *testing.T) {
	const slots = 2
	c, q, _ := server(t, admission.Options{CPUs: slots, Memory: 2 * sandbox.GiB, Queue: 16, Wait: time.Minute},
		apitest.Tokens{"hog": {}, "nice": {}})
	ctx, cancel := context.WithCancel(t.Context())
	var hogs sync.WaitGroup
	var refused atomic.Int64
	var mu sync.Mutex
	var spun []time.Duration
	for range 24 {
		hogs.Go(func() {
			for ctx.Err() == nil {
				a := ask(ctx, t, c, "hog", shell("while :; do :; done", `"timeout":"300ms","grace":"100ms"`))
				switch a.status {
				case 200:
					mu.Lock()
					spun = append(spun, a.took)
					mu.Unlock()
				case 503:
					refused.Add(1)
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	apitest.Eventually(t, "the hog has filled the queue", func() bool { return q.Load().Waiting >= 12 && refused.Load() > 0 })
	rounds := 10
	if testenv.All() {
		rounds = 60
	}
	var took []time.Duration
	for i := range rounds {
		a := ask(t.Context(), t, c, "nice", shell(fmt.Sprint("echo ", i)))
		if a.status != 200 || printed(t, a) != fmt.Sprintf("ok %d\n", i) {
			t.Errorf("%d: %s", a.status, a.body)
		}
		took = append(took, a.took)
	}
	cancel()
	hogs.Wait()
	slices.Sort(took)
	slices.Sort(spun)
	if len(spun) < rounds/2 { // one for each of the others' there was at least; some were not read to their end
		t.Fatalf("the hog had %d runs", len(spun))
	}
	nice, hog := took[len(took)/2], spun[len(spun)/2]
	t.Logf("runs took %v in the middle and %v at the most; those of the hog %v in the middle, %d of them, and it was refused %d times", nice,
		took[len(took)-1], hog, len(spun), refused.Load())
	// Without fairness a run would wait as long as the greedy key's own runs.
	if nice > hog/2 {
		t.Errorf("runs took %v in the middle, those of the hog %v", nice, hog)
	}
}

package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The bounds of TestServeFlood.
const (
	floodGroup = 1 << 30   // memory limit of the server's cgroup
	floodMost  = 600 << 20 // memory peak of the server
	floodSpill = 512 << 20
	floodKeep  = 64 << 20 // output_limit
)

// TestServeFlood: programs that print gigabytes of invalid UTF-8 do not kill a server in a cgroup of 1 GiB, in any way of requesting their
// output (R7, A5). Every response is correct, or a refusal with Retry-After.
func TestServeFlood(t *testing.T) {
	t.Run("seconds", func(t *testing.T) { flood(t, 3*time.Second, 3_000_000, 70_000_000) })
	t.Run("a minute", func(t *testing.T) {
		testenv.NeedAll(t, "seconds")
		flood(t, time.Minute, 500, 3_000_000, 20_000_000, 70_000_000, 150_000_000)
	})
}

func flood(t *testing.T, lasts time.Duration, sizes ...int64) {
	testenv.NeedRoot(t)
	group := memoryGroup(t, floodGroup)
	dir, args := newServerDir(t)
	args = append(args, "--listen", "unix://"+dir+"/s", "--no-warm", "--spill-size", strconv.Itoa(floodSpill))
	s := startCommand(t, exec.Command("/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs"),
		"/usr/bin/env", "--default-signal=HUP,INT,QUIT,TERM", binary(t), "serve"}, args...)...))
	c := &floodClient{t: t, s: s, dir: filepath.Join(dir, "state"), http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", dir+"/s")
		},
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var clients sync.WaitGroup
	for n := range 8 {
		clients.Go(func() {
			for i := n; ctx.Err() == nil && !t.Failed(); i++ {
				c.ways()[i%4](sizes[i/4%len(sizes)])
			}
		})
	}
	over := make(chan struct{})
	go func() { clients.Wait(); close(over) }()
	var most int64
	for done := false; !done; {
		select {
		case <-over:
			done = true
		case <-s.over:
			t.Errorf("the server has ended: %v", s.err)
			<-over
			done = true
		case <-time.After(50 * time.Millisecond): // the sampling interval
			most = max(most, c.spilledBytes())
		}
	}
	if t.Failed() {
		t.Fatalf("%s", s.log())
	}
	peak := c.peakMemory()
	t.Logf("%d answers, %d refused, %d with less output; memory peak %d MiB, spilled %d MiB",
		c.answers.Load(), c.refused.Load(), c.short.Load(), peak>>20, most>>20)
	if peak > floodMost {
		t.Errorf("the server took %d MiB of memory", peak>>20)
	}
	if most > floodSpill || most == 0 {
		t.Errorf("%d MiB were spilled", most>>20)
	}
	// A response ends before its handler has returned the spill space.
	for end := time.Now().Add(10 * time.Second); c.spilledBytes() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%d bytes of spill space were not returned", c.spilledBytes())
			break
		}
	}
	if c.answers.Load() == 0 {
		t.Error("no answer at all")
	}
	s.signal(os.Interrupt)
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// memoryGroup makes a cgroup with a memory limit, and removes it after the test.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	dir, file := filepath.Join("/sys/fs/cgroup/memory", fmt.Sprint("sandbox-run-flood-", os.Getpid())), "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		dir, file = filepath.Join("/sys/fs/cgroup", filepath.Base(dir)), "memory.max"
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0) // on failure, the write of memory.max fails
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("no cgroup can be made here: ", err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(serveTime); os.Remove(dir) != nil; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Error("the cgroup is left")
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0); err != nil {
		t.Skip("no memory controller here: ", err)
	}
	return dir
}

type floodClient struct {
	t    *testing.T
	s    *serverProcess
	dir  string // the server's state directory
	http *http.Client

	answers, refused, short atomic.Int64
}

// ways returns the ways to request a run: synchronous, streamed, asynchronous, batch.
func (c *floodClient) ways() [4]func(size int64) {
	return [4]func(int64){
		func(n int64) {
			if a := c.request("POST", "/v1/run", floodProgram(n)); a != nil {
				c.checkResult(a, a.text, n)
			}
		},
		func(n int64) {
			if a := c.request("POST", "/v1/run", floodProgram(n), "Accept", "application/x-ndjson"); a != nil {
				c.checkStream(a, n)
			}
		},
		func(n int64) {
			var run struct {
				ID     string          `json:"id"`
				State  string          `json:"state"`
				Result json.RawMessage `json:"result"`
			}
			a := c.request("POST", "/v1/runs", floodProgram(n))
			for a != nil && c.decode(a.text, &run) && run.State != "done" {
				time.Sleep(100 * time.Millisecond) // the client's polling interval
				for a = nil; a == nil && !c.t.Failed(); {
					a = c.request("GET", "/v1/runs/"+run.ID, "")
				}
			}
			if a != nil && !c.t.Failed() {
				c.checkResult(a, run.Result, n)
				c.request("DELETE", "/v1/runs/"+run.ID, "")
			}
		},
		func(n int64) {
			var batch struct {
				Items []struct {
					Result json.RawMessage `json:"result"`
					Error  *struct{ Status int }
				} `json:"items"`
			}
			a := c.request("POST", "/v1/batch", `{"runs":[`+floodProgram(n)+`,`+floodProgram(n)+`]}`)
			if a == nil || !c.decode(a.text, &batch) {
				return
			}
			for _, item := range batch.Items {
				if item.Error != nil && (item.Error.Status == 429 || item.Error.Status == 503) {
					c.refused.Add(1)
					continue
				}
				c.checkResult(a, item.Result, n)
			}
		},
	}
}

// period is what programs print repeatedly. No part of it is UTF-8.
const period = "\200\201\202\203\204\205\206"

func floodProgram(n int64) string {
	code, _ := json.Marshal(fmt.Sprintf(`f() { yes abcdef | tr 'abcdef\n' '\200\201\202\203\204\205\206' | head -c %d; }
f >&2 & f; wait`, n))
	return fmt.Sprintf(`{"language":"shell","code":%s,"output_limit":"%d","memory":"64MiB","timeout":"5m"}`, code, floodKeep)
}

// floodAnswer is a response whose outputs are replaced by their index in outputs.
type floodAnswer struct {
	text    []byte
	outputs []floodOutput
}

// request makes a request and reads the response. It returns nil for a refusal with Retry-After.
func (c *floodClient) request(method, path, body string, headers ...string) *floodAnswer {
	req, err := http.NewRequest(method, "http://server"+path, strings.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return nil
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Errorf("%s %s: %v", method, path, err)
		return nil
	}
	defer res.Body.Close()
	a, err := readAnswer(res.Body)
	switch {
	case err != nil:
		c.t.Errorf("%s %s: %d, %v", method, path, res.StatusCode, err)
		return nil
	case res.StatusCode == 429 || res.StatusCode == 503:
		after, err := strconv.Atoi(res.Header.Get("Retry-After"))
		if err != nil || after < 1 {
			c.t.Errorf("%d without Retry-After: %s", res.StatusCode, a.text)
		}
		c.refused.Add(1)
		time.Sleep(time.Second) // as a refused client does
		return nil
	case res.StatusCode/100 != 2:
		c.t.Errorf("%s %s: %d %s", method, path, res.StatusCode, a.text)
		return nil
	}
	c.answers.Add(1)
	return a
}

func (c *floodClient) decode(text []byte, doc any) bool {
	err := json.Unmarshal(text, doc)
	if err != nil {
		c.t.Errorf("%v: %.500s", err, text)
	}
	return err == nil
}

// checkResult checks that a result has the head and the tail of the printed output.
func (c *floodClient) checkResult(a *floodAnswer, text []byte, n int64) {
	var doc struct {
		sandbox.Document
	}
	if !c.decode(text, &doc) {
		return
	}
	if doc.Verdict != sandbox.VerdictOK {
		c.t.Errorf("%s, exit code %d: %.300s", doc.Verdict, doc.ExitCode, text)
		return
	}
	less := strings.Contains(strings.Join(doc.Notes, " "), "less output was kept")
	if less {
		c.short.Add(1)
	}
	for _, o := range []struct {
		name, index, encoding string
		truncated             bool
		head                  int
		dropped               uint64
	}{
		{"stdout", doc.Stdout, doc.StdoutEncoding, doc.StdoutTruncated, doc.StdoutHeadBytes, doc.StdoutDropped},
		{"stderr", doc.Stderr, doc.StderrEncoding, doc.StderrTruncated, doc.StderrHeadBytes, doc.StderrDropped},
	} {
		i, err := strconv.Atoi(o.index)
		if err != nil || i >= len(a.outputs) || o.encoding != "base64" {
			c.t.Errorf("%s: there is no output %q in %q", o.name, o.index, o.encoding)
			continue
		}
		got := a.outputs[i]
		dropped := int64(o.dropped)
		switch {
		case got.err != nil:
			c.t.Errorf("%s: %v", o.name, got.err)
		case got.size+dropped != n || o.truncated != (dropped > 0) || got.size > floodKeep:
			c.t.Errorf("%s: %d bytes are kept and %d dropped of %d, truncated %v", o.name, got.size, dropped, n, o.truncated)
		case got.size != min(n, floodKeep) && !less:
			c.t.Errorf("%s: %d bytes are kept of %d, and no note says why", o.name, got.size, n)
		case got.shift != dropped%int64(len(period)) || got.cut >= 0 && got.cut != int64(o.head):
			c.t.Errorf("%s: cut at %d by %d, want %d by %d", o.name, got.cut, got.shift, o.head, dropped%int64(len(period)))
		}
	}
}

// checkStream checks the events of a run and its result.
func (c *floodClient) checkStream(a *floodAnswer, n int64) {
	heard := map[string]int64{}
	seq := uint64(0)
	for line := range bytes.Lines(a.text) {
		var ev struct {
			Seq    uint64          `json:"seq"`
			Kind   string          `json:"kind"`
			Offset int64           `json:"offset"`
			Data   string          `json:"data"`
			Result json.RawMessage `json:"result"`
		}
		if !c.decode(line, &ev) {
			return
		}
		if seq++; ev.Seq != seq {
			c.t.Errorf("event %d after %d", ev.Seq, seq-1)
			return
		}
		switch ev.Kind {
		case "stdout", "stderr":
			i, err := strconv.Atoi(ev.Data)
			if err != nil || ev.Offset != heard[ev.Kind] || a.outputs[i].cut >= 0 || a.outputs[i].first != ev.Offset%int64(len(period)) {
				c.t.Errorf("event %d at %d, want %d: %v", seq, ev.Offset, heard[ev.Kind], err)
				return
			}
			heard[ev.Kind] += a.outputs[i].size
		case "result":
			c.checkResult(a, ev.Result, n)
			if heard["stdout"] != n || heard["stderr"] != n {
				c.t.Errorf("%v bytes were live, of %d", heard, n)
			}
			return
		}
	}
	c.t.Error("the stream has no result")
}

// readAnswer reads a document or lines and replaces outputs, which may be large, by their index.
func readAnswer(from io.Reader) (*floodAnswer, error) {
	in := bufio.NewReaderSize(from, 64<<10)
	a := &floodAnswer{}
	for {
		part, err := in.ReadSlice('"')
		a.text = append(a.text, part...)
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return a, err
		}
		for _, name := range []string{`"stdout":"`, `"stderr":"`, `"data":"`} {
			if bytes.HasSuffix(a.text, []byte(name)) {
				o := floodOutput{cut: -1}
				for more := true; more; {
					part, err := in.ReadSlice('"')
					if more = errors.Is(err, bufio.ErrBufferFull); err != nil && !more {
						return a, err
					}
					o.addPart(bytes.TrimSuffix(part, []byte(`"`)))
				}
				a.text = append(strconv.AppendInt(a.text, int64(len(a.outputs)), 10), '"')
				a.outputs = append(a.outputs, o)
				break
			}
		}
	}
}

// floodOutput describes an output: repeated periods, with at most one shift where bytes were dropped.
type floodOutput struct {
	size  int64
	first int64 // position of the first byte in a period
	shift int64 // of the period after the cut
	cut   int64 // position of the shift; -1 without one
	rest  []byte
	err   error
}

// addPart decodes and checks a part of the base64 text.
func (o *floodOutput) addPart(part []byte) {
	text := append(o.rest, part...)
	whole := len(text) / 4 * 4
	data, err := base64.StdEncoding.AppendDecode(nil, text[:whole])
	if o.rest = bytes.Clone(text[whole:]); err != nil && o.err == nil {
		o.err = err
	}
	if o.size == 0 && len(data) > 0 {
		o.first = int64(data[0] - period[0])
	}
	const p = int64(len(period))
	for i, b := range data {
		at := o.size + int64(i)
		if place := int64(b) - int64(period[0]); place != (at+o.first+o.shift)%p {
			if o.cut >= 0 || place < 0 || place >= p {
				o.err = fmt.Errorf("byte %d is not what was printed", at)
				break
			}
			o.cut, o.shift = at, ((place-at-o.first)%p+p)%p
		}
	}
	o.size += int64(len(data))
}

// spilledBytes returns the size of the server's unnamed files.
func (c *floodClient) spilledBytes() (n int64) {
	fds := fmt.Sprintf("/proc/%d/fd", c.s.cmd.Process.Pid)
	names, _ := os.ReadDir(fds)
	for _, name := range names {
		path := filepath.Join(fds, name.Name())
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, c.dir+"/#") {
			if st, err := os.Stat(path); err == nil {
				n += st.Size()
			}
		}
	}
	return n
}

// peakMemory returns the server's peak resident memory.
func (c *floodClient) peakMemory() (n int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.s.cmd.Process.Pid))
	if err != nil {
		c.t.Error(err)
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &n); err == nil {
			return n << 10
		}
	}
	return 0
}

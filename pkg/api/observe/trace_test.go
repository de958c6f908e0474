package observe

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// collector takes spans as any OTLP collector does, and reads them with the generated code. TracesData has the form of the request.
type collector struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	spans   map[string]*tracepb.Span // by name and kind of span
	service string
	headers http.Header
	refuse  int // that many first
}

func newCollector(t *testing.T) *collector {
	c := &collector{t: t, spans: map[string]*tracepb.Span{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse > 0 {
		c.refuse--
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			c.t.Error(err)
			return
		}
		body = z
	}
	text, err := io.ReadAll(body)
	var data tracepb.TracesData
	if err == nil {
		err = proto.UnmarshalOptions{}.Unmarshal(text, &data)
	}
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
		return
	}
	c.headers = r.Header
	for _, rs := range data.ResourceSpans {
		if n := len(rs.ProtoReflect().GetUnknown()); n > 0 {
			c.t.Errorf("%d unknown bytes", n)
		}
		c.service = attributeOf(rs.Resource.Attributes, "service.name")
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans[s.Name+" "+s.Kind.String()] = s
			}
		}
	}
}

func attributeOf(all []*commonpb.KeyValue, key string) string {
	i := slices.IndexFunc(all, func(kv *commonpb.KeyValue) bool { return kv.Key == key })
	if i < 0 {
		return ""
	}
	return all[i].Value.GetStringValue()
}

func endpoint(t *testing.T, c *collector) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token")
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraces(t *testing.T) {
	for _, compression := range []string{"none", "gzip"} {
		t.Run(compression, func(t *testing.T) {
			c := newCollector(t)
			c.refuse = 1 // it comes again
			endpoint(t, c)
			t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
			traces, err := TracesFromEnvironment("1.2.3")
			must(t, err)
			o := New(Options{Traces: traces})
			f := aRun("r-1", "go", sandbox.VerdictOK)
			// Access reads the request's trace context, which is still known after the request.
			r := httptest.NewRequest(http.MethodPost, "/v1/runs", nil)
			r.Header.Set("traceparent", parent)
			o.Access(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				o.Queued(r.Context(),
					f.Info)
			})).ServeHTTP(httptest.NewRecorder(), r)
			o.Started(context.Background(), f.Info)
			o.Finished(context.Background(), f)
			closed(t, o)

			c.mu.Lock()
			defer c.mu.Unlock()
			if c.service != "sandbox-run" || c.headers.Get("Authorization") != "Bearer token" {
				t.Errorf("service %q, %v", c.service, c.headers)
			}
			root := c.spans["run SPAN_KIND_SERVER"]
			if root == nil || len(c.spans) != 5 {
				t.Fatalf("%v", c.spans)
			}
			if hexOf(root.TraceId) != parent[3:35] || hexOf(root.ParentSpanId) != parent[36:52] {
				t.Errorf("trace %x, parent %x", root.TraceId, root.ParentSpanId)
			}
			for key, want := range map[string]string{"sandbox_run.run": "r-1", "sandbox_run.language": "go", "sandbox_run.verdict": "ok",
				"sandbox_run.key": "key-1", "sandbox_run.tier": "container"} {
				if got := attributeOf(root.Attributes, key); got != want {
					t.Errorf("%s is %q", key, got)
				}
			}
			for name, want := range map[string][2]int{ // milliseconds from acceptance
				"run SPAN_KIND_SERVER": {0, 700}, "queue SPAN_KIND_INTERNAL": {0, 100}, "create SPAN_KIND_INTERNAL": {100, 120},
				"compile SPAN_KIND_INTERNAL": {120, 320}, "run SPAN_KIND_INTERNAL": {320, 620},
			} {
				s := c.spans[name]
				if s == nil {
					t.Errorf("no %s", name)
					continue
				}
				from := int((time.Duration(s.StartTimeUnixNano) - time.Duration(began.UnixNano())).Milliseconds())
				to := int((time.Duration(s.EndTimeUnixNano) - time.Duration(began.UnixNano())).Milliseconds())
				if from != want[0] || to != want[1] {
					t.Errorf("%s: %d to %d, want %v", name, from, to, want)
				}
				if s != root && !bytes.Equal(s.ParentSpanId, root.SpanId) {
					t.Errorf("%s has another parent", name)
				}
			}
		})
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

// Runs that fail, never start, or have no parent have spans, too; parents of finished runs are forgotten.
func TestTracesOfUnusualRuns(t *testing.T) {
	c := newCollector(t)
	endpoint(t, c)
	traces, err := TracesFromEnvironment("")
	must(t, err)
	o := New(Options{Traces: traces})
	f := aRun("r-1", "go", "")
	f.Result, f.Err, f.Started = nil, io.ErrUnexpectedEOF, time.Time{}
	happen(o, f)
	closed(t, o)
	root := c.spans["run SPAN_KIND_SERVER"]
	if len(c.spans) != 2 || root == nil || root.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || len(root.ParentSpanId) != 0 {
		t.Errorf("%v", c.spans)
	}
	if len(traces.parents) != 0 {
		t.Errorf("%v", traces.parents)
	}
}

// A missing collector delays no run, and is logged without its address.
func TestNoCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:MARKER@127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
	traces, err := TracesFromEnvironment("")
	must(t, err)
	var out bytes.Buffer
	o := New(Options{Traces: traces, Log: slog.New(slog.NewJSONHandler(&out, nil))})
	happen(o, aRun("r-1", "go", sandbox.VerdictOK))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = o.Close(ctx)
	if !strings.Contains(out.String(), "spans not delivered") || strings.Contains(out.String(), "MARKER") {
		t.Errorf("%s", out.String())
	}
}

func TestTracesFromEnvironment(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string // of the error; "none": there are no traces; "": there are
	}{
		{nil, "none"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://x/y"}, ""},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, "none"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, "none"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "zipkin"}, "use otlp"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "use http/protobuf"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "user:MARKER@x"}, "not a URL"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "milliseconds"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_COMPRESSION": "lz4"}, "gzip"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_HEADERS": "MARKER"}, "HEADERS"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/absent"}, "CERTIFICATE"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_CERTIFICATE": "trace_test.go"}, "no certificate"},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/x"}, "client certificates"},
	} {
		e, err := exporterFromEnvironment(func(name string) string { return c.env[name] })
		switch {
		case c.want == "" && (err != nil || e == nil), c.want == "none" && (err != nil || e != nil):
			t.Errorf("%v: %v, %v", c.env, e, err)
		case c.want != "" && c.want != "none" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "MARKER")):
			t.Errorf("%v: %v", c.env, err)
		}
	}
	e, err := exporterFromEnvironment(func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318/base"}[name]
	})
	if err != nil || e.url != "http://x:4318/base/v1/traces" {
		t.Errorf("%+v, %v", e, err)
	}
}

// The number of stored parents is bounded.
func TestParentsAreBounded(t *testing.T) {
	c := newCollector(t)
	endpoint(t, c)
	traces, err := TracesFromEnvironment("")
	must(t, err)
	o := New(Options{Traces: traces})
	defer closed(t, o)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("traceparent", parent)
	o.Access(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for i := range mostParents + 100 {
			traces.Queued(r.Context(), api.Info{ID: time.Duration(i).String()})
		}
	})).ServeHTTP(httptest.NewRecorder(), r)
	if len(traces.parents) != mostParents {
		t.Errorf("%d", len(traces.parents))
	}
}

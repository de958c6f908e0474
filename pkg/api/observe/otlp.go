package observe

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// exporter sends spans as OTLP over HTTP. OpenTelemetry's own one (otlptracehttp 1.44) links gRPC: the server's executable grows by
// 2.2 MB (8.6 %), its start by 53 initialised packages (6 % of its CPU time). It would save half of this file only: it ignores
// variables that are wrong, such as a certificate that can not be read, and does not try again where a connection is refused. The
// format is the published opentelemetry-proto; a test reads what is written here with the generated code.
type exporter struct {
	client  *http.Client
	url     string
	headers http.Header
	gzip    bool
	timeout time.Duration
	report  func(error)
}

var _ sdk.SpanExporter = (*exporter)(nil)

// exporterFromEnvironment is nil where nobody asked for one.
func exporterFromEnvironment(env func(string) string) (*exporter, error) {
	get := func(name string) string { // what is of traces alone comes first
		if v := env("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
			return v
		}
		return env("OTEL_EXPORTER_OTLP_" + name)
	}
	endpoint := get("ENDPOINT")
	switch kind := env("OTEL_TRACES_EXPORTER"); {
	case strings.EqualFold(env("OTEL_SDK_DISABLED"), "true"), kind == "none", endpoint == "":
		return nil, nil
	case kind != "" && kind != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER=%q: there is only otlp, and none", kind)
	}
	if p := get("PROTOCOL"); p != "" && p != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%q: there is only http/protobuf", p)
	}
	for _, name := range []string{"CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		if get(name) != "" {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_%s: client certificates are not supported; use HEADERS", name)
		}
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT: not a URL like http://127.0.0.1:4318") // it may hold a password: it is not repeated
	}
	if env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		u = u.JoinPath("v1", "traces")
	}
	e := &exporter{url: u.String(), headers: http.Header{}, timeout: 10 * time.Second, report: func(error) {}}
	if ms := get("TIMEOUT"); ms != "" {
		n, err := strconv.Atoi(ms)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT=%q: not a number of milliseconds", ms)
		}
		e.timeout = time.Duration(n) * time.Millisecond
	}
	switch c := get("COMPRESSION"); c {
	case "", "none":
	case "gzip":
		e.gzip = true
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_COMPRESSION=%q: there is gzip, and none", c)
	}
	for _, pair := range strings.Split(get("HEADERS"), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name, nameErr := url.PathUnescape(strings.TrimSpace(name))
		value, valueErr := url.PathUnescape(strings.TrimSpace(value))
		if !ok || name == "" || nameErr != nil || valueErr != nil {
			return nil, errors.New("OTEL_EXPORTER_OTLP_HEADERS: not a list like name=value,name=value")
		}
		e.headers.Set(name, value)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: e.timeout}
	if file := get("CERTIFICATE"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s: no certificate in it", file)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	e.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return e, nil
}

// attempts are made where the collector says that it is worth it.
const attempts = 3

// ExportSpans delivers spans; those that can not be are lost, and the operator hears of it.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	body := encodeSpans(spans)
	if e.gzip {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(body)
		if err := errors.Join(err, z.Close()); err != nil {
			return err
		}
		body = b.Bytes()
	}
	var err error
	for i := range attempts {
		var again time.Duration
		if again, err = e.post(ctx, body); err == nil || again == 0 || i == attempts-1 {
			break
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			err = errors.Join(err, ctx.Err())
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		e.report(fmt.Errorf("%d spans: %w", len(spans), err))
	}
	return nil // it is said; the SDK would only say it again on standard error
}

// post says after which time it is worth another try; 0 is never.
func (e *exporter) post(ctx context.Context, body []byte) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header = e.headers.Clone()
	r.Header.Set("Content-Type", "application/x-protobuf")
	if e.gzip {
		r.Header.Set("Content-Encoding", "gzip")
	}
	answer, err := e.client.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address, which may hold a password
		}
		return time.Second, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection can be used again
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = time.Second
		if n, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && n > 0 {
			again = time.Duration(min(n, 10)) * time.Second
		}
	}
	if answer.StatusCode/100 != 2 {
		return again, fmt.Errorf("the collector answers %s", answer.Status)
	}
	return 0, nil
}

// Shutdown lets go of the connection.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// encodeSpans writes an ExportTraceServiceRequest. Spans of one provider have one resource and one scope.
func encodeSpans(spans []sdk.ReadOnlySpan) []byte {
	var scope []byte // ScopeSpans
	about := spans[0].InstrumentationScope()
	scope = message(scope, 1, text(text(nil, 1, about.Name), 2, about.Version))
	for _, s := range spans {
		scope = message(scope, 2, encodeSpan(s))
	}
	var res []byte
	for _, kv := range spans[0].Resource().Attributes() {
		res = message(res, 1, keyValue(kv))
	}
	var all []byte // ResourceSpans
	all = message(all, 1, res)
	all = message(all, 2, scope)
	return message(nil, 1, all)
}

func encodeSpan(s sdk.ReadOnlySpan) (b []byte) {
	traceID, spanID := s.SpanContext().TraceID(), s.SpanContext().SpanID()
	b = message(b, 1, traceID[:])
	b = message(b, 2, spanID[:])
	b = text(b, 3, s.SpanContext().TraceState().String())
	if parent := s.Parent(); parent.SpanID().IsValid() {
		id := parent.SpanID()
		b = message(b, 4, id[:])
	}
	b = text(b, 5, s.Name())
	b = protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.VarintType), uint64(s.SpanKind()))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 7, protowire.Fixed64Type), uint64(s.StartTime().UnixNano()))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 8, protowire.Fixed64Type), uint64(s.EndTime().UnixNano()))
	for _, kv := range s.Attributes() {
		b = message(b, 9, keyValue(kv))
	}
	status := uint64(0)
	switch s.Status().Code {
	case otelcodes.Ok:
		status = 1
	case otelcodes.Error:
		status = 2
	}
	if status != 0 {
		b = message(b, 15, protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), status))
	}
	return b
}

func keyValue(kv attribute.KeyValue) []byte {
	var v []byte
	switch kv.Value.Type() {
	case attribute.BOOL:
		v = protowire.AppendVarint(protowire.AppendTag(v, 2, protowire.VarintType), protowire.EncodeBool(kv.Value.AsBool()))
	case attribute.INT64:
		v = protowire.AppendVarint(protowire.AppendTag(v, 3, protowire.VarintType), uint64(kv.Value.AsInt64()))
	case attribute.FLOAT64:
		v = protowire.AppendFixed64(protowire.AppendTag(v, 4, protowire.Fixed64Type), math.Float64bits(kv.Value.AsFloat64()))
	default: // lists come from the operator's variables only
		v = protowire.AppendString(protowire.AppendTag(v, 1, protowire.BytesType), kv.Value.String())
	}
	return message(text(nil, 1, string(kv.Key)), 2, v)
}

func message(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

func text(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

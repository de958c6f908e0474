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

// exporter sends spans as OTLP over HTTP. OpenTelemetry's own exporter (otlptracehttp 1.44) links gRPC: the server's executable would grow
// by 2.2 MB (8.6 %), its start by 53 initialised packages (6 % of its CPU time). It would save half of this file only: it ignores invalid
// variables, such as a certificate that can not be read, and does not retry a refused connection. The format is the published
// opentelemetry-proto; a test decodes the output with the generated code.
type exporter struct {
	client  *http.Client
	url     string
	headers http.Header
	gzip    bool
	timeout time.Duration
	report  func(error)
}

var _ sdk.SpanExporter = (*exporter)(nil)

// exporterFromEnvironment returns nil where the variables name no endpoint.
func exporterFromEnvironment(env func(string) string) (*exporter, error) {
	get := func(name string) string { // variables for traces only take precedence
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
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER=%q: not supported; use otlp or none", kind)
	}
	if p := get("PROTOCOL"); p != "" && p != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%q: not supported; use http/protobuf", p)
	}
	for _, name := range []string{"CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		if get(name) != "" {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_%s: client certificates are not supported; use HEADERS", name)
		}
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The endpoint may have a password, so the error does not quote it.
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT: not a URL; give one like http://127.0.0.1:4318")
	}
	if env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		u = u.JoinPath("v1", "traces")
	}
	e := &exporter{url: u.String(), headers: http.Header{}, timeout: 10 * time.Second, report: func(error) {}}
	if ms := get("TIMEOUT"); ms != "" {
		n, err := strconv.Atoi(ms)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT=%q: give a number of milliseconds above 0", ms)
		}
		e.timeout = time.Duration(n) * time.Millisecond
	}
	switch c := get("COMPRESSION"); c {
	case "", "none":
	case "gzip":
		e.gzip = true
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_COMPRESSION=%q: not supported; use gzip or none", c)
	}
	for _, pair := range strings.Split(get("HEADERS"), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name, nameErr := url.PathUnescape(strings.TrimSpace(name))
		value, valueErr := url.PathUnescape(strings.TrimSpace(value))
		if !ok || name == "" || nameErr != nil || valueErr != nil {
			return nil, errors.New("OTEL_EXPORTER_OTLP_HEADERS: invalid list; write name=value,name=value")
		}
		e.headers.Set(name, value)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: e.timeout}
	if file := get("CERTIFICATE"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s: the file has no certificate", file)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	e.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return e, nil
}

// attempts bounds the tries of one export.
const attempts = 3

// ExportSpans sends spans. Spans that can not be sent are lost, and reported.
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
	return nil // already reported; the SDK would print it on standard error, too
}

// post sends one request, and returns the time after which a retry makes sense; 0 means never.
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
			err = u.Err // without the URL, which may have a password
		}
		return time.Second, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // drain it, so that the connection can be used again
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = time.Second
		if n, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && n > 0 {
			again = time.Duration(min(n, 10)) * time.Second
		}
	}
	if answer.StatusCode/100 != 2 {
		return again, fmt.Errorf("collector: unexpected status %s", answer.Status)
	}
	return 0, nil
}

// Shutdown closes idle connections.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// encodeSpans encodes an ExportTraceServiceRequest. Spans of one provider have one resource and one scope.
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
	default: // only the operator's variables have lists
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

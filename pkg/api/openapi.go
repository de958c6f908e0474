package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// newDocument returns the OpenAPI document without operations. huma derives its schemas from Go types.
func newDocument() *huma.OpenAPI {
	schemas := huma.NewMapRegistry("#/components/schemas/", func(t reflect.Type, hint string) string {
		name := huma.DefaultSchemaNamer(t, hint)
		return strings.TrimSuffix(name, "Schema")
	})
	// Types with a MarshalJSON of their own have the schema of their JSON.
	for t, as := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[wire.Size]():           reflect.TypeFor[unitSchema[wire.Size]](),
		reflect.TypeFor[wire.Duration]():       reflect.TypeFor[unitSchema[wire.Duration]](),
		reflect.TypeFor[wire.Count]():          reflect.TypeFor[unitSchema[wire.Count]](),
		reflect.TypeFor[wire.Cores]():          reflect.TypeFor[unitSchema[wire.Cores]](),
		reflect.TypeFor[monitor.Seconds]():     reflect.TypeFor[unitSchema[monitor.Seconds]](),
		reflect.TypeFor[sandbox.Limits]():      reflect.TypeFor[limitsSchema](),
		reflect.TypeFor[wire.Run]():            reflect.TypeFor[runSchema](),
		reflect.TypeFor[wire.Session]():        reflect.TypeFor[sessionSchema](),
		reflect.TypeFor[wire.Cell]():           reflect.TypeFor[cellSchema](),
		reflect.TypeFor[session.Info]():        reflect.TypeFor[sessionInfoSchema](),
		reflect.TypeFor[session.Entry]():       reflect.TypeFor[sessionFileSchema](),
		reflect.TypeFor[protocol.Display]():    reflect.TypeFor[displaySchema](),
		reflect.TypeFor[wire.Volumes]():        reflect.TypeFor[[]string](),
		reflect.TypeFor[executor.OutputFile](): reflect.TypeFor[outputFileSchema](),
		reflect.TypeFor[monitor.Sample]():      reflect.TypeFor[sampleSchema](),
		reflect.TypeFor[network.Policy]():      reflect.TypeFor[networkSchema](),
	} {
		schemas.RegisterTypeAlias(t, as)
	}
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "sandbox-run", Version: "1",
			Description: "Runs untrusted code in fresh, isolated, limited sandboxes, and reports the result and the controls that were enforced.",
		},
		Components: &huma.Components{Schemas: schemas, SecuritySchemes: map[string]*huma.SecurityScheme{
			"token": {Type: "http", Scheme: "bearer",
				Description: "A key of the server, made by sandbox-run key create. A server on a unix socket of your own needs none."},
			"key": {Type: "apiKey", In: "header", Name: wire.HeaderKey,
				Description: "The same key, for clients that can not set Authorization, which takes precedence."},
		}},
		Tags: []*huma.Tag{
			{Name: "Runs", Description: "Programs that are run."},
			{Name: "Sessions", Description: "Interpreters that stay alive between pieces of code."},
			{Name: "Files", Description: "What goes in and comes out besides."},
			{Name: "Server", Description: "What it is and how it is."},
		},
	}
}

// Schema returns the schema of a Go type in the OpenAPI document.
func (s *Server) Schema(t reflect.Type) *huma.Schema {
	return s.operations.Components.Schemas.Schema(t, true, "")
}

// Describe adds an operation to the OpenAPI document, with the token that it needs and the problem that it may answer. It is called before
// the first request for the document.
func (s *Server) Describe(op *huma.Operation, a Access) {
	if !a.Public {
		op.Security = []map[string][]string{{"token": {}}, {"key": {}}, {}}
	}
	op.Responses["default"] = &huma.Response{
		Description: "A problem (RFC 9457).",
		Content:     map[string]*huma.MediaType{wire.TypeProblem: {Schema: s.Schema(reflect.TypeFor[wire.Problem]())}},
	}
	s.operations.AddOperation(op)
}

// unitSchema is a unit as JSON.
type unitSchema[T any] float64

// Schema describes the unit.
func (unitSchema[T]) Schema(huma.Registry) *huma.Schema {
	switch any(*new(T)).(type) {
	case wire.Size:
		return &huma.Schema{
			Description: "A size: bytes as a number, or a text with a unit.",
			OneOf: []*huma.Schema{{Type: huma.TypeInteger, Minimum: ptr(1.0)},
				{Type: huma.TypeString, Pattern: `^[0-9.]+ *([kKmMgGtT]([iI]?[bB])?|[bB])?$`}},
		}
	case wire.Duration:
		return &huma.Schema{
			Description: "A time: seconds as a number, or a text with units.",
			OneOf: []*huma.Schema{{Type: huma.TypeNumber, ExclusiveMinimum: ptr(0.0)},
				{Type: huma.TypeString, Pattern: `^([0-9.]+(ns|us|µs|ms|s|m|h)?)+$`}},
		}
	case wire.Count:
		return &huma.Schema{Type: huma.TypeInteger, Minimum: ptr(1.0)}
	case wire.Cores:
		return &huma.Schema{Type: huma.TypeNumber, ExclusiveMinimum: ptr(0.0)}
	}
	return &huma.Schema{Type: huma.TypeNumber, Description: "Seconds."}
}

// limitsSchema is sandbox.Limits as JSON.
type limitsSchema struct{}

// TransformSchema adds the limits of their table.
func (limitsSchema) TransformSchema(schemas huma.Registry, s *huma.Schema) *huma.Schema {
	s.Properties = map[string]*huma.Schema{}
	defaults := sandbox.DefaultLimits()
	for _, row := range sandbox.AllLimits() {
		t := reflect.TypeOf(row.Field(&defaults)).Elem()
		if t == reflect.TypeFor[time.Duration]() {
			t = reflect.TypeFor[unitSchema[monitor.Seconds]]()
		}
		s.Properties[row.Name] = schemas.Schema(t, true, "")
		if row.IsSet(&defaults) {
			s.Required = append(s.Required, row.Name)
		}
	}
	return s
}

// runSchema is wire.Run as JSON.
type runSchema struct{ wire.Run }

// TransformSchema adds the settings of their tables.
func (runSchema) TransformSchema(schemas huma.Registry, s *huma.Schema) *huma.Schema {
	return withSettings(schemas, s, new(wire.Run).Settings())
}

// withSettings adds settings to a schema.
func withSettings(schemas huma.Registry, s *huma.Schema, settings []executor.Field) *huma.Schema {
	for _, f := range settings {
		p := schemas.Schema(reflect.TypeOf(f.Value).Elem(), true, "")
		p.Description = f.Doc
		if f.Example != "" {
			p.Examples = []any{json.RawMessage(f.Example)}
		}
		if len(p.OneOf) > 0 {
			f.Words = "" // of one of the forms
		}
		for _, word := range strings.FieldsFunc(f.Words, func(r rune) bool { return strings.ContainsRune(", ", r) }) {
			p.Enum = append(p.Enum, word)
		}
		s.Properties[f.Name] = p
	}
	return s
}

// networkSchema is network.Policy as JSON.
type networkSchema struct{}

// Schema describes the mode alone, or the object.
func (networkSchema) Schema(huma.Registry) *huma.Schema {
	mode := &huma.Schema{Type: huma.TypeString, Description: "The kind of network, from the least to the most."}
	for _, m := range network.Modes {
		mode.Enum = append(mode.Enum, string(m))
	}
	list := func(description string, words ...string) *huma.Schema {
		item := &huma.Schema{Type: huma.TypeString}
		for _, w := range words {
			item.Enum = append(item.Enum, w)
		}
		return &huma.Schema{Type: huma.TypeArray, Items: item, Description: description, MaxItems: ptr(network.MaxRules)}
	}
	return &huma.Schema{OneOf: []*huma.Schema{mode, {
		Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{
			"mode": {Type: huma.TypeString, Enum: mode.Enum, Description: "Default: allow where there is a rule or a published port, else none."},
			"allow": list("What programs may reach: HOST[:PORT[,PORT]][/udp]. A HOST is a name, *.name, an address or a prefix. " +
				"Without a port 80 and 443; without /udp TCP."),
			"deny":       list("The same, for what they may not reach in spite of other rules. Without a port every port."),
			"registries": list("Package registries that they may reach.", network.Registries()...),
			"dns":        {Type: huma.TypeBoolean, Description: "Resolve every name, not only allowed ones: names can carry data out."},
			"publish":    list("[HOSTPORT:]PORT of the program, reachable on 127.0.0.1 of the server's machine while the run lives."),
		},
	}}}
}

// sampleSchema is monitor.Sample as JSON, with the names of the metrics.
type sampleSchema struct{}

// Schema describes samples.
func (sampleSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, Description: "What the run uses so far, by the names that metrics have.",
		AdditionalProperties: true}
}

// outputFileSchema is executor.OutputFile as JSON.
type outputFileSchema struct {
	Path     string `json:"path" doc:"Relative to /workspace where it lies in it, else absolute."`
	Size     int    `json:"size"`
	Mode     uint32 `json:"mode,omitempty"`
	Content  string `json:"content,omitempty"`
	Encoding string `json:"encoding,omitempty" enum:"base64" doc:"Left out for text."`
	Reason   string `json:"not_taken,omitempty" doc:"Why it was not brought back."`
}

// resultSchema is executor.Result as JSON.
type resultSchema struct {
	sandbox.Document
	Language string                 `json:"language"`
	Version  string                 `json:"language_version"`
	Phases   []executor.PhaseResult `json:"phases"`
	Files    []executor.OutputFile  `json:"files"`
	Tables   []executor.Table       `json:"tables,omitempty"`
	Deps     *executor.Deps         `json:"deps,omitempty"`
	Error    *executor.Failure      `json:"error,omitempty" doc:"Of a program that failed: why, if that can be said."`
}

// testsResultSchema is the result of tests as JSON.
type testsResultSchema struct {
	sandbox.Document
	Language string                 `json:"language"`
	Version  string                 `json:"language_version"`
	Phases   []executor.PhaseResult `json:"phases"`
	Files    []executor.OutputFile  `json:"files"`
	Deps     *executor.Deps         `json:"deps,omitempty"`
	Error    *executor.Failure      `json:"error,omitempty" doc:"Of a run that failed: why, if that can be said."`
	report.Report
}

// eventSchema is executor.Event as JSON, together with the other lines of a stream.
type eventSchema struct {
	Seq       uint64             `json:"seq,omitempty" doc:"1, 2, 3 … without gaps. gap, error, receipt and ack are no events and have none."`
	Time      time.Time          `json:"time,omitzero"`
	Kind      string             `json:"kind" enum:"stdout,stderr,phase,metric,violation,published,test_started,test,result,gap,error,receipt,ack" doc:"What it carries."`
	Offset    uint64             `json:"offset,omitempty" doc:"Of data in its stream."`
	Phase     string             `json:"phase,omitempty"`
	Data      string             `json:"data,omitempty" doc:"stdout and stderr: the bytes, exactly."`
	Encoding  string             `json:"encoding,omitempty" enum:"base64" doc:"Of data; left out for text."`
	Metric    *monitor.Sample    `json:"metric,omitempty"`
	Violation *sandbox.Violation `json:"violation,omitempty"`
	Published []network.Port     `json:"published,omitempty" doc:"published: ports of the program on 127.0.0.1 of the server's machine."`
	Content   *report.Test       `json:"content,omitempty" doc:"test_started, test: the test."`
	Result    *resultSchema      `json:"result,omitempty"`
	From      uint64             `json:"from,omitempty" doc:"gap: the first event that is no longer kept."`
	To        uint64             `json:"to,omitempty" doc:"gap: the last."`
	Problem   *wire.Problem      `json:"problem,omitempty" doc:"error: why there is no result."`
}

// specification is the OpenAPI document in its formats. The first request makes it: packages may register operations until then.
type specification struct {
	once             sync.Once
	json, yaml, page []byte
	err              error
}

func (s *Server) document() *specification {
	s.spec.once.Do(func() {
		doc := s.operations
		var compact []byte
		if compact, s.spec.err = json.Marshal(doc); s.spec.err != nil {
			return
		}
		var out bytes.Buffer
		if s.spec.err = json.Indent(&out, compact, "", "  "); s.spec.err != nil {
			return
		}
		out.WriteByte('\n')
		s.spec.json = out.Bytes()
		if s.spec.yaml, s.spec.err = doc.YAML(); s.spec.err != nil {
			return
		}
		s.spec.page, s.spec.err = page(doc)
	})
	return &s.spec
}

// OpenAPI returns the document that the server sends.
func (s *Server) OpenAPI() ([]byte, error) {
	d := s.document()
	return d.json, d.err
}

func (s *Server) openAPIJSON(w http.ResponseWriter, _ *http.Request) error {
	return serveDocument(w, "application/openapi+json", s.document().json, s.document().err)
}

func (s *Server) openAPIYAML(w http.ResponseWriter, _ *http.Request) error {
	return serveDocument(w, "application/openapi+yaml", s.document().yaml, s.document().err)
}

// docs sends the document as a page for people.
func (s *Server) docs(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Security-Policy", pagePolicy)
	return serveDocument(w, typeHTML, s.document().page, s.document().err)
}

func serveDocument(w http.ResponseWriter, kind string, b []byte, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(b) // a client that has disconnected does not need the rest
	return nil
}

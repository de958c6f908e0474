package api

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// route is one operation: its description in the document, its access, and its handler. Bodies and answers are encoded by hand: they must
// be exact, and reflection at every request would cost more than the rest of its handling.
type route struct {
	method, path string
	id           string
	tag          string
	summary      string
	description  string
	access       Access
	params       []*huma.Param
	body         *huma.RequestBody
	answers      map[string]*huma.Response
	handle       handler
}

func (s *Server) routes() {
	s.operations = newDocument()
	for _, r := range append(s.table(), s.sessionTable()...) {
		s.Describe(&huma.Operation{
			OperationID: r.id, Method: r.method, Path: strings.ReplaceAll(r.path, "...}", "}"), Tags: []string{r.tag}, Summary: r.summary,
			Description: r.description, Parameters: r.params, RequestBody: r.body, Responses: r.answers,
		}, r.access)
		s.Mount(r.method+" "+r.path, r.access, s.handler(r.handle))
	}
	for path, h := range map[string]handler{
		"/openapi.json": s.openAPIJSON, "/openapi.yaml": s.openAPIYAML, "/docs": s.docs,
		"/{$}": webFile("index.html", typeHTML), "/index.js": webFile("index.js", "text/javascript; charset=utf-8"),
		"/style.css": webFile("style.css", "text/css; charset=utf-8"),
	} {
		s.Mount("GET "+path, Access{Public: true, Draining: true}, s.handler(h))
	}
}

// table returns all routes.
func (s *Server) table() []route {
	schema := s.Schema
	text := &huma.Schema{Type: huma.TypeString}
	content := func(kind string, s *huma.Schema) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{kind: {Schema: s}}
	}
	answer := func(description string, t reflect.Type) *huma.Response {
		return &huma.Response{Description: description, Content: content(wire.TypeJSON, schema(t))}
	}
	nothing := func(description string) *huma.Response { return &huma.Response{Description: description} }
	binary := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	runID := pathParam("id", "The run's id.")
	fileID := pathParam("id", "An id of your choice: 1 to 128 letters, digits, dots, dashes and underscores.")
	from := queryParam("from", "Number of the first event to send; default: the oldest that is kept.",
		&huma.Schema{Type: huma.TypeInteger, Minimum: ptr(0.0)})
	lastEvent := &huma.Param{
		Name: "Last-Event-ID", In: "header", Description: "Number of the last event that you received; takes precedence over from.",
		Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: ptr(0.0)},
	}
	runBody := &huma.RequestBody{Required: true, Content: content(wire.TypeJSON, schema(reflect.TypeFor[wire.Run]()))}
	events := &huma.Response{Description: "The events as they happen; the last one is the result.", Content: map[string]*huma.MediaType{
		wire.TypeNDJSON: {Schema: schema(reflect.TypeFor[eventSchema]())}, wire.TypeSSE: {Schema: text},
	}}
	whole := &huma.Response{
		Description: "The whole result, exactly as --json prints it; or the events as they happen, by Accept.",
		Content: map[string]*huma.MediaType{
			wire.TypeJSON: {Schema: schema(reflect.TypeFor[resultSchema]())}, wire.TypeNDJSON: {Schema: schema(reflect.TypeFor[eventSchema]())},
			wire.TypeSSE: {Schema: text},
		}, Headers: map[string]*huma.Param{
			wire.HeaderRunID:   {Description: "The run's id, as in logs.", Schema: text},
			wire.HeaderReceipt: {Description: "The requested receipt, in base64.", Schema: text},
		},
	}
	run, read := Access{Scope: ScopeRun}, Access{Scope: ScopeRead, Draining: true}
	return []route{
		{
			method: "POST", path: wire.PathRun, id: "run", tag: "Runs", summary: "Run a program and wait for it", access: run, body: runBody,
			description: "Answers when the program has ended. With Accept: text/event-stream or application/x-ndjson, sends the events as they " +
				"happen. A client that disconnects cancels its run. Nothing of the run is kept.",
			answers: map[string]*huma.Response{"200": whole}, handle: s.run,
		},
		{
			method: "POST", path: wire.PathTests, id: "tests", tag: "Runs", summary: "Run the tests of a project", access: run,
			body: &huma.RequestBody{Required: true, Content: content(wire.TypeJSON, schema(reflect.TypeFor[wire.Tests]()))},
			description: "As POST " + wire.PathRun + ", with a result for each test. The events test_started and test have a test as content. What " +
				"tests have done is the word of the program, which can forge it; verdict and exit code of the run are the server's.",
			answers: map[string]*huma.Response{"200": {
				Description: "The result of the run, with its tests; or the events as they happen, by Accept.",
				Content: map[string]*huma.MediaType{
					wire.TypeJSON: {Schema: schema(reflect.TypeFor[testsResultSchema]())}, wire.TypeNDJSON: {Schema: schema(reflect.TypeFor[eventSchema]())},
					wire.TypeSSE: {Schema: text},
				}, Headers: whole.Headers,
			}}, handle: s.tests,
		},
		{
			method: "GET", path: wire.PathTalk, id: "talk", tag: "Runs", summary: "Run a program over a WebSocket of its own", access: run,
			description: "Subprotocol " + wire.Subprotocol + ". The first message is a run, as the body of POST " + wire.PathRun +
				"; with interactive its standard input stays open. Then as for a run's own WebSocket. The run ends with the connection, and " +
				"nothing of it is kept.",
			answers: map[string]*huma.Response{
				"101": nothing("The protocol is switched."), "426": nothing("The client is no WebSocket client."),
			}, handle: s.interactive,
		},
		{
			method: "POST", path: wire.PathRuns, id: "start-run", tag: "Runs", summary: "Submit a program to run", access: run, body: runBody,
			description: "Answers at once. The run and its result are kept for a while; a restart of the server does not lose them.",
			answers: map[string]*huma.Response{
				"202": answer("Accepted; Location is the run's path.", reflect.TypeFor[wire.RunInfo]()),
			}, handle: s.accept,
		},
		{
			method: "GET", path: wire.PathRuns, id: "list-runs", tag: "Runs", summary: "List your runs, the newest first", access: read,
			params: []*huma.Param{
				queryParam("limit", "Largest number of runs on the page.",
					&huma.Schema{Type: huma.TypeInteger, Minimum: ptr(1.0), Maximum: ptr(float64(maxPage)), Default: defaultPage}),
				queryParam("cursor", "The value of next on the page before.", text),
			},
			answers: map[string]*huma.Response{"200": answer("A page.", reflect.TypeFor[wire.RunList]())}, handle: s.list,
		},
		{
			method: "GET", path: wire.PathRuns + "/{id}", id: "get-run", tag: "Runs", summary: "Get the state of a run, or its result", access: read,
			params: []*huma.Param{runID, queryParam("wait", "Seconds to wait for the end of the run; default: the answer comes at once.",
				&huma.Schema{Type: huma.TypeInteger, Minimum: ptr(0.0), Maximum: ptr(float64(maxWait))})},
			answers: map[string]*huma.Response{"200": answer("The run.", reflect.TypeFor[wire.RunInfo]())}, handle: s.show,
		},
		{
			method: "DELETE", path: wire.PathRuns + "/{id}", id: "delete-run", tag: "Runs", summary: "Cancel a run, or delete it",
			access: Access{Scope: ScopeRun, Draining: true}, params: []*huma.Param{runID},
			description: "Cancels a run that is under way; its result is kept, or goes to the client that reads its events (POST /v1/run). " +
				"Deletes a finished run, with all that is kept of it.",
			answers: map[string]*huma.Response{
				"202": answer("The run is being cancelled.", reflect.TypeFor[wire.RunInfo]()), "204": nothing("The run is deleted."),
			}, handle: s.remove,
		},
		{
			method: "GET", path: wire.PathRuns + "/{id}/events", id: "run-events", tag: "Runs",
			summary: "Read the events of a run, from any number on",
			access:  read, params: []*huma.Param{runID, from, lastEvent},
			description: "During and after the run, any number of times. Numbers have no gaps; a line of kind gap names the events that are no " +
				"longer kept.",
			answers: map[string]*huma.Response{
				"200": events, "204": nothing("Server-sent events only: the run is over, and you have received all events."),
			}, handle: s.events,
		},
		{
			method: "GET", path: wire.PathRuns + "/{id}/ws", id: "run-socket", tag: "Runs", summary: "Send input to a run over a WebSocket",
			access: Access{Scope: ScopeRun, Draining: true}, params: []*huma.Param{runID, from},
			description: "Subprotocol " + wire.Subprotocol + ". The client sends stdin, stdin_close, signal, resize and cancel; the server sends " +
				"events, and ack for input that the program has read. See the user guide for the messages.",
			answers: map[string]*huma.Response{
				"101": nothing("The protocol is switched."), "426": nothing("The client is no WebSocket client."),
			}, handle: s.socket,
		},
		{
			method: "GET", path: wire.PathRuns + "/{id}/files/{path...}", id: "run-file", tag: "Files", summary: "Get an output file of a run",
			access:  read,
			params:  []*huma.Param{runID, pathParam("path", "Its path in the result.")},
			answers: map[string]*huma.Response{"200": {Description: "Its bytes.", Content: content(wire.TypeBinary, binary)}}, handle: s.file,
		},
		{
			method: "PUT", path: wire.PathFiles + "/{id}", id: "put-file", tag: "Files", summary: "Upload a file for runs", access: run,
			params:      []*huma.Param{fileID},
			description: "A run refers to it by its id in files or in. The file expires after a while; sending it again replaces it.",
			body:        &huma.RequestBody{Required: true, Content: content(wire.TypeBinary, binary)},
			answers: map[string]*huma.Response{
				"200": answer("The file replaces an older one.", reflect.TypeFor[wire.Upload]()),
				"201": answer("The file is stored.", reflect.TypeFor[wire.Upload]()),
			}, handle: s.upload,
		},
		{
			method: "GET", path: wire.PathFiles + "/{id}", id: "get-file", tag: "Files", summary: "Get an uploaded file", access: read,
			params:  []*huma.Param{fileID},
			answers: map[string]*huma.Response{"200": {Description: "Its bytes.", Content: content(wire.TypeBinary, binary)}}, handle: s.download,
		},
		{
			method: "DELETE", path: wire.PathFiles + "/{id}", id: "delete-file", tag: "Files", summary: "Delete an uploaded file",
			access: Access{Scope: ScopeRun, Draining: true}, params: []*huma.Param{fileID},
			answers: map[string]*huma.Response{"204": nothing("The file is deleted.")}, handle: s.discard,
		},
		{
			method: "GET", path: wire.PathLanguages, id: "languages", tag: "Server", summary: "List the languages, and which are available",
			access:  read,
			answers: map[string]*huma.Response{"200": answer("All languages of the server.", reflect.TypeFor[wire.Languages]())},
			handle:  s.languages,
		},
		{
			method: "GET", path: wire.PathLimits, id: "limits", tag: "Server", summary: "List the limits of a run: defaults and ceilings",
			access:  read,
			answers: map[string]*huma.Response{"200": answer("All limits, with your ceilings.", reflect.TypeFor[wire.LimitList]())},
			handle:  s.limits,
		},
		{
			method: "GET", path: wire.PathHealth, id: "health", tag: "Server",
			summary: "Check whether the server is alive, accepts runs, and can run a sandbox", access: Access{Public: true, Draining: true},
			params: []*huma.Param{
				queryParam("check", "The check that the status reports.",
					&huma.Schema{Type: huma.TypeString, Enum: []any{"live", "ready"}, Default: "ready"}),
				queryParam("deep", "1: run a program in a sandbox. Needs the scope admin.",
					&huma.Schema{Type: huma.TypeString, Enum: []any{"0", "1"}, Default: "0"}),
			},
			answers: map[string]*huma.Response{
				"200": answer("The check succeeded.", reflect.TypeFor[wire.Health]()),
				"503": answer("The check failed.", reflect.TypeFor[wire.Health]()),
			}, handle: s.health,
		},
	}
}

func ptr[T any](v T) *T { return &v }

func pathParam(name, description string) *huma.Param {
	return &huma.Param{Name: name, In: "path", Required: true, Description: description, Schema: &huma.Schema{Type: huma.TypeString}}
}

func queryParam(name, description string, s *huma.Schema) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: description, Schema: s}
}

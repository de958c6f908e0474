package api

import (
	"context"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// sessionTable returns the routes of sessions.
func (s *Server) sessionTable() []route {
	const one, cells, cell = wire.PathSessions + "/{id}", wire.PathSessions + "/{id}/cells", wire.PathSessions + "/{id}/cells/{cell}"
	content := func(kind string, s *huma.Schema) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{kind: {Schema: s}}
	}
	body := func(t reflect.Type) *huma.RequestBody {
		return &huma.RequestBody{Required: true, Content: content(wire.TypeJSON, s.Schema(t))}
	}
	answer := func(description string, t reflect.Type) *huma.Response {
		return &huma.Response{Description: description, Content: content(wire.TypeJSON, s.Schema(t))}
	}
	nothing := func(description string) *huma.Response { return &huma.Response{Description: description} }
	ok := func(description string, t reflect.Type) map[string]*huma.Response {
		return map[string]*huma.Response{"200": answer(description, t)}
	}
	text := &huma.Schema{Type: huma.TypeString}
	binary := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	id := pathParam("id", "The session's id, or its name.")
	number := pathParam("cell", "The number of the cell.")
	file := pathParam("path", "Its path: relative to /workspace; with %2F at its beginning, absolute.")
	from := queryParam("from", "Number of the first event to send; default: the oldest that is kept.",
		&huma.Schema{Type: huma.TypeInteger, Minimum: ptr(0.0)})
	lastEvent := &huma.Param{
		Name: "Last-Event-ID", In: "header", Description: "Number of the last event that you received; takes precedence over from.",
		Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: ptr(0.0)},
	}
	info, result := reflect.TypeFor[session.Info](), s.Schema(reflect.TypeFor[cellResultSchema]())
	events := map[string]*huma.MediaType{wire.TypeNDJSON: {Schema: s.Schema(reflect.TypeFor[cellEventSchema]())}, wire.TypeSSE: {Schema: text}}
	whole := map[string]*huma.MediaType{wire.TypeJSON: {Schema: result}}
	for kind, media := range events {
		whole[kind] = media
	}
	upgrade := map[string]*huma.Response{"101": nothing("The protocol is switched."), "426": nothing("The client is no WebSocket client.")}
	run, read := Access{Scope: ScopeRun}, Access{Scope: ScopeRead, Draining: true}
	control := Access{Scope: ScopeRun, Draining: true}
	all := []route{
		{
			method: "POST", path: wire.PathSessions, id: "create-session", summary: "Create a session", access: run,
			body: body(reflect.TypeFor[wire.Session]()),
			description: "The fields of a run without its program and its input; limits are those of each cell. The answer has status 200 and is " +
				"a result if the packages of the request could not be installed.",
			answers: map[string]*huma.Response{
				"200": answer("The installation of packages has failed.", reflect.TypeFor[resultSchema]()),
				"201": answer("The session; Location is its path.", info),
			}, handle: s.createSession,
		},
		{
			method: "GET", path: wire.PathSessions, id: "list-sessions", summary: "List your sessions, the oldest first", access: read,
			answers: ok("Your sessions.", reflect.TypeFor[wire.SessionList]()), handle: s.listSessions,
		},
		{
			method: "GET", path: one, id: "get-session", summary: "Get a session", access: read, params: []*huma.Param{id},
			answers: ok("The session.", info), handle: s.onSession(s.showSession),
		},
		{
			method: "DELETE", path: one, id: "close-session", summary: "End a session, with all that is in it", access: control,
			params: []*huma.Param{id}, answers: map[string]*huma.Response{"204": nothing("The session has ended.")},
			handle: s.onSession(s.closeSession),
		},
		{
			method: "POST", path: cells, id: "execute", summary: "Execute a cell", access: run, params: []*huma.Param{id},
			body: body(reflect.TypeFor[wire.Cell]()),
			description: "Cells of a session run in order. Answers when the cell has ended; a client that disconnects interrupts it. With Accept: " +
				"text/event-stream or application/x-ndjson, sends the events as they happen; a cell that has begun goes on without its client.",
			answers: map[string]*huma.Response{"200": {
				Description: "The whole result; or the events as they happen, by Accept.", Content: whole, Headers: map[string]*huma.Param{
					wire.HeaderRunID:   {Description: "The session's id and the number of the cell: ID/N.", Schema: text},
					wire.HeaderReceipt: {Description: "The requested receipt, in base64.", Schema: text},
				},
			}}, handle: s.onSession(s.postCell),
		},
		{
			method: "GET", path: cells + "/ws", id: "execute-socket", summary: "Execute a cell over a WebSocket", access: run,
			params: []*huma.Param{id},
			description: "Subprotocol " + wire.Subprotocol + ". The first message is a cell, as the body of POST " + cells + ". Then as for the " +
				"cell's own WebSocket; a message of kind ready has the number of the cell. A cell that has begun goes on without its client.",
			answers: upgrade, handle: s.onSession(s.cellSocket),
		},
		{
			method: "GET", path: cell, id: "get-cell", summary: "Get the state of a cell, or its result", access: read,
			params: []*huma.Param{id, number}, answers: ok("The cell, as a run.", reflect.TypeFor[wire.RunInfo]()), handle: s.showCell,
		},
		{
			method: "GET", path: cell + "/events", id: "cell-events", summary: "Read the events of a cell, from any number on", access: read,
			params: []*huma.Param{id, number, from, lastEvent},
			answers: map[string]*huma.Response{
				"200": {Description: "The events as they happen; the last one is the result.", Content: events},
				"204": nothing("Server-sent events only: the cell is over, and you have received all events."),
			}, handle: s.cellEvents,
		},
		{
			method: "GET", path: cell + "/ws", id: "cell-socket", summary: "Read the events of a cell, and send input, over a WebSocket",
			access: control, params: []*huma.Param{id, number, from},
			description: "Subprotocol " + wire.Subprotocol + ". The client sends input, input_end and cancel; the server sends events.",
			answers:     upgrade, handle: s.cellResume,
		},
		{
			method: "GET", path: one + "/files/{path...}", id: "get-session-file", summary: "Get a file of a session", access: read,
			params:  []*huma.Param{id, file},
			answers: map[string]*huma.Response{"200": {Description: "Its bytes.", Content: content(wire.TypeBinary, binary)}},
			handle:  s.onSession(s.getSessionFile),
		},
		{
			method: "PUT", path: one + "/files/{path...}", id: "put-session-file", summary: "Make a file in a session", access: run,
			params:  []*huma.Param{id, file, queryParam("mode", "Permission bits, octal.", text)},
			body:    &huma.RequestBody{Required: true, Content: content(wire.TypeBinary, binary)},
			answers: map[string]*huma.Response{"204": nothing("The file is there.")}, handle: s.onSession(s.putSessionFile),
		},
		{
			method: "GET", path: one + "/files", id: "session-files", summary: "List the files of a session", access: read,
			params:  []*huma.Param{id, queryParam("path", "A directory, with what is below it, or a pattern; default: /workspace.", text)},
			answers: ok("The files.", reflect.TypeFor[wire.SessionFiles]()), handle: s.onSession(s.sessionFiles),
		},
		{
			method: "POST", path: one + "/input", id: "answer-input", summary: "Answer the running cell that asks for input", access: control,
			params: []*huma.Param{id}, body: body(reflect.TypeFor[wire.Line]()),
			answers: map[string]*huma.Response{"204": nothing("The cell has the line.")}, handle: s.onSession(s.input),
		},
	}
	all = append(all, route{
		method: "POST", path: one + "/fork", id: "fork-session", summary: "Make a second session with the same state, or the same files",
		access: run, params: []*huma.Param{id}, body: body(reflect.TypeFor[wire.Fork]()),
		description: "A second interpreter with the same state in the same sandbox, where the language can; otherwise a new session with " +
			"copies of the files.",
		answers: map[string]*huma.Response{"201": answer("The new session; Location is its path.", info)}, handle: s.onSession(s.fork),
	}, route{
		method: "POST", path: one + "/packages", id: "add-packages", summary: "Install packages between cells", access: run,
		params: []*huma.Param{id}, body: body(reflect.TypeFor[wire.Packages]()),
		description: "The answer is a result if they could not be installed, as for a run.",
		answers:     ok("What was installed.", reflect.TypeFor[wire.Added]()), handle: s.onSession(s.packages),
	})
	all = append(all, route{
		method: "PUT", path: one + "/network", id: "set-network", summary: "Change the network between cells", access: run,
		params: []*huma.Param{id}, body: body(reflect.TypeFor[wire.Network]()), description: "Connections that are open end.",
		answers: ok("The session.", info), handle: s.onSession(s.network),
	})
	type simple struct {
		name, id, summary string
		body, answer      reflect.Type // without a body: a call, or a GET
		access            Access
		handle            sessionHandler
	}
	for _, c := range []simple{
		{"interrupt", "interrupt", "Interrupt the running cell; the state survives", nil, info, control,
			call(func(_ context.Context, own *servedSession) error { return own.Interrupt() })},
		{"restart", "restart-session", "Start the interpreter anew, in the same sandbox", nil, info, run,
			call(func(ctx context.Context, own *servedSession) error { return own.Restart(ctx) })},
		{"reset", "reset-session", "Start the interpreter anew, in a fresh sandbox", nil, info, run,
			call(func(ctx context.Context, own *servedSession) error { return own.Reset(ctx) })},
		{"check", "check-code", "Check whether code is a complete cell", reflect.TypeFor[wire.Code](), reflect.TypeFor[protocol.Checked](), run,
			ask(s, func(ctx context.Context, own *servedSession, q *wire.Code) (protocol.Checked, error) {
				return own.Check(ctx, q.Code)
			})},
		{"complete", "complete-code", "Complete the word before the cursor", reflect.TypeFor[wire.Completion](),
			reflect.TypeFor[protocol.Completed](), run, ask(s, complete)},
		{"inspect", "inspect-value", "Describe the value of a name or an expression", reflect.TypeFor[wire.Code](),
			reflect.TypeFor[protocol.Inspected](), run,
			ask(s, func(ctx context.Context, own *servedSession, q *wire.Code) (protocol.Inspected, error) {
				return own.Inspect(ctx, q.Code)
			})},
	} {
		r := route{
			method: "POST", path: one + "/" + c.name, id: c.id, summary: c.summary, access: c.access, params: []*huma.Param{id},
			answers: ok("The session, or the answer.", c.answer), handle: s.onSession(c.handle),
		}
		if c.body != nil {
			r.body = body(c.body)
		}
		all = append(all, r)
	}
	all = append(all, route{
		method: "GET", path: one + "/variables", id: "variables", summary: "List the variables of a session", access: run,
		params: []*huma.Param{id}, answers: ok("The variables.", reflect.TypeFor[protocol.Variables]()),
		handle: s.onSession(query(func(ctx context.Context, own *servedSession) (protocol.Variables, error) { return own.Variables(ctx) })),
	}, route{
		method: "GET", path: one + "/history", id: "history", summary: "List the cells that were executed", access: read,
		params: []*huma.Param{id}, answers: ok("The cells since the last start, as far as they are kept.", reflect.TypeFor[wire.History]()),
		handle: s.onSession(query(historyOf)),
	})
	for i := range all {
		all[i].tag = "Sessions"
	}
	return all
}

// sessionSchema is wire.Session as JSON.
type sessionSchema struct{ wire.Session }

// TransformSchema adds the fields of a run that a session has.
func (sessionSchema) TransformSchema(schemas huma.Registry, s *huma.Schema) *huma.Schema {
	run := huma.SchemaFromType(schemas, reflect.TypeFor[wire.Run]())
	for _, name := range wire.SessionFields {
		s.Properties[name] = run.Properties[name]
	}
	return withSettings(schemas, s, new(wire.Session).Settings())
}

// cellSchema is wire.Cell as JSON.
type cellSchema struct{ wire.Cell }

// TransformSchema adds the limits of a cell.
func (cellSchema) TransformSchema(schemas huma.Registry, s *huma.Schema) *huma.Schema {
	return withSettings(schemas, s, new(wire.Cell).Settings())
}

// displaySchema is protocol.Display as JSON.
type displaySchema struct {
	Data   map[string]any `json:"data" doc:"The same value in several types of content; text/plain is always there."`
	Meta   map[string]any `json:"metadata,omitempty"`
	Result bool           `json:"result,omitempty" doc:"The value of the cell's last expression."`
	Name   string         `json:"display_id,omitempty"`
	Update bool           `json:"update,omitempty" doc:"Replaces the display with that id."`
}

// cellResultSchema is session.Result as JSON.
type cellResultSchema session.Document

// sessionInfoSchema and sessionFileSchema have names that say whose they are.
type (
	sessionInfoSchema session.Info
	sessionFileSchema session.Entry
)

// cellEventSchema is an event of a cell as JSON.
type cellEventSchema struct {
	Content any               `json:"content,omitempty" doc:"display: the value; input: the question."`
	Result  *cellResultSchema `json:"result,omitempty"`
}

// TransformSchema adds the fields of every event.
func (cellEventSchema) TransformSchema(schemas huma.Registry, s *huma.Schema) *huma.Schema {
	event := huma.SchemaFromType(schemas, reflect.TypeFor[eventSchema]())
	for name, p := range event.Properties {
		if s.Properties[name] == nil {
			s.Properties[name] = p
		}
	}
	s.Properties["kind"].Enum = append(s.Properties["kind"].Enum, string(sandbox.EventDisplay), string(sandbox.EventInput))
	s.Required = event.Required
	return s
}

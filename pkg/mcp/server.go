package mcp

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/client"
)

// Path is the route of the HTTP transport.
const Path = "/mcp"

// Options configures a Server. API is required.
type Options struct {
	// API returns the handler to which the tools send their requests, for the client of a call.
	API     func(ctx context.Context) http.Handler
	Version string
	Log     *slog.Logger // nil: none
}

// Server serves tools and resources.
type Server struct {
	o      Options
	server *mcp.Server
	http   http.Handler
}

const instructions = "Runs code in fresh, isolated sandboxes without a network unless you ask for one. Test code before you show it: run_code for " +
	"one file, run_project for several, check_code to compile without running. Use session_create and session_run to keep state between " +
	"steps. A failure comes with a diagnosis; long output is shortened, and get_output has the rest."

// New makes a server. It needs no closing.
func New(o Options) *Server {
	s := &Server{o: o, server: mcp.NewServer(
		&mcp.Implementation{Name: "sandbox-run", Title: "sandbox-run", Version: o.Version},
		&mcp.ServerOptions{
			Instructions: instructions, Logger: o.Log,
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
		})}
	s.addTools()
	s.addResources()
	s.server.AddReceivingMiddleware(endWithRequest)
	s.http = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.server }, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, Logger: o.Log,
		// The server's request checks have compared the Host, and Mount has bounded the body.
		DisableLocalhostProtection: true, MaxRequestBodyBytes: -1,
	})
	return s
}

// Mount adds the route to an API server, with the access of a run.
func Mount(a *api.Server, o Options) {
	o.API = func(ctx context.Context) http.Handler { return a.HandlerOf(api.PrincipalFrom(ctx)) }
	s := New(o)
	access := api.Access{Scope: api.ScopeRun}
	a.Mount("POST "+Path, access, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, release, err := a.ReadBody(w, r)
		if err != nil {
			a.Fail(w, r, err)
			return
		}
		defer release()
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.ServeHTTP(w, r)
	}))
	a.Describe(&huma.Operation{
		OperationID: "mcp", Method: http.MethodPost, Path: Path, Tags: []string{"Agents"},
		Summary:     "Serve an agent over the Model Context Protocol",
		Description: "The streamable HTTP transport, without sessions of its own. See the guide for the tools.",
		Responses:   map[string]*huma.Response{"200": {Description: "An answer of the protocol."}},
	}, access)
}

// requestKey is the key of the context of the HTTP request.
type requestKey struct{}

// ServeHTTP serves one request of the streamable HTTP transport.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	s.http.ServeHTTP(w, r.WithContext(context.WithValue(ctx, requestKey{}, ctx)))
}

// endWithRequest ends a call with its HTTP request. The library does so only for new revisions of the protocol; this server keeps no answer
// for a client that has gone, in any revision.
func endWithRequest(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if request, ok := ctx.Value(requestKey{}).(context.Context); ok {
			own, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			unhook := context.AfterFunc(request, func() { cancel(context.Cause(request)) })
			defer unhook()
			ctx = own
		}
		return next(ctx, method, req)
	}
}

// maxMessage bounds a message of a client over streams; it is the default of the API for a body.
const maxMessage = 32 << 20

// ServeStream serves one client until the end of its input, or of ctx. It returns nil at the end of the input.
func (s *Server) ServeStream(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	err := s.server.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out, MaxLineLength: maxMessage})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// client returns the client with which a call sends its requests.
func (s *Server) client(ctx context.Context) *client.Client {
	return client.New(&inProcess{s.o.API(ctx)})
}

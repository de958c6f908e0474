package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/sandbox-run/sandbox-run/pkg/mcp"
)

// MCP serves one client of the Model Context Protocol over a pair of streams, until the end of its input or of ctx. It is a server without
// listeners and keys, with the user as its owner. It returns when all runs and sessions have ended and nothing is left of them.
func MCP(ctx context.Context, s Options, in io.ReadCloser, out io.WriteCloser) (err error) {
	r := &running{serving: s, settings: s.Settings, level: new(slog.LevelVar), ceilings: new(ceilings)}
	r.level.Set(s.Settings.LogLevel)
	r.log = slog.New(slog.NewJSONHandler(s.Err, &slog.HandlerOptions{Level: r.level}))
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(garbage))
	}
	restore := limitMemory(r.log)
	defer restore()
	if r.settings.Dir == "" { // results live as long as the client
		if r.settings.Dir, err = os.MkdirTemp("", "sandbox-run-mcp-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(r.settings.Dir)) }()
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.openAPI(ctx); err != nil {
		return err
	}
	r.observation.Begin()
	stop := r.startBackground(ctx)
	defer stop()
	server := mcp.New(mcp.Options{
		API: func(context.Context) http.Handler { return r.api.Handler() }, Version: s.Version, Log: slog.New(slog.DiscardHandler),
	})
	return server.ServeStream(ctx, in, out)
}

package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/sandbox-run/sandbox-run/internal/detached"
	"github.com/sandbox-run/sandbox-run/pkg/mcp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// MCP serves one client of the Model Context Protocol over a pair of streams, until the end of its input or of ctx. It is a server without
// listeners and keys, with the user as its owner. It returns when all runs and sessions have ended and nothing is left of them.
func MCP(ctx context.Context, s Options, in io.ReadCloser, out io.WriteCloser) (failed error) {
	r := &running{serving: s, settings: s.Settings, level: new(slog.LevelVar), ceilings: new(ceilings)}
	r.level.Set(s.Settings.LogLevel)
	r.log = slog.New(slog.NewJSONHandler(s.Err, &slog.HandlerOptions{Level: r.level}))
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(garbage))
	}
	restore := limitMemory(r.log)
	defer restore()
	if r.settings.Dir == "" { // results live as long as the client
		if _, err := detached.CollectAgents(false); err != nil {
			r.log.Warn("leftovers of dead servers not collected", "error", err)
		}
		dir, err := detached.OpenAgentDir()
		if err != nil {
			return &sandbox.Error{Op: "dir", Err: err, Hint: "XDG_STATE_HOME=DIRECTORY, a directory of your own"}
		}
		r.settings.Dir = dir.Path
		defer func() { failed = errors.Join(failed, dir.Close()) }()
	}
	defer func() { failed = errors.Join(failed, r.close()) }()
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

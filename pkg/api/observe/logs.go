package observe

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// logs writes one line per run.
type logs struct {
	api.Observers // none: other events are ignored

	to        *slog.Logger
	languages set
}

func (l *logs) Finished(ctx context.Context, f *api.Finished) {
	attrs := []slog.Attr{
		slog.String("run", f.ID), slog.String("key", keyOf(f.Principal)), slog.String("way", string(f.Way)),
		slog.String("language", l.languages.of(languageOf(f))),
		slog.String("verdict", verdictOf(f)), seconds("total", f.Ended.Sub(f.Accepted)),
	}
	if !f.Started.IsZero() {
		attrs = append(attrs, seconds("queue", f.Started.Sub(f.Accepted)))
	}
	level := slog.LevelInfo
	if r := f.Result; r != nil {
		attrs = append(attrs,
			slog.Int("exit_code", r.ExitCode()), seconds("start", r.Metrics.StartupTime.Duration()), seconds("wall", r.Metrics.WallTime.Duration()),
			seconds("cpu", r.Metrics.CPUTime.Duration()), slog.Uint64("memory", r.Metrics.MemoryPeak),
			slog.String("backend", r.Isolation.Backend), slog.String("tier", string(r.Isolation.Tier)),
		)
	}
	if f.Err != nil && serverFailed(f.Err) {
		level = slog.LevelError
		attrs = append(attrs, slog.String("error", clip(f.Err.Error())))
	}
	l.to.LogAttrs(ctx, level, "run", attrs...)
}

// serverFailed reports whether an error is the server's own failure. Other errors may quote the request, and are not logged.
func serverFailed(err error) bool {
	var refused *api.Refusal
	switch {
	case errors.Is(err, sandbox.ErrInvalid), errors.Is(err, sandbox.ErrRefused), errors.Is(err, sandbox.ErrUnsupported),
		errors.Is(err, sandbox.ErrNotFound), errors.Is(err, context.Canceled), errors.As(err, &refused):
		return false
	}
	return true
}

func (l *logs) Session(ctx context.Context, e api.SessionEvent) {
	attrs := []slog.Attr{slog.String("session", e.ID), slog.String("key", e.Owner), slog.String("language", l.languages.of(e.Language))}
	if e.Ended != "" {
		attrs = append(attrs, slog.String("ended", e.Ended))
	}
	l.to.LogAttrs(ctx, slog.LevelInfo, "session", attrs...)
}

func (l *logs) Refused(ctx context.Context, r api.Refused) {
	level := slog.LevelInfo
	if r.Status >= http.StatusInternalServerError && r.Code != wire.CodeBusy && r.Code != wire.CodeDraining {
		level = slog.LevelError
	}
	l.to.LogAttrs(ctx, level, "refused", slog.String("key", keyOf(r.Principal)), slog.String("method", methods.of(r.Method)),
		slog.String("route", r.Route), slog.Int("status", r.Status), slog.String("code", codes.of(r.Code)))
}

func keyOf(p *api.Principal) string {
	if p == nil {
		return ""
	}
	return p.ID
}

func seconds(name string, d time.Duration) slog.Attr { return slog.Float64(name, d.Seconds()) }

// mostText bounds the logged text of an error.
const mostText = 1000

func clip(text string) string {
	if len(text) > mostText {
		return text[:mostText] + "…"
	}
	return text
}

// Access wraps the outermost handler of a server: it writes the access log, counts requests, and reads the trace context of a request.
func (o *Observation) Access(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		seen := &statusRecorder{ResponseWriter: w}
		defer func() {
			where := route(r.URL.Path)
			o.metrics.answered(where, r.Method, seen.status)
			level := slog.LevelInfo
			if where == wire.PathHealth || where == PathMetrics {
				level = slog.LevelDebug // monitoring sends these every few seconds
			}
			o.log.LogAttrs(ctx, level, "request", slog.String("method", methods.of(r.Method)), slog.String("route", where),
				slog.Int("status", seen.status), seconds("took", time.Since(began)), slog.Int64("bytes", seen.bytes),
				slog.String("run", runID(w.Header().Get(wire.HeaderRunID))), slog.String("remote", remote(r)))
		}()
		next.ServeHTTP(seen, r.WithContext(ctx))
	})
}

var plainID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func runID(id string) string {
	if plainID.MatchString(id) {
		return id
	}
	return ""
}

// remote returns the client's address without its port; "unix" for a client on the unix socket.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "unix"
	}
	return host
}

// statusRecorder records status and size of an answer. It passes on flushes and hijacks.
type statusRecorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *statusRecorder) WriteHeader(status int) {
	if w.status == 0 || w.status < http.StatusOK { // an informational status precedes the final one
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusRecorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the connection.
func (w *statusRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusRecorder) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

func (w *statusRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.status == 0 {
		w.status = http.StatusSwitchingProtocols
	}
	return c, rw, err
}

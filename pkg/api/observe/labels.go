package observe

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// other replaces every value that is not in a set.
const other = "other"

// set is the values of a label.
type set map[string]bool

func newSet[T ~string](words ...T) set {
	s := set{}
	for _, w := range words {
		s[string(w)] = true
	}
	return s
}

// of returns the word if it is in the set, and other if not.
func (s set) of(word string) string {
	if s[word] {
		return word
	}
	return other
}

// Verdicts of runs without a result.
const (
	failed  = "error"
	refused = "refused" // not admitted: a refusal, and no run
)

var (
	verdicts = newSet(append(sandbox.Verdicts(), failed)...)
	phases   = newSet(executor.PhaseInstall, executor.PhaseCompile, executor.PhaseRun)
	ways     = newSet(api.WayRun, api.WayStream, api.WayAsync, api.WayBatch, api.WayInteractive, api.WaySession, api.WayCell)
	tiers    = newSet(sandbox.TierProcess, sandbox.TierNamespace, sandbox.TierContainer, sandbox.TierGVisor, sandbox.TierMicroVM)
	backends = newSet("native", "oci", "docker", "process")
	codes    = newSet(
		wire.CodeInvalid, wire.CodeMalformed, wire.CodeTooLarge, wire.CodeTooSlow, wire.CodeMediaType, wire.CodeUnauthorized, wire.CodeForbidden,
		wire.CodeRefused, wire.CodeCeiling, wire.CodeNotFound, wire.CodeMethod, wire.CodeNotAccepted, wire.CodeConflict, wire.CodeGone,
		wire.CodeTooMany, wire.CodeBusy, wire.CodeDraining, wire.CodeUnsupported, wire.CodeMissing, wire.CodeNotStarted, wire.CodeInternal,
		wire.CodeCancelled, wire.CodeLost, wire.CodeClosed, wire.CodeEnded,
		codeHost, codeOrigin,
	)
	methods = newSet(http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions)
)

// Codes of requests that are refused before they reach the API.
const (
	codeHost   = "host"
	codeOrigin = "origin"
)

// growing is a set of the first values that it sees, up to a bound. It is for names that the server chooses, such as those of shapes.
type growing struct {
	most int

	mu   sync.Mutex
	seen set
}

var plainName = regexp.MustCompile(`^[a-z][a-z0-9_.+-]{0,31}$`)

func (g *growing) of(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == nil {
		g.seen = set{}
	}
	if !g.seen[name] && (len(g.seen) >= g.most || !plainName.MatchString(name)) {
		return other
	}
	g.seen[name] = true
	return name
}

// routes are the paths of the API; the first that fits counts. A name in braces is one that a client chose.
var routes = append([]string{
	wire.PathRuns + "/{id}/events", wire.PathRuns + "/{id}/ws", wire.PathRuns + "/{id}/files", wire.PathRuns + "/{id}", wire.PathFiles +
		"/{id}",
	wire.PathTalk, wire.PathRun, wire.PathRuns, wire.PathFiles, wire.PathBatch, wire.PathLanguages, wire.PathLimits, wire.PathHealth,
	wire.PathOpenAPI, wire.PathTests,
	PathMetrics, PathReceiptKey, "/mcp", "/docs", "/", "/index.js", "/style.css",
}, sessionRoutes()...)

func sessionRoutes() []string {
	all := []string{wire.PathSessions, wire.PathSessions + "/{id}"}
	for _, rest := range []string{
		"cells", "cells/ws", "cells/{cell}", "cells/{cell}/events", "cells/{cell}/ws", "files", "input", "interrupt", "restart", "reset", "check",
		"complete", "inspect", "variables", "history", "fork", "packages", "network",
	} {
		all = append(all, wire.PathSessions+"/{id}/"+rest)
	}
	return all
}

// route returns the route of a path. The path itself is never logged, because a client may have put a secret into it.
func route(path string) string {
	for _, r := range routes {
		if fitsRoute(path, r) {
			return r
		}
	}
	if strings.HasPrefix(path, wire.PathHealth+"/") {
		return wire.PathHealth
	}
	return other
}

// fitsRoute reports whether a path is of a route. Behind /{id}/files is the path of one file.
func fitsRoute(path, route string) bool {
	want, got := strings.Split(route, "/"), strings.Split(path, "/")
	if strings.HasSuffix(route, "/{id}/files") && len(got) > len(want) {
		got = got[:len(want)]
	}
	return slices.EqualFunc(want, got, func(want, got string) bool {
		if strings.HasPrefix(want, "{") {
			return got != ""
		}
		return got == want
	})
}

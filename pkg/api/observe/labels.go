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

// other stands for everything that is not in a set.
const other = "other"

// set is what a label may be.
type set map[string]bool

func newSet[T ~string](words ...T) set {
	s := set{}
	for _, w := range words {
		s[string(w)] = true
	}
	return s
}

// of is the word itself if it is in the set.
func (s set) of(word string) string {
	if s[word] {
		return word
	}
	return other
}

// Verdicts of runs without a result.
const (
	failed   = "error"
	turnedBy = "refused" // it was not let in: a refusal, and no run
)

var (
	verdicts = newSet(append(sandbox.Verdicts(), failed)...)
	phases   = newSet(executor.PhaseCompile, executor.PhaseRun)
	ways     = newSet(api.WayRun, api.WayStream, api.WayAsync, api.WayBatch, api.WayTalk)
	tiers    = newSet(sandbox.TierProcess, sandbox.TierNamespace, sandbox.TierContainer, sandbox.TierGVisor, sandbox.TierMicroVM)
	engine   = newSet("native", "oci", "docker", "process")
	codes    = newSet(
		wire.CodeInvalid, wire.CodeMalformed, wire.CodeTooLarge, wire.CodeTooSlow, wire.CodeMediaType, wire.CodeUnauthorized, wire.CodeForbidden,
		wire.CodeRefused, wire.CodeCeiling, wire.CodeNotFound, wire.CodeMethod, wire.CodeNotAccepted, wire.CodeConflict, wire.CodeGone,
		wire.CodeTooMany, wire.CodeBusy, wire.CodeDraining, wire.CodeUnsupported, wire.CodeMissing, wire.CodeNotStarted, wire.CodeInternal, wire.CodeCancelled, wire.CodeLost,
		wire.CodeClosed,
		codeHost, codeOrigin,
	)
	methods = newSet(http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions)
)

// Codes of what is refused before the API is reached.
const (
	codeHost   = "host"
	codeOrigin = "origin"
)

// growing is a set that its first members make, up to a bound: names that are the server's own, such as those of pools.
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

// routes are the paths of the API, longest first; what is below them is a name that a client chose.
var routes = []string{
	wire.PathRuns + "/{id}/events", wire.PathRuns + "/{id}/ws", wire.PathRuns + "/{id}/files", wire.PathRuns + "/{id}", wire.PathFiles + "/{id}",
	wire.PathTalk, wire.PathRun, wire.PathRuns, wire.PathFiles, wire.PathBatch, wire.PathLanguages, wire.PathHealth, wire.PathOpenAPI, PathMetrics, PathReceiptKey, "/docs",
}

// route is which of them a path is. The path itself is never told: who asks wrongly may have put anything into it.
func route(path string) string {
	if slices.Contains(routes, path) && !strings.Contains(path, "{") {
		return path
	}
	for _, r := range routes {
		before, after, found := strings.Cut(r, "{id}")
		rest, ok := strings.CutPrefix(path, before)
		if !found || !ok {
			continue
		}
		id, end, _ := strings.Cut(rest, "/")
		if after == "/files" && strings.HasPrefix(end, "files/") {
			end = "files" // one of them
		}
		if id != "" && (after == "" && end == "" || after != "" && "/"+end == after) {
			return r
		}
	}
	if strings.HasPrefix(path, wire.PathHealth+"/") {
		return wire.PathHealth
	}
	return other
}

package cli

import (
	"context"
	"io"
	"os"

	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Full is what only the full executable has, for it takes libraries that are slow to start (D10).
type Full struct {
	Registries Registries
	Builder    Builder
	// SetUpDocker installs and starts Docker, after showing how and asking.
	SetUpDocker func(ctx context.Context, yes bool, in io.Reader, out io.Writer) error
	Server      Server
	Web         Web
	// Attack carries out the attack suite, writes the results, and reports whether everything that applies held.
	Attack func(ctx context.Context, a Attack) (held bool, err error)
}

// Attack says which backend doctor --attack attacks, and how results are written.
type Attack struct {
	Backend  sandbox.Backend
	Flags    []string // those that choose the backend on a command line
	Out, Err *os.File
	// WriteJSON writes the report to Out; nil is text.
	WriteJSON func(report any) error
	Live      bool // Err is a terminal that can show the case under way
	Colour    bool // Out shows colours
	Escape    func(string) string
	Missing   func([]sandbox.Gap) string // lines about what the backend lacks
}

// Server is the HTTP API.
type Server interface {
	// Serve runs until it is told to end by a signal, and has then ended everything. ctx ends it, too.
	Serve(ctx context.Context, s Serving) error
	// Check finds out what Serve would do, and does nothing of it.
	Check(ctx context.Context, s Serving) (*ServeReport, error)
}

// Serving says how to serve.
type Serving struct {
	Settings *operator.Settings
	// Again reads the settings once more, for one who has changed their file.
	Again   func() (*operator.Settings, error)
	Version string
	// Err is where logs go, as JSON, and the line that says it is ready.
	Err io.Writer
	// Exit ends the process at once, when it was asked to often enough.
	Exit func(code int)
}

// ServeReport is what a server would be.
type ServeReport struct {
	Listen  []ServeAddress `json:"listen"`
	Keys    int            `json:"keys"`
	Backend string         `json:"backend"`
	Tier    sandbox.Tier   `json:"tier"`
	Require sandbox.Tier   `json:"require"`
	Notes   []string       `json:"notes"`
}

// ServeAddress is one place it is reached at.
type ServeAddress struct {
	Address string `json:"address"`
	Kind    string `json:"kind"` // unix, loopback or exposed
	TLS     bool   `json:"tls"`
	Keys    bool   `json:"keys"` // whether a key is needed there
}

// Registries is where images come from.
type Registries interface {
	// Pull fetches an image, or what is not here of it.
	Pull(ctx context.Context, store *image.Store, ref string, f Fetch) (*image.Image, error)
	// Update asks what names that were pulled stand for now, and fetches what has changed; no names are all of them. The error is
	// about the names or the store; what a registry does is in the changes.
	Update(ctx context.Context, store *image.Store, names []string, f Fetch) ([]Change, error)
}

// Fetch says how an image is fetched.
type Fetch struct {
	Platform string       // "linux/amd64"; empty is this machine's
	Insecure bool         // over plain HTTP; of this very machine only
	Progress func(Motion) // what has happened; one call at a time
}

// Change is what became of a name.
type Change struct {
	Name     string
	Outcome  string
	Old, New string // digests of manifests; no new one, unless it was updated
	Err      error  // of one that failed, or why it is gone
}

// What can become of a name. The image of one that is gone from its registry stays here.
const (
	ChangeUpdated   = "updated"
	ChangeUnchanged = "unchanged"
	ChangeGone      = "gone"
	ChangeFailed    = "failed"
)

// Motion is how far a layer has come, or with no Layer, the image.
type Motion struct {
	Image       string // its name, in full
	Layer       string // its digest
	State       string // one of those below, or any other word for what is being done
	Done, Total int64  // bytes
	Reason      string // why it is tried again
}

// The states of layers, and of the image, that mean something to those who draw them.
const (
	MotionWaiting    = "waiting"
	MotionPresent    = "present"
	MotionRetrying   = "retrying"
	MotionDownloaded = "downloaded"
	MotionDone       = "done"
	MotionFailed     = "failed"
)

// Builder makes the product's own images.
type Builder interface {
	// Recipes lists what can be made.
	Recipes() []Recipe
	// Build makes an image and gives it the recipe's name.
	Build(ctx context.Context, store *image.Store, name string, o Building) (*image.Image, error)
	// Dockerfile is the recipe for those who build with Docker, on one of the bases.
	Dockerfile(name, base string) (string, error)
	// Collect finds what builds that were killed have left and, unless dryRun, removes it.
	Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error)
}

// Recipe is an image that can be made.
type Recipe struct {
	Name  string `json:"name"`
	Image string `json:"image"` // what it is called when it is made
	About string `json:"about"`
}

// Building says how an image is made.
type Building struct {
	Suite    string // of Debian; empty is this machine's
	Mirror   string // of Debian's packages; empty is this machine's
	Tags     []string
	Log      io.Writer         // what the programs at work say
	Progress func(what string) // from a goroutine at a time
}

// dockerfileBases are what Dockerfiles can begin with; the first is the usual one.
var dockerfileBases = []string{"slim", "debian", "alpine"}

package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// What a workspace may hold unless somebody says otherwise: as much as a sandbox's own disk.
const (
	DefaultCap    = 1 * sandbox.GiB
	DefaultInodes = 64 << 10
)

// The least and the most that can be asked for.
const (
	minCap    = 1 * sandbox.MiB
	maxCap    = 4 * sandbox.TiB
	minInodes = 32
	maxInodes = 1 << 24
	maxName   = 64
)

// Options of Open; the zero value is useful.
type Options struct {
	Cap    sandbox.Size  // most bytes; 0 is what it had, or DefaultCap for a new one. Kept with the workspace
	Inodes int           // most files and directories; 0 likewise, DefaultInodes
	Wait   time.Duration // for whoever uses it; 0 is not at all
	Floor  sandbox.Size  // free space that its file system keeps while it is watched; 0 is the smaller of 1 GiB and 5 %
	Most   Most          // of all workspaces of the store together
}

// Most bounds a store. What is zero is not bounded. Those that are there already can be used, whatever there is.
type Most struct {
	Workspaces int
	Bytes      sandbox.Size // that their caps may add up to
}

// ErrMost is of a workspace that would be one too many, or too large beside the others.
var ErrMost = errors.New("more than may be in the store")

func (o Options) validate() error {
	if o.Cap != 0 && (o.Cap < minCap || o.Cap > maxCap) {
		return sandbox.Invalid("workspace-cap", "%s is outside %s…%s", o.Cap, minCap, maxCap)
	}
	if o.Inodes != 0 && (o.Inodes < minInodes || o.Inodes > maxInodes) {
		return sandbox.Invalid("workspace-inodes", "%d is outside %d…%d", o.Inodes, minInodes, maxInodes)
	}
	if o.Wait < 0 {
		return sandbox.Invalid("workspace", "a wait of %v; it can not be negative", o.Wait)
	}
	return nil
}

// Usage is what a workspace holds.
type Usage struct {
	Bytes  sandbox.Size `json:"bytes"` // allocated: a sparse file counts as what it takes, a file with two names once
	Inodes int          `json:"inodes"`
	// Partial says that there is more: counting stopped at a bound, or the tree changed meanwhile.
	Partial bool `json:"partial,omitempty"`
	// Hidden are directories nobody could look into. There may be anything in them, so they count as too much.
	Hidden int `json:"hidden,omitempty"`
	again  int // names beyond the first of files with several
}

// over says what is too much, or nothing.
func (u Usage) over(most sandbox.Size, inodes int) string {
	var what []string
	if u.Bytes > most {
		what = append(what, fmt.Sprintf("holds %s%s of at most %s", atLeast(u.Partial), u.Bytes, most))
	}
	if u.Inodes > inodes {
		what = append(what, fmt.Sprintf("holds %s%d files of at most %d", atLeast(u.Partial), u.Inodes, inodes))
	}
	if u.Hidden > 0 {
		what = append(what, fmt.Sprintf("hides what is in %d directories", u.Hidden))
	}
	return strings.Join(what, " and ")
}

func atLeast(partial bool) string {
	if partial {
		return "at least "
	}
	return ""
}

// Info is what is known of a workspace.
type Info struct {
	Name     string       `json:"name"`
	Path     string       `json:"path"`
	Usage    Usage        `json:"usage"`
	Cap      sandbox.Size `json:"cap"`
	Inodes   int          `json:"inodes"`
	Enforced bool         `json:"enforced,omitempty"` // the cap is the kernel's; otherwise it is polled
	Created  time.Time    `json:"created,omitzero"`
	LastUsed time.Time    `json:"last_used,omitzero"`
	Locked   bool         `json:"locked"`
	LockedBy int          `json:"locked_by,omitempty"` // pid, where it is known
}

// metadata is kept beside the directory, where no sandbox can write.
type metadata struct {
	Cap      sandbox.Size `json:"cap"`
	Inodes   int          `json:"inodes"`
	Project  uint32       `json:"project,omitempty"` // whose quota is the cap, where the directory has that id
	Created  time.Time    `json:"created"`
	LastUsed time.Time    `json:"last_used"`
}

// parseMetadata reads what an earlier run has written; nonsense is refused rather than taken for a cap.
func parseMetadata(text []byte) (metadata, error) {
	var m metadata
	if err := json.Unmarshal(text, &m); err != nil {
		return m, err
	}
	if m.Cap == 0 || m.Inodes == 0 {
		return m, errors.New("it has no cap")
	}
	return m, Options{Cap: m.Cap, Inodes: m.Inodes}.validate()
}

// DefaultStore is $XDG_DATA_HOME/sandbox-run/workspaces.
func DefaultStore() (string, error) {
	dir, err := userdir.Data()
	if err != nil {
		return "", &sandbox.Error{Op: "workspace", Err: err}
	}
	return filepath.Join(dir, "workspaces"), nil
}

// unknown is the error of a name that no workspace has.
func unknown(name string) error {
	return &sandbox.Error{
		Op: "workspace " + name, Kind: sandbox.ErrNotFound, Err: errors.New("there is none of that name"),
		Hint: "sandbox-run workspace list",
	}
}

// CheckName refuses what can not be the name of a workspace: letters, digits, - _ and ., at most 64 of them, no
// dot or dash at the beginning.
func CheckName(name string) error {
	if name == "" {
		return sandbox.Invalid("workspace", "the name is empty")
	}
	if len(name) > maxName {
		return sandbox.Invalid("workspace", "the name %.40q… is %d bytes long; the most is %d", name, len(name), maxName)
	}
	if name[0] == '.' || name[0] == '-' {
		return sandbox.Invalid("workspace", "the name %q begins with %q; begin it with a letter or digit", name, name[0])
	}
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
		default:
			return sandbox.Invalid("workspace", "the name %q has a %q in it; letters, digits, - _ and . are allowed", name, r)
		}
	}
	return nil
}

func metaName(name string) string { return "." + name + ".json" }
func lockName(name string) string { return "." + name + ".lock" }

// inUse is the error of a workspace that somebody has.
func inUse(name string, pid int, waited time.Duration) error {
	holder := "another run uses it"
	if pid > 0 {
		holder = fmt.Sprintf("the process %d uses it", pid)
	}
	if waited > 0 {
		holder += fmt.Sprintf(", and still did after %v", waited)
	}
	return &sandbox.Error{
		Op: "workspace " + name, Kind: sandbox.ErrState, Err: errors.New(holder),
		Hint: "again when it is done, or another workspace",
	}
}

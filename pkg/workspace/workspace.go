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

// The default cap of a workspace is that of a sandbox's scratch.
const (
	DefaultCap    = 1 * sandbox.GiB
	DefaultInodes = 64 << 10
)

// The bounds of caps.
const (
	minCap    = 1 * sandbox.MiB
	maxCap    = 4 * sandbox.TiB
	minInodes = 32
	maxInodes = 1 << 24
	maxName   = 64
)

// Options are the options of Open. The zero value has the defaults.
type Options struct {
	Cap    sandbox.Size  // most bytes; 0: the cap that it has, or DefaultCap for a new workspace. Kept with the workspace
	Inodes int           // most files and directories; 0: likewise, DefaultInodes
	Wait   time.Duration // for the run that uses it; 0 does not wait
	Floor  sandbox.Size  // free space that stays on the file system during Watch; 0: the smaller of 1 GiB and 5 %
	Most   Most          // bounds of the whole store
}

// Most bounds a store. A zero field is no bound. Existing workspaces stay usable beyond the bounds.
type Most struct {
	Workspaces int
	Bytes      sandbox.Size // sum of all caps
}

// ErrMost means that a new workspace exceeds the bounds of its store.
var ErrMost = errors.New("more than may be in the store")

func (o Options) validate() error {
	if o.Cap != 0 && (o.Cap < minCap || o.Cap > maxCap) {
		return sandbox.Invalid("workspace-cap", "%s is outside %s…%s", o.Cap, minCap, maxCap)
	}
	if o.Inodes != 0 && (o.Inodes < minInodes || o.Inodes > maxInodes) {
		return sandbox.Invalid("workspace-inodes", "%d is outside %d…%d", o.Inodes, minInodes, maxInodes)
	}
	if o.Wait < 0 {
		return sandbox.Invalid("workspace", "the wait %v is negative", o.Wait)
	}
	return nil
}

// Usage is the size of a workspace.
type Usage struct {
	Bytes  sandbox.Size `json:"bytes"` // allocated: a sparse file counts with its blocks, a file with two names once
	Inodes int          `json:"inodes"`
	// Partial means that there is more: counting stopped at a bound, or the tree changed meanwhile.
	Partial bool `json:"partial,omitempty"`
	// Hidden counts the directories that could not be read. Their size is unknown, so they count as above the cap.
	Hidden int `json:"hidden,omitempty"`
	again  int // further names of files with several
}

// over describes what exceeds a cap; it is empty within the cap.
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

// Info describes a workspace.
type Info struct {
	Name     string       `json:"name"`
	Path     string       `json:"path"`
	Usage    Usage        `json:"usage"`
	Cap      sandbox.Size `json:"cap"`
	Inodes   int          `json:"inodes"`
	Enforced bool         `json:"enforced,omitempty"` // the kernel enforces the cap; otherwise it is polled
	Created  time.Time    `json:"created,omitzero"`
	LastUsed time.Time    `json:"last_used,omitzero"`
	Locked   bool         `json:"locked"`
	LockedBy int          `json:"locked_by,omitempty"` // pid, if known
}

// metadata is a file beside the directory, out of reach of sandboxes.
type metadata struct {
	Cap      sandbox.Size `json:"cap"`
	Inodes   int          `json:"inodes"`
	Project  uint32       `json:"project,omitempty"` // id whose quota is the cap, if the directory has it
	Created  time.Time    `json:"created"`
	LastUsed time.Time    `json:"last_used"`
}

// parseMetadata reads the metadata of a workspace. It refuses an invalid file instead of reading a cap from it.
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

// unknown returns the error for a name without a workspace.
func unknown(name string) error {
	return sandbox.Errorf(sandbox.ErrNotFound, "workspace "+name, "sandbox-run workspace list", "no workspace has that name")
}

// CheckName refuses an invalid name of a workspace. A name has letters, digits, - _ and ., at most 64 of them, and no dot or dash
// at the beginning.
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

// inUse returns the error for a workspace that another run uses.
func inUse(name string, pid int, waited time.Duration) error {
	holder := "another run uses it"
	if pid > 0 {
		holder = fmt.Sprintf("the process %d uses it", pid)
	}
	if waited > 0 {
		holder += fmt.Sprintf(", and still did after %v", waited)
	}
	return sandbox.Errorf(sandbox.ErrState, "workspace "+name, "wait for that run to end, or use another workspace", "%s", holder)
}

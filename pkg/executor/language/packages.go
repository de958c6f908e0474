package language

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Packages describes an installation: what a program declares, and the commands that install it in a sandbox of its own. It is data;
// equal descriptions have equal layers.
type Packages struct {
	Registry     string         // that the commands may reach: pypi, npm, go, crates, maven
	Requirements []string       // as declared, for people; sorted
	Files        []sandbox.File // of the installing sandbox, with their content in Data: manifests and locks
	// Filled are the paths of the Files in which placeholders are replaced. The others are of the program, and stay as they are.
	Filled []string
	Env    map[string]string
	Steps  []Step
	Locked bool // the files fix the version and the digest of every package
	// Locks are the files in /workspace from which ReadLock makes the lock.
	Locks    []string
	ReadLock func(files map[string][]byte) (*Lock, error)
}

// Step is a command of an installation.
type Step struct {
	Args    []string
	Workdir string // default /workspace
	Env     map[string]string
	Offline bool // it runs without a network
	Foreign bool // it runs code of packages, which can change everything in the sandbox: the locks are read before
}

// LayerDir is the directory of the installing sandbox that becomes the layer.
const LayerDir = sandbox.WorkspaceDir + "/layer"

// Registry stands for the address of the registry in the files, variables and arguments of an installation. Behind it comes a URL's scheme,
// host and path: {registry}/https/pypi.org/simple.
const Registry = "{registry}"

// Index stands for the address of the registry's index: that of the configuration, or of the table in package registry.
const Index = "{index}"

// Checksums stands for the value of GOSUMDB: Go's checksum database and its address, or "off" where there is none.
const Checksums = "{checksums}"

// Layer is a set of installed packages, to be shown to sandboxes.
type Layer struct {
	ID   string // sha256:… of the image that keeps it
	Dir  string // of the host
	Lock *Lock
}

// Lock says exactly what a layer has.
type Lock struct {
	Language string            `json:"language"`
	Version  string            `json:"language_version"` // of the toolchain
	Platform string            `json:"platform"`
	Requires []string          `json:"requires,omitempty"` // as declared
	Packages []Package         `json:"packages"`
	Files    map[string]string `json:"files,omitempty"` // the tool's own lock files, from which --frozen installs
}

// Package is an installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Hash    string `json:"hash,omitempty"` // ALGORITHM:HEX of the archive
	URL     string `json:"url,omitempty"`  // of the archive, at the registry
}

// SortPackages sorts packages by name and version, and drops repetitions.
func SortPackages(all []Package) []Package {
	slices.SortFunc(all, func(a, b Package) int {
		return strings.Compare(a.Name+"\x00"+a.Version, b.Name+"\x00"+b.Version)
	})
	return slices.Compact(all)
}

// maxLock bounds the text of a lock.
const maxLock = 32 << 20

// ParseLock reads a lock that a result contained, or --lock has written.
func ParseLock(text string) (*Lock, error) {
	if len(text) > maxLock {
		return nil, sandbox.Invalid("lock", "it has %d bytes; the most is %d", len(text), maxLock)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	l := new(Lock)
	if err := d.Decode(l); err != nil {
		return nil, sandbox.Invalid("lock", "it is not a lock of sandbox-run: %w", err)
	}
	return l, nil
}

// Covers refuses a lock that was made without one of some requirements.
func (l *Lock) Covers(requirements []string) error {
	has := make(map[string]bool, len(l.Requires))
	for _, r := range l.Requires {
		has[r] = true
	}
	for _, r := range requirements {
		if !has[r] {
			return sandbox.Errorf(sandbox.ErrInvalid, "lock", "remove the lock, and the next run writes another", "%s is not among what it was made for", r)
		}
	}
	return nil
}

// JoinRequirements puts the parts of requirements together that were separated at a comma within them: requests>=2,<3 and pkg[a,b].
func JoinRequirements(parts []string) (all []string) {
	open := false // in brackets
	for _, p := range parts {
		p = strings.TrimSpace(p)
		if last := len(all) - 1; last >= 0 && (open || strings.ContainsRune("<>=!~^", first(p))) {
			all[last] += "," + p
		} else {
			all = append(all, p)
		}
		text := all[len(all)-1]
		open = strings.Count(text, "[") > strings.Count(text, "]")
	}
	return all
}

func first(s string) rune {
	for _, r := range s {
		return r
	}
	return 0
}

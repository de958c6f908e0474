package toolchain

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Toolchain is a compiler or interpreter with its parts. Its paths are those of a sandbox with Mounts.
type Toolchain struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // "3.11.7"; empty if unknown
	// Path is the main program (an interpreter, a compiler's driver), and Programs are further ones by their role:
	// "javac", "cargo", "cc", "initdb". All are paths inside.
	Path     string            `json:"path"`
	Programs map[string]string `json:"programs,omitempty"`
	Home     string            `json:"home,omitempty"` // prefix, GOROOT, java.home, sysroot, directory of a server's programs; inside
	// Mounts are the toolchain's paths outside the directories that every sandbox shows. Source and Target are the same, with two
	// exceptions: for a link, Source is its target, and for a path below a directory of the sandbox's own (/tmp, /home/sandbox), Target
	// is below /opt/sandbox-run.
	Mounts []sandbox.Mount   `json:"mounts,omitempty"`
	Env    map[string]string `json:"env,omitempty"` // variables of its programs; the executor sets PATH
	// ID changes when the toolchain does: a digest of versions, paths, sizes and times of its programs.
	ID string `json:"id"`
	// Found is the path on the host that the search tried: a shim, a link, or the program itself.
	Found string `json:"found"`
	// Skipped lists earlier candidates, with the reason why the search skipped each.
	Skipped []string `json:"skipped,omitempty"`
}

// clone returns a copy that the caller owns.
func (t *Toolchain) clone() *Toolchain {
	c := *t
	c.Programs, c.Env = maps.Clone(t.Programs), maps.Clone(t.Env)
	c.Mounts, c.Skipped = slices.Clone(t.Mounts), slices.Clone(t.Skipped)
	return &c
}

// sign sets the ID. detail adds distinguishing values: a compiler's build, stamps of the programs.
func (t *Toolchain) sign(detail []string) {
	h := sha256.New()
	line := func(words ...string) { fmt.Fprintf(h, "%q\n", words) }
	line(t.Name, t.Version, t.Path, t.Home)
	for _, part := range []map[string]string{t.Programs, t.Env} {
		for _, k := range slices.Sorted(maps.Keys(part)) {
			line(k, part[k])
		}
	}
	for _, m := range t.Mounts {
		line(m.Source, m.Target)
	}
	line(detail...)
	t.ID = hex.EncodeToString(h.Sum(nil)[:16])
}

// Missing is the error for a toolchain that is missing or incomplete.
type Missing struct {
	Name string
	// Where is the searched image; empty is this machine.
	Where string
	// Partial is the incomplete toolchain, or nil. It has a version and a path; Reason names the missing part.
	Partial *Toolchain
	Reason  string
	Tried   []string // skipped candidates, with reasons
	Install []string // commands that install it, the one for this machine first
}

func (m *Missing) Error() string {
	var b strings.Builder
	if m.Partial != nil {
		fmt.Fprintf(&b, "toolchain: %s", m.Name)
		if m.Partial.Version != "" {
			fmt.Fprintf(&b, " %s", m.Partial.Version)
		}
		found := m.Partial.Found
		if m.Where != "" {
			found += " " + m.Where
		}
		fmt.Fprintf(&b, " (%s) is incomplete: %s", found, m.Reason)
	} else {
		fmt.Fprintf(&b, "toolchain: no %s %s", m.Name, cmp.Or(m.Where, "on this machine"))
		if m.Reason != "" {
			fmt.Fprintf(&b, ": %s", m.Reason)
		}
	}
	if len(m.Install) > 0 {
		fmt.Fprintf(&b, "; try: %s", m.Install[0])
	}
	for _, t := range m.Tried {
		fmt.Fprintf(&b, "\n  passed over: %s", t)
	}
	return b.String()
}

// Unwrap makes Missing an error of kind sandbox.ErrUnsupported.
func (m *Missing) Unwrap() error { return sandbox.ErrUnsupported }

// incomplete is the error of a toolchain that lacks something. Another candidate may be complete.
type incomplete struct {
	partial *Toolchain
	why     string
	fix     []string // instead of installing the language
}

func (i *incomplete) Error() string { return i.why }

// Incomplete returns the error of a Query for a toolchain that lacks a part. fix are the commands that add the part; without fix, the
// error suggests to install the language.
func (s *Search) Incomplete(t *Toolchain, why string, fix ...string) error {
	if s.image != nil {
		fix = nil
	}
	return &incomplete{t, why, fix}
}

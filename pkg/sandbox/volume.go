package sandbox

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Volume shows a directory or file of the host inside the sandbox. A writable volume is id-mapped: the sandbox's user
// has the rights of the owner of the source, and of no other user.
type Volume struct {
	Source   string `json:"source"` // absolute, without symlinks or ".."
	Target   string `json:"target"` // absolute
	Writable bool   `json:"writable"`
	// Cap is the most that a writable volume may hold; 0 is no cap. Either the kernel enforces it (Quota), or the
	// volume's owner polls it. For a polled cap the sandbox refuses files that are larger than the cap (RLIMIT_FSIZE,
	// which holds for files elsewhere as well) and the reservation of space (fallocate).
	Cap Size `json:"-"`
	// Quota is set where the kernel enforces Cap.
	Quota Quota `json:"-"`
	// CapSettings names the settings that would allow a larger Cap, in the words of the entry point; empty is the flags.
	CapSettings string `json:"-"`
	// CapGap has the reason why the kernel does not enforce Cap, and the remedy.
	CapGap Gap `json:"-"`
}

// Quota is a cap of a volume that the kernel enforces.
type Quota interface {
	// Full reports whether the space below the cap is so small that a write may have failed.
	Full() bool
}

// VolumeCap is the smallest polled cap of the volumes; 0 for none.
func (s *Spec) VolumeCap() Size {
	if v := s.polledVolume(); v != nil {
		return v.Cap
	}
	return 0
}

// polledVolume is the volume with the smallest polled cap, or nil.
func (s *Spec) polledVolume() (least *Volume) {
	for i, v := range s.Volumes {
		if v.Cap > 0 && v.Quota == nil && (least == nil || v.Cap < least.Cap) {
			least = &s.Volumes[i]
		}
	}
	return least
}

// fullVolumes are the violations of caps that the kernel enforces.
func (s *Spec) fullVolumes() (full []Violation) {
	for _, v := range s.Volumes {
		if v.Quota != nil && v.Quota.Full() {
			detail := fmt.Sprintf("%s was full, by its cap of %s or by that of files", v.Target, v.Cap)
			full = append(full, Violation{Kind: "disk", Count: 1, Allow: v.capSettings(), Detail: detail})
		}
	}
	return full
}

// WorkspaceFlags are the flags that allow a larger workspace.
const WorkspaceFlags = "--workspace-cap, --workspace-inodes"

func (v *Volume) capSettings() string { return cmp.Or(v.CapSettings, WorkspaceFlags) }

// OverCap is the violation of a process that would have made a file larger than VolumeCap.
func (s *Spec) OverCap() Violation {
	allow := WorkspaceFlags
	if v := s.polledVolume(); v != nil {
		allow = v.capSettings()
	}
	allow, _, _ = strings.Cut(allow, ", ") // the first setting is that of bytes
	return Violation{Kind: "disk", Count: 1, Allow: allow,
		Detail: fmt.Sprintf("a file would have been larger than the cap of %s", s.VolumeCap())}
}

// DiskFullError as the cause of a cancelled context gives the run the verdict disk_limit instead of cancelled: a directory of the host that
// the program writes to holds more than it may.
type DiskFullError struct {
	Detail string
	Allow  string // the settings that would allow more
}

func (e *DiskFullError) Error() string { return e.Detail }

// violation is nil where the run was not cancelled for that.
func (e *DiskFullError) violation() []Violation {
	if e == nil {
		return nil
	}
	return []Violation{{Kind: "disk", Count: 1, Allow: e.Allow, Detail: e.Detail}}
}

// ParseVolume reads host:dest[:ro|rw]; the default is ro.
func ParseVolume(s string) (Volume, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return Volume{}, Invalid("volume", "%q is not of the form host:dest[:ro|rw]; write it like /data:/data:ro", s)
	}
	v := Volume{Source: parts[0], Target: parts[1]}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
		case "rw":
			v.Writable = true
		default:
			return Volume{}, Invalid("volume", "%q: mode %q is neither ro nor rw", s, parts[2])
		}
	}
	return v, v.validate()
}

func (v Volume) String() string {
	mode := "ro"
	if v.Writable {
		mode = "rw"
	}
	return fmt.Sprintf("%s:%s:%s", v.Source, v.Target, mode)
}

// reservedTargets belong to the sandbox itself: a volume that covers them would remove a control.
var reservedTargets = []string{"/proc", "/dev", "/sys"}

func (v Volume) validate() error {
	if slices.Contains(strings.Split(filepath.ToSlash(v.Source), "/"), "..") {
		return Invalid("volume", "source %q contains ..; name the directory itself", v.Source)
	}
	if !filepath.IsAbs(v.Source) {
		return Invalid("volume", "source %q is not absolute", v.Source)
	}
	if err := validatePath("volume", v.Source); err != nil {
		return err
	}
	if err := validateInside("volume", v.Target); err != nil {
		return err
	}
	if v.Target == "/" {
		return Invalid("volume", "target / would cover the sandbox's own root")
	}
	for _, r := range reservedTargets {
		if lies(v.Target, r) {
			return Invalid("volume", "target %q lies in %s, which belongs to the sandbox", v.Target, r)
		}
	}
	return nil
}

// within reports whether the source lies in one of the allowed roots; no roots allow everything.
func (v Volume) within(roots []string) bool {
	return len(roots) == 0 || slices.ContainsFunc(roots, func(r string) bool {
		r = filepath.Clean(r)
		return v.Source == r || strings.HasPrefix(v.Source, strings.TrimSuffix(r, "/")+"/")
	})
}

const maxPath = 4095 // the kernel's PATH_MAX without its NUL

func validatePath(field, p string) error {
	switch {
	case p == "":
		return Invalid(field, "path is empty")
	case strings.ContainsRune(p, 0):
		return Invalid(field, "path %q contains a NUL byte", p)
	case len(p) > maxPath:
		return Invalid(field, "path %.40q… is %d bytes long; the most is %d", p, len(p), maxPath)
	}
	return nil
}

// validateInside checks a path inside the sandbox.
func validateInside(field, p string) error {
	if err := validatePath(field, p); err != nil {
		return err
	}
	if !path.IsAbs(p) || path.Clean(p) != p {
		return Invalid(field, "path %q must be absolute and in its shortest form; write it like /data/in", p)
	}
	for _, name := range strings.Split(p, "/") {
		if len(name) > 255 {
			return Invalid(field, "path %.40q… has a component of %d bytes; the most is 255", p, len(name))
		}
	}
	return nil
}

package sandbox

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Spec is a sandbox as data: everything a backend needs to build it; none of it changes during the sandbox's life. The
// zero value is a sandbox with every default.
type Spec struct {
	Root         Root              `json:"root"`
	WritableRoot bool              `json:"writable_root,omitempty"` // throw-away changes anywhere, not only in the scratch
	Volumes      []Volume          `json:"volumes,omitempty"`
	Workdir      string            `json:"workdir,omitempty"` // default /workspace
	Env          map[string]string `json:"env,omitempty"`     // on top of a clean environment
	User         User              `json:"user"`
	Hostname     string            `json:"hostname,omitempty"`
	Limits       Limits            `json:"limits"`
	Network      network.Policy    `json:"network,omitzero"`
	Bounds       network.Bounds    `json:"bounds,omitzero"` // the operator's, of the networks of all phases
	Scratch      ScratchMode       `json:"scratch,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Require      Tier              `json:"require,omitempty"` // refuse below; default container
	Strict       bool              `json:"strict,omitempty"`  // refuse unless nothing is missing
	// Ahead are the processes that are sure to start in the sandbox, in their order, where that is known. They only
	// change how soon the processes start: a backend with pooled sandboxes may return one in which they wait
	// (Process.Warm). A pooled sandbox may go to another request, so it has nothing of this request but the settings
	// that all of its shape share. Their Env is complete: the sandbox's is not added.
	Ahead []Process `json:"-"`
}

// Root is the source of "/": paths of the host (its toolchains), a directory with a whole root file system, or an image
// of the backend's own store. Each is only read.
type Root struct {
	HostPaths []string `json:"host_paths,omitempty"` // default: the host's system directories
	Dir       string   `json:"dir,omitempty"`
	// Image is a reference for backends with an image store of their own (docker). Others get the Dir of an unpacked
	// image.
	Image string `json:"image,omitempty"`
	// Add lists further mounts: toolchains that are not in a system directory.
	Add []Mount `json:"add,omitempty"`
	// From names the image of Dir or Image, where it is one: for results and errors. Links of an image in the places of
	// the scratch are covered; in another Dir they are refused.
	From ImageRef `json:"from,omitzero"`
}

// ImageRef names an image: by the reference of the request, and by its digests.
type ImageRef struct {
	Reference string `json:"reference"`
	ID        string `json:"id,omitempty"`     // digest of its configuration
	Digest    string `json:"digest,omitempty"` // of its manifest: its name in an image registry
}

// Mount shows a directory or file of the host in a root, read-only and with its owners. Unlike a volume it does not
// belong to the sandbox's user.
type Mount struct {
	Source string `json:"source"` // absolute, without symlinks or ".."
	Target string `json:"target"` // absolute, in no directory of the sandbox's own
}

// Places inside every sandbox.
const (
	WorkspaceDir = "/workspace"
	TmpDir       = "/tmp"
	HomeDir      = "/home/sandbox"
	UserName     = "sandbox"
)

// Process is one command to run in a sandbox.
type Process struct {
	// Phase names the pid namespace and cgroup of the process ("compile", "run"). A process that names a running phase
	// joins it, and its limits; otherwise the backend makes the phase.
	Phase   string            `json:"phase,omitempty"` // default "run"
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`     // on top of the sandbox's
	Workdir string            `json:"workdir,omitempty"` // default: the sandbox's
	Limits  Limits            `json:"limits"`            // fields left zero are the sandbox's
	Network network.Policy    `json:"network,omitzero"`  // default: the sandbox's
	TTY     *TTY              `json:"tty,omitempty"`     // run on a terminal of its own
	// Followed: another phase follows at once. A backend may prepare it meanwhile.
	Followed bool `json:"followed,omitempty"`
	// KillOnOutput ends the run when a stream exceeds its limit instead of dropping the middle.
	KillOnOutput bool `json:"kill_on_output,omitempty"`
	// StackSignal is the number of the signal at which the process prints its stack. The Manager sends it at the time and CPU limits, before
	// SIGTERM, if the process has a handler for it; 0: none.
	StackSignal int `json:"stack_signal,omitempty"`
	// MergeOutput gives the process one pipe for stdout and stderr: all output is stdout, exactly in the order of the writes.
	MergeOutput bool `json:"merge_output,omitempty"`
	// DriverSocket makes standard input a socket to the caller, for a process that Manager.Start starts. Only tasks of some backends are
	// Driven.
	DriverSocket bool `json:"driver_socket,omitempty"`
	// Warm describes how such a process can be prepared in advance; nil: it can not.
	Warm *Warm `json:"-"`
}

// TTY is the size of a terminal.
type TTY struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// DefaultPhase is the phase of processes that name none.
const DefaultPhase = "run"

const (
	maxArgBytes = 1 << 20
	maxVolumes  = 64
	maxLabels   = 64
	maxAdded    = 64
)

// The forms of names are checked by hand: compiled patterns would cost every start of the command.
const (
	lowerCase = "abcdefghijklmnopqrstuvwxyz"
	upperCase = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits    = "0123456789"
)

// consistsOf reports whether s has 1…most bytes, all of them in set.
func consistsOf(s, set string, most int) bool {
	outside := func(r rune) bool { return !strings.ContainsRune(set, r) }
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, outside)
}

func isPhaseName(s string) bool {
	return consistsOf(s, lowerCase+digits+"-_", 32) && strings.ContainsRune(lowerCase, rune(s[0]))
}

func isHostname(s string) bool {
	return consistsOf(s, lowerCase+upperCase+digits+".-", 64) && strings.Trim(s, ".-") == s
}

// complete returns the spec with every default filled in, or an error for an invalid field.
func (s Spec) complete(m Machine, volumeRoots []string) (Spec, []string, error) {
	if err := s.Limits.Validate(m); err != nil {
		return s, nil, err
	}
	limits, said := s.Limits.OrDefaults(DefaultLimits(), m)
	s.Limits = limits
	s.Network = s.Network.Complete()
	s.Scratch = cmp.Or(s.Scratch, ScratchAuto)
	s.Require = cmp.Or(s.Require, TierContainer)
	s.Workdir = cmp.Or(s.Workdir, WorkspaceDir)
	s.Hostname = cmp.Or(s.Hostname, UserName)
	s.User = cmp.Or(s.User, DefaultUser)
	s.Env = maps.Clone(s.Env)
	s.Volumes = slices.Clone(s.Volumes)
	s.Root.Add = slices.Clone(s.Root.Add)
	s.Ahead = s.completeAhead(m)
	return s, said, s.validate(volumeRoots)
}

// completeAhead fills in the sandbox's defaults in the prepared processes. Run reports the errors of an invalid one.
func (s Spec) completeAhead(m Machine) []Process {
	s.Env = nil
	var list []Process
	for _, p := range s.Ahead {
		p, err := p.complete(s, m)
		if err != nil {
			return nil
		}
		list = append(list, p)
	}
	return list
}

func (s Spec) validate(volumeRoots []string) error {
	if err := s.User.validate(); err != nil {
		return err
	}
	if _, err := CompileNetwork(s.Network, s.Bounds); err != nil {
		return err
	}
	if _, err := ParseScratch(string(s.Scratch)); err != nil {
		return err
	}
	if _, err := ParseTier(string(s.Require)); err != nil {
		return err
	}
	if err := validateInside("workdir", s.Workdir); err != nil {
		return err
	}
	if !isHostname(s.Hostname) {
		return Invalid("hostname", "%q is not a host name of at most 64 letters, digits, dots and dashes", s.Hostname)
	}
	if err := s.Root.validate(); err != nil {
		return err
	}
	if err := s.Root.validateAdd(s.Volumes); err != nil {
		return err
	}
	if err := validateEnv(s.Env); err != nil {
		return err
	}
	if len(s.Labels) > maxLabels {
		return Invalid("labels", "%d labels; the most is %d", len(s.Labels), maxLabels)
	}
	if len(s.Volumes) > maxVolumes {
		return Invalid("volume", "%d volumes; the most is %d", len(s.Volumes), maxVolumes)
	}
	seen := map[string]bool{}
	for _, v := range s.Volumes {
		if err := v.validate(); err != nil {
			return err
		}
		if seen[v.Target] {
			return Invalid("volume", "two volumes have the target %q", v.Target)
		}
		seen[v.Target] = true
		if !v.within(volumeRoots) {
			return &Error{Op: "volume", Kind: ErrRefused,
				Err: fmt.Errorf("source %q lies outside the allowed roots %s", v.Source, strings.Join(volumeRoots, ", "))}
		}
	}
	return nil
}

func (r Root) validate() error {
	if r.Dir != "" && len(r.HostPaths) > 0 {
		return Invalid("root", "both a directory and host paths are given")
	}
	if r.Image != "" && (r.Dir != "" || len(r.HostPaths) > 0) {
		return Invalid("root", "an image is given, and a directory or host paths as well")
	}
	for _, p := range append(slices.Clone(r.HostPaths), r.Dir) {
		if p == "" {
			continue
		}
		if err := validatePath("root", p); err != nil {
			return err
		}
		if !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" {
			return Invalid("root", "path %q must be absolute, in its shortest form and not /", p)
		}
		for _, reserved := range append(slices.Clone(reservedTargets), WorkspaceDir, TmpDir, HomeDir) {
			if r.Dir == "" && lies(p, reserved) {
				return Invalid("root", "path %q lies in %s, which belongs to the sandbox", p, reserved)
			}
		}
	}
	return nil
}

// lies reports whether a path is the directory, or lies in it.
func lies(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// validateAdd checks the added mounts against everything else that has a place in the root: none may cover another
// requested path, or be covered by one.
func (r Root) validateAdd(volumes []Volume) error {
	if len(r.Add) > maxAdded {
		return Invalid("root", "%d mounts are added; the most is %d", len(r.Add), maxAdded)
	}
	seen := map[string]bool{}
	for _, m := range r.Add {
		if err := validatePath("root", m.Source); err != nil {
			return err
		}
		if !filepath.IsAbs(m.Source) || filepath.Clean(m.Source) != m.Source || m.Source == "/" {
			return Invalid("root", "source %q must be absolute, in its shortest form and not /", m.Source)
		}
		for _, kernel := range reservedTargets {
			if lies(m.Source, kernel) {
				return Invalid("root", "source %q lies in %s, which shows the host's own doings", m.Source, kernel)
			}
		}
		if err := validateInside("root", m.Target); err != nil {
			return err
		}
		if m.Target == "/" {
			return Invalid("root", "target / would cover the sandbox's own root")
		}
		if seen[m.Target] {
			return Invalid("root", "two mounts have the target %q", m.Target)
		}
		seen[m.Target] = true
		for _, own := range append(slices.Clone(reservedTargets), ScratchDirs()...) {
			if lies(m.Target, own) || lies(own, m.Target) {
				return Invalid("root", "target %q lies in %s, or covers it, which belongs to the sandbox", m.Target, own)
			}
		}
		for _, p := range r.HostPaths {
			if lies(p, m.Target) {
				return Invalid("root", "target %q would cover %s, which is to be shown", m.Target, p)
			}
		}
		for _, v := range volumes {
			if lies(m.Target, v.Target) {
				return Invalid("root", "target %q would be covered by the volume at %s", m.Target, v.Target)
			}
		}
	}
	return nil
}

// SearchPath is the PATH of processes that set none.
const SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ValidateVariable refuses a name that shells do not accept for a variable. A Spec accepts more: images have other names.
func ValidateVariable(name string) error {
	valid := name != ""
	for i := range len(name) {
		c := name[i]
		valid = valid && (c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z' || i > 0 && '0' <= c && c <= '9')
	}
	if !valid {
		return Invalid("env", "%.80q is not the name of a variable (letters, digits and _, no digit first); write it like NAME=value", name)
	}
	return nil
}

func validateEnv(env map[string]string) error {
	for k, v := range env {
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00"):
			return Invalid("env", "name %q is empty or contains = or NUL; write it like NAME=VALUE", k)
		case strings.ContainsRune(v, 0):
			return Invalid("env", "value of %q contains a NUL byte", k)
		}
	}
	return nil
}

// join gives the process the limits that it shares with a running process of its phase: processor time, memory, number
// of processes and network. A request for other values is an error, because they would not be enforced.
func (p *Process) join(neighbour, asked *Process) error {
	conflict := func(name string, has any) error {
		return &Error{
			Op: "run", Kind: ErrInvalid, Err: fmt.Errorf("%s: phase %q runs already, and its processes share one: %v", name, p.Phase, has),
			Hint: "another phase",
		}
	}
	for _, row := range limitTable {
		if row.scope != wholePhase {
			continue
		}
		if row.IsSet(&asked.Limits) && !row.Equal(&asked.Limits, &neighbour.Limits) {
			return conflict(row.Name, row.Text(&neighbour.Limits))
		}
		row.Copy(&p.Limits, &neighbour.Limits)
	}
	if !asked.Network.IsZero() && !p.Network.Equal(neighbour.Network) {
		return conflict("network", neighbour.Network)
	}
	p.Network = neighbour.Network
	return nil
}

// complete fills in the sandbox's defaults.
func (p Process) complete(s Spec, m Machine) (Process, error) {
	if err := p.Limits.Validate(m); err != nil {
		return p, err
	}
	if p.Limits != p.Limits.OfProcess() {
		return p, Invalid("limits", "disk and inodes belong to the sandbox, not to one of its processes")
	}
	p.Limits = p.Limits.Or(s.Limits)
	p.Phase = cmp.Or(p.Phase, DefaultPhase)
	p.Workdir = cmp.Or(p.Workdir, s.Workdir)
	p.Network = p.Network.Or(s.Network).Complete()
	if len(p.Args) == 0 || p.Args[0] == "" {
		return p, Invalid("command", "no program is named")
	}
	total := 0
	for _, a := range p.Args {
		if strings.ContainsRune(a, 0) {
			return p, Invalid("command", "the argument %.40q contains a NUL byte", a)
		}
		total += len(a) + 1
	}
	if total > maxArgBytes {
		return p, Invalid("command", "arguments are %d bytes long; the most is %d", total, maxArgBytes)
	}
	if !isPhaseName(p.Phase) {
		return p, Invalid("phase", "%q is not a name of lower-case letters, digits, - and _", p.Phase)
	}
	if err := validateInside("workdir", p.Workdir); err != nil {
		return p, err
	}
	if _, err := CompileNetwork(p.Network, s.Bounds); err != nil {
		return p, err
	}
	if err := validateEnv(p.Env); err != nil {
		return p, err
	}
	env := map[string]string{
		"PATH": SearchPath,
		"HOME": HomeDir, "USER": UserName, "LOGNAME": UserName, "LANG": "C.UTF-8",
	}
	if p.TTY != nil {
		env["TERM"] = "xterm-256color"
	}
	maps.Copy(env, s.Env)
	maps.Copy(env, p.Env)
	for k, v := range env {
		total += len(k) + len(v) + 2
	}
	if total > maxArgBytes {
		return p, Invalid("env", "arguments and environment are %d bytes long; the most is %d", total, maxArgBytes)
	}
	p.Env = env
	return p, nil
}

// Environ is the process's environment as execve takes it, sorted so that all runs have the same order.
func (p Process) Environ() []string {
	env := make([]string, 0, len(p.Env))
	for k, v := range p.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

package sandbox

import (
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Tier ranks the strength of a sandbox; see [Tier.AtLeast] for the order.
type Tier string

// The tiers, weakest first.
const (
	TierNone      Tier = "none"      // no guarantee; never runs
	TierProcess   Tier = "process"   // a process group with rlimits; only when asked for by name
	TierNamespace Tier = "namespace" // every control of a container, but memory or process limits are polled
	TierContainer Tier = "container" // namespaces, own root, seccomp, no privileges, kernel-enforced limits
	TierGVisor    Tier = "gvisor"    // a user-space kernel in between
	TierMicroVM   Tier = "microvm"   // a virtual machine in between
)

var tiers = []Tier{TierNone, TierProcess, TierNamespace, TierContainer, TierGVisor, TierMicroVM}

// ParseTier accepts the name of a tier that can be required.
func ParseTier(s string) (Tier, error) {
	if i := slices.Index(tiers, Tier(s)); i > 0 {
		return tiers[i], nil
	}
	names := make([]string, 0, len(tiers)-1)
	for _, t := range tiers[1:] {
		names = append(names, string(t))
	}
	return "", Invalid("require", "unknown tier %q; use one of %s", s, strings.Join(names, ", "))
}

// AtLeast reports whether t is as strong as floor.
func (t Tier) AtLeast(floor Tier) bool {
	i := slices.Index(tiers, floor)
	return i >= 0 && slices.Index(tiers, t) >= i // an unknown floor is never reached
}

// ControlState is the strength of a control.
type ControlState string

// The states of a control.
const (
	Enforced ControlState = "enforced" // by the kernel, at once; in a run's report: measured on the started program
	Declared ControlState = "declared" // asked for, and not observable here: enough for a tier, and a gap for --strict
	Polled   ControlState = "polled"   // by the supervisor, in intervals; overshoot is possible
	Absent   ControlState = "absent"
)

// Control names one property of the isolation, or one limit.
type Control string

// The controls that a result reports on.
const (
	ControlUserNS       Control = "user_namespace"
	ControlPidNS        Control = "pid_namespace"
	ControlMountNS      Control = "mount_namespace"
	ControlNetNS        Control = "network_namespace"
	ControlIPCNS        Control = "ipc_namespace"
	ControlUTSNS        Control = "uts_namespace"
	ControlCgroupNS     Control = "cgroup_namespace"
	ControlRoot         Control = "private_root"
	ControlSeccomp      Control = "seccomp"
	ControlLandlock     Control = "landlock"
	ControlNoNewPrivs   Control = "no_new_privileges"
	ControlCapabilities Control = "no_capabilities"
	ControlMemory       Control = "memory"
	ControlSwap         Control = "swap"
	ControlProcesses    Control = "pids"
	ControlCPU          Control = "cpus"
	ControlCPUTime      Control = "cpu_time"
	ControlDisk         Control = "disk"
	ControlOpenFiles    Control = "open_files"
	ControlWall         Control = "timeout"
	ControlOutput       Control = "output_limit"
	ControlCleanup      Control = "dies_with_supervisor"
)

// The controls of both lists must be enforced or declared for the tier container; for the tier namespace the limits may
// be polled.
var (
	wallControls = []Control{
		ControlUserNS, ControlPidNS, ControlMountNS, ControlNetNS, ControlIPCNS, ControlUTSNS, ControlCgroupNS,
		ControlRoot, ControlSeccomp, ControlNoNewPrivs, ControlCapabilities,
	}
	kernelLimits = []Control{ControlMemory, ControlProcesses, ControlCPU}
)

// WallControls lists the controls that every container has; Landlock is one more, where the kernel has it.
func WallControls() []Control { return slices.Clone(wallControls) }

// AllControls lists every control, in the order reports use.
func AllControls() []Control {
	return slices.Concat(wallControls, []Control{ControlLandlock}, kernelLimits, []Control{
		ControlSwap, ControlDisk, ControlOpenFiles, ControlCPUTime, ControlWall, ControlOutput, ControlCleanup,
	})
}

// Gap is a control that is weaker than requested: its reason, and its remedy.
type Gap struct {
	Control Control      `json:"control"`
	State   ControlState `json:"state"`
	Reason  string       `json:"reason"`
	Remedy  string       `json:"remedy,omitempty"`
}

// Isolation reports the measured controls and the tier, as data. Its JSON names are stable.
type Isolation struct {
	Backend  string                   `json:"backend"`
	Runtime  string                   `json:"runtime,omitempty"` // the OCI runtime that built it, if not the backend itself
	Tier     Tier                     `json:"tier"`
	Controls map[Control]ControlState `json:"controls"`
	Missing  []Gap                    `json:"missing"`
	Chosen   string                   `json:"chosen,omitempty"` // why this backend, where the caller named none
	Network  *NetworkIsolation        `json:"network,omitempty"`
}

// NetworkIsolation describes the network of a program with rules. The filter decides on everything that leaves the program's network
// namespace: its only device leads there.
type NetworkIsolation struct {
	Policy network.Policy `json:"policy"`
	// InspectedPorts are those on which clients must name the host of their connection.
	InspectedPorts []uint16       `json:"inspected_ports"`
	Published      []network.Port `json:"published,omitempty"` // on the host's loopback
	Limits         []string       `json:"limits"`              // what the filter does not see, in sentences
}

// DescribeNetwork is the report of a network whose filter is in force.
func DescribeNetwork(p network.Policy, f *network.Filter, published []network.Port) *NetworkIsolation {
	n := &NetworkIsolation{Policy: p, InspectedPorts: []uint16{}, Published: published}
	if f.Inspects() {
		n.InspectedPorts = slices.Concat(network.TLSPorts, network.HTTPPorts)
		n.Limits = append(n.Limits, "on other ports, a client may name any host to the server that it reaches",
			"the Host inside TLS is not seen: a server that serves several names may serve another one than that of the connection")
	} else {
		n.Limits = append(n.Limits, "connections are not inspected")
	}
	if p.DNS {
		n.Limits = append(n.Limits, "every name is resolved: names can carry data out")
	}
	return n
}

// NewIsolation returns a report in which every control is absent.
func NewIsolation(backend string) Isolation {
	iso := Isolation{Backend: backend, Controls: map[Control]ControlState{}, Missing: []Gap{}}
	for _, c := range AllControls() {
		iso.Controls[c] = Absent
	}
	return iso
}

// Enforce marks controls as enforced.
func (iso *Isolation) Enforce(controls ...Control) {
	for _, c := range controls {
		iso.Controls[c] = Enforced
	}
}

// Declare turns enforced controls into declared ones, for one reason.
func (iso *Isolation) Declare(reason, remedy string, controls ...Control) {
	for _, c := range controls {
		if iso.Controls[c] == Enforced {
			iso.Lack(c, Declared, reason, remedy)
		}
	}
}

// Lack records a gap: a control that is weaker than it could be.
func (iso *Isolation) Lack(c Control, state ControlState, reason, remedy string) {
	iso.Controls[c] = state
	iso.Missing = append(iso.Missing, Gap{Control: c, State: state, Reason: reason, Remedy: remedy})
}

// Grade derives the tier of a namespace-based backend from the controls, so that no backend can claim a tier whose
// controls it does not have.
func (iso *Isolation) Grade() {
	has := func(controls []Control, states ...ControlState) bool {
		return !slices.ContainsFunc(controls, func(c Control) bool { return !slices.Contains(states, iso.Controls[c]) })
	}
	switch {
	case has(wallControls, Enforced, Declared) && has(kernelLimits, Enforced, Declared):
		iso.Tier = TierContainer
	case has(wallControls, Enforced, Declared) && has(kernelLimits, Enforced, Declared, Polled):
		iso.Tier = TierNamespace
	default:
		iso.Tier = TierNone
	}
}

// Check returns a Refusal for an isolation below the required tier.
func (iso Isolation) Check(require Tier, strict bool) error {
	if require == "" {
		require = TierContainer
	}
	if !iso.Tier.AtLeast(require) || iso.Tier == TierNone || strict && len(iso.Missing) > 0 {
		return &Refusal{Require: require, Strict: strict, Got: iso}
	}
	return nil
}

// Clone copies the report, so that the additions of one run stay out of the reports of others.
func (iso Isolation) Clone() Isolation {
	iso.Controls, iso.Missing = maps.Collect(maps.All(iso.Controls)), slices.Clone(iso.Missing)
	return iso
}

package sandbox

// NetworkMode is the network that a process can reach.
type NetworkMode string

// The network modes. The zero value means NetworkNone in a Spec, "as the Spec says" in a Process.
const (
	NetworkNone      NetworkMode = "none"      // not even loopback
	NetworkLocalhost NetworkMode = "localhost" // a loopback of its own, nothing else
)

// ParseNetwork accepts the name of a network mode.
func ParseNetwork(s string) (NetworkMode, error) {
	switch m := NetworkMode(s); m {
	case NetworkNone, NetworkLocalhost:
		return m, nil
	}
	return "", Invalid("network", "unknown mode %q; use one of none, localhost", s)
}

// Package subid finds the subordinate ids that an ordinary user was granted, and maps them into a user
// namespace.
//
// Place in the flow. Backends ask for a Grant when they are not root (pkg/sandbox/internal/rootless); internal/linux/spawn calls
// Map for every new user namespace.
//
// Lifecycle. Lookup reads /etc/subuid and /etc/subgid once; a Grant holds nothing open.
//
// Concurrency. A Grant does not change.
//
// Limits. Ranges that come from a directory service (subid: sss in nsswitch.conf) are not found. Writing
// a map of ids other than the user's own needs a privilege that only the set-uid programs newuidmap and
// newgidmap have; without them Lookup fails and names the missing program.
package subid

// Package subid finds the subordinate ids that an ordinary user was granted, and maps them into a user
// namespace.
//
// Place in the flow. Backends ask for a Grant when they are not root (pkg/sandbox/internal/rootless); internal/linux/spawn calls
// its Map for every new user namespace.
//
// Lifecycle. Lookup reads /etc/subuid and /etc/subgid once; a Grant holds nothing open.
//
// Concurrency. A Grant does not change.
//
// Limits. Ranges that come from a directory service (subid: sss in nsswitch.conf) are not seen. Writing
// a map with more than one's own id takes a privilege that only the set-uid programs newuidmap and
// newgidmap lend; without them there is no Grant, and the error says so.
package subid

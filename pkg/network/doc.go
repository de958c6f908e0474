// Package network is the network policy of a sandbox: which hosts, addresses and ports its programs may reach.
//
// Place in the flow. Package sandbox has a Policy in its Spec; the command line and the HTTP API parse rules with this package; the
// process of the user-mode network stack (pkg/network/stack) asks it for every name and every connection. It imports nothing of
// ours, and sandbox-run links it.
//
// Lifecycle. A Policy is plain data, as JSON has it. Compile checks its rules and returns the Filter that decides.
//
// Concurrency. A Filter does not change; any number of goroutines may ask it.
//
// Limits. A policy has at most MaxRules rules. Names are compared in one canonical form (CanonicalName). A rule for a name never
// admits a private or special-purpose address: such an address needs a rule of its own.
package network

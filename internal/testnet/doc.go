// Package testnet is an internet for tests: real servers in a network namespace, and a second namespace in which a supervisor runs.
//
// Place in the flow. The attack suite and the tests of backends that have networks with rules run a command in it. The executable is the
// internet as well: Play runs the part of it that the command line asks for. Package netdev makes the devices.
//
// Lifecycle. Wrap makes of a command one that makes both namespaces, starts the servers, runs the command in the supervisor's
// namespace, and exits with its code. Everything ends with that command. Only the network namespace and /etc/resolv.conf of the command
// differ from those of the caller: it sees the cgroups and the other files.
//
// Concurrency. All functions may be called from any goroutine.
//
// Limits. No packet leaves the machine: the namespaces have no other device than the one between them. An ordinary user needs user
// namespaces; Wrap then maps the user's own id only.
package testnet

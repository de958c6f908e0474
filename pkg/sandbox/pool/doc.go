// Package pool keeps sandboxes ready before anybody has asked for them: a sandbox.Backend over another one.
//
// What. For each shape of sandbox that is in demand it has a few members: sandboxes of the backend below in which the processes of Spec.Ahead
// wait in their drivers (sandbox.Warm). Create hands one out, and Start sends the process that waits in it what it is to do. Where the
// backend below is a sandbox.Forker, processes that can be forked are forked from a zygote instead, into a sandbox that is kept ready.
//
//	Create(spec) ─► shape ─► member? ─ yes ─► handed out, once ─► Start ─► message ─► the program runs
//	                  │         └ no ─► Backend.Create below, as if there were no pool
//	                  └─► demand ─► keeper ─► refill: Create, Start, handshake, rest ─► member
//
// Place in the flow. Between a Manager and a backend; neither knows of it. What can be warmed, and how, is the executor's to say.
//
// Lifecycle. The keeper starts with the first shape and ends with Close, which discards every member and closes the backend below. A member is
// used once, by one tenant, and is never given back. Whatever is wrong with one (it died, it said something, it does not answer, it is
// old) costs the request that met it a cold start, and nothing else (W5). The owner of a member is the backend below, and so
// members die with the supervisor like every other sandbox (W6).
//
// Concurrency. A Pool may be used from any number of goroutines. Pool.mu guards shapes and members; no backend is called with it held.
// One keeper decides; a few refills run beside it.
//
// Limits. Of memory, of processor time and of the number of members (Options); shapes that are used least lose theirs first. A shape that was seen once has
// none. A sandbox with volumes is always made when it is asked for, since what the host has there may change. Where nothing can wait for a process
// (it has no driver, or a terminal), the sandbox alone is ready.
package pool

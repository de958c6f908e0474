// Package pool prepares sandboxes before a request needs them: a sandbox.Backend over another one.
//
// What. For each shape in demand it has a few pooled sandboxes: sandboxes of the backend below in which the processes of
// Spec.Ahead wait in their drivers (sandbox.Warm). Create hands one out, and Start sends the waiting process its message. Where the
// backend below is a sandbox.Forker, processes that can be forked are forked from a zygote instead, into a pooled sandbox.
//
//	Create(spec) ─► shape ─► pooled sandbox? ─ yes ─► handed out, once ─► Start ─► message ─► the program runs
//	                  │         └ no ─► Backend.Create below, as if there were no pool
//	                  └─► demand ─► refill loop ─► refill: Create, Start, handshake, rest ─► pooled sandbox
//
// Place in the flow. Between a Manager and a backend; neither knows of it. The executor says what can be started warm, and how.
//
// Lifecycle. The refill loop starts with the first shape and ends with Close, which destroys every pooled sandbox and closes the
// backend below. A pooled sandbox is used once, by one tenant, and never comes back. If one is dead, has printed something, does not
// answer or is old, the request that gets it starts cold, and nothing else fails (W5). The backend below owns the pooled sandboxes, so
// they end with the supervisor like every other sandbox (W6).
//
// Concurrency. A Pool may be used from any number of goroutines. Pool.mu guards shapes and pooled sandboxes; no backend is called with
// it held. One refill loop decides; a few refills run in parallel to it.
//
// Limits. Of memory, of CPU time and of the number of pooled sandboxes (Options); the least used shapes lose theirs first. A shape that
// was requested once has none. A sandbox with volumes is always made on request, because the host's files may change. For a process that
// can not wait (without a driver, or with a terminal), the sandbox alone is prepared.
package pool

// Package pool prepares sandboxes before a request needs them: a sandbox.Backend over another one.
//
// What. For each shape in demand it has a few pooled sandboxes: sandboxes of the backend below in which the processes of Spec.Ahead wait
// in their drivers (sandbox.Warm). Create hands one out, and Start sends the waiting process its message. Where the backend below is a
// sandbox.Forker, processes that can be forked are forked from a zygote instead, into a pooled sandbox.
//
//	Create(spec) ─► shape ─► pooled sandbox? ─ yes ─► handed out, once ─► Start ─► message ─► the program runs
//	                  │         └ no ─► Backend.Create below, as if there were no pool
//	                  └─► demand ─► refill loop ─► refill: Create, Start, handshake, rest ─► pooled sandbox
//
// Place in the flow. Between a Manager and a backend; neither knows of it. The executor says what can be started warm, and how.
//
// Lifecycle. The refill loop starts with the first shape and ends with Close, which destroys every pooled sandbox and closes the backend
// below. A pooled sandbox is used once, by one tenant, and never comes back. If one is dead, has printed something, does not answer or is
// old, the request that gets it starts cold, and nothing else fails (W5). The backend below owns the pooled sandboxes, so they end with
// the supervisor like every other sandbox (W6).
//
// Concurrency. A Pool may be used from any number of goroutines. Pool.mu guards shapes and pooled sandboxes; no backend is called with it
// held. One refill loop decides; a few refills run in parallel to it.
//
// Limits. Of memory, of CPU time and of the number of pooled sandboxes (Options); the least used shapes lose theirs first. A shape that
// was requested once has none. A sandbox with volumes is always made on request, because the host's files may change. For a process that
// can not wait (without a driver, with a terminal, in a directory that only the program makes), the sandbox alone is prepared.
//
// Shape. Everything of a spec and its processes except labels, the request's variables and arguments, and the limits that only the
// Manager enforces (wall time, CPU time, output); for forks, which get their pipes with the request, also except Process.MergeOutput.
// Files of the host count by inode, size and time, so an upgraded interpreter is another shape, and so is a layer of packages that was
// removed and installed again. Every second, and when a pooled sandbox was made, the pool looks at these files again, and forgets the shapes
// that have other ones. It holds no lease of a layer, so pooled sandboxes keep none from being removed. A pooled sandbox is made without
// any data of a request (W1).
//
// Message. The command as a cold start would have it: arguments, environment, directory. It counts as delivered when the pipe is empty
// again (FIONREAD). Before that no foreign code has run: a process that does not read the message is killed, and its request starts cold
// in the same sandbox. After that the process is never started a second time. CPU time, I/O, refused calls and wall time before the
// message are subtracted from the result.
//
// Number. As many as are used while one is made, plus twice the square root of that. One for ten minutes after the last request. Always
// one for shapes that are named at the start (Pool.Warm, Executor.PrestartSpecs).
//
// Refills. Options.Parallel at a time, one while Options.Busy. They wait, for 100 ms at most, while half of the cores or more have
// programs that began less than 100 ms ago. After a failure they pause, twice as long each time. Their processes have the ordinary
// priority: raising a lowered one costs time.
//
// Health. Alive, silent, younger than ten minutes; checked every second, and again when a sandbox is handed out.
//
// Zygotes. Where the backend below forks, the fork is made with the pooled sandbox and waits in it. Zygotes are replaced by age and by
// number of forks; with Options.PerTenant each tenant has its own (W7).
package pool

// Package session keeps interpreters alive between pieces of code.
//
// What. A [Session] is a sandbox that lives, and executes cells one after the other. In most languages a driver (pkg/executor/lang/…/session)
// keeps the state of the interpreter; in Go and Rust each cell is compiled, with the declarations of the cells before it. Limits, verdict,
// metrics, violations and isolation are those of a cell, measured by the supervisor.
//
//	Create ─► starting ─► idle ◄──────► busy          Execute; cells wait in order
//	                       │              │
//	                       └──────┬───────┘
//	                     driver ended ─► ended ─ Restart, Reset ─► idle
//	 any state ─ Close, idle time, lifetime ─► closed
//
// Place in the flow. Between entry points (HTTP API, command line, agents) and the executor, whose Session makes the sandbox and starts the
// driver. The protocol with the driver is in pkg/session/protocol.
//
// Lifecycle. A [Manager] owns its sessions: Close ends all of them. A session ends after its idle time or its lifetime. A driver that ends,
// breaks the protocol or does not answer ends its interpreter; the session remains, with the cause, until it is restarted or closed.
//
// Concurrency. Every method may be called at any time from any goroutine. Session.turn orders cells and questions; Session.mu guards the
// fields below it and is not held during calls of a driver or of the executor. Manager.mu is taken before no other lock.
//
// Limits. The number of sessions, of sessions of an owner, and of cells that wait ([Options]); bounds of the protocol. What a driver writes is
// data of foreign code: it changes what its own session shows, and nothing else. The time in which a cell waits for an answer is no part of its
// wall time, but what its processes compute meanwhile is; the idle time of the session bounds the wait. Threads and processes of a cell may
// continue between cells: their CPU quota, memory and number stay bounded, no CPU time limit does, and the session's idle time and lifetime end
// them. Their output and frames are then read slowly.
package session

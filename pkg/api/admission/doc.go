// Package admission decides when a run may start, so that a busy machine is shared fairly between keys.
//
// What. A [Queue] knows how much memory and how many processors the machine can promise, and how much it has promised to running runs. A
// run enters when its own promise fits, in an order that is fair between keys; until then it waits and learns its position. A run that may
// not wait is refused with a Retry-After: 429 if its key has used up its own share, 503 if the machine is full.
//
// Place in the flow. pkg/api calls it before it runs a program; no package below knows of it.
//
//	            rate of the key ── 429
//	Enter ────► fits, and is first in line ────────────────────► run ──► leave
//	              │ no                                            ▲         │ next
//	              ▼                                               │         │
//	            places: of the key ── 429, of all ── 503          │         │
//	              │                                               │         │
//	              ▼                                               │         │
//	            key a: 1 2 3 4 5 ─┐  the key that has used        │         │
//	            key b: 1          ├─ the least, its oldest first ─┴─────────┘
//	            key c: 1 2        ┘
//
// A key's use is the larger of its shares of memory and processors, times the seconds for which it had them (dominant share). A key that
// returns starts at the use of the others: unused shares are not saved up. A key's excess is bounded by [Window]. Smaller runs may overtake
// a run that does not fit, but only [Options.Overtake] times; then all others wait for it. If the queue is full, the key with the most
// places gives up its newest one to a key with fewer.
//
// Lifecycle. New makes a queue, which needs no closing. Drain refuses all waiting and new runs, except accepted ones.
//
// Concurrency. All methods may be called from any number of goroutines. One lock guards all fields; it is never held during a callback.
//
// Limits. The queue counts the limits of runs, not their real use; the caller that measures memory calls Hold, and Keep for memory
// that is in use without a run, such as that of idle sessions. A run that needs more than
// the whole budget enters when no other is running. Idle keys are forgotten.
package admission

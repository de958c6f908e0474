// Package admission decides when a run may start: there is more work than the machine can do, and everybody gets a share.
//
// What. A [Queue] knows what the machine can promise (memory, processors) and what it has promised to runs that are under way. A run enters when its own
// promise fits, in an order that is fair between keys; until then it waits, and is told where it stands. Whoever can not wait is refused, with the time
// after which another try is worth it: 429 if it was the key's own share that was used up, 503 if it was the machine's.
//
// Place in the flow. The HTTP API asks before it runs anything; nothing below knows of it.
//
//	            rate of the key ── 429
//	Enter ────► fits, nobody is before it ─────────────────────► run ──► leave
//	              │ no                                            ▲         │ next
//	              ▼                                               │         │
//	            places: of the key ── 429, of all ── 503          │         │
//	              │                                               │         │
//	              ▼                                               │         │
//	            key a: 1 2 3 4 5 ─┐  the key that has used        │         │
//	            key b: 1          ├─ the least, its oldest first ─┴─────────┘
//	            key c: 1 2        ┘
//
// A key's use is the larger of its shares of memory and processors, times the seconds it held them (dominant share). A key that comes back starts
// where the others are: nobody saves up. Nor is anybody punished for long: what a key is behind the others is bounded by [Window]. A run that is too large for what is free
// is overtaken by smaller ones, but only so often ([Options.Overtake]), then everybody waits for it.
// If the queue is full, the key that has the most in it gives up its newest place to one that has fewer.
//
// Lifecycle. New makes a queue; it has nothing that must be closed. Drain refuses all who wait and all who come, but for runs that were promised to be run.
//
// Concurrency. Everything may be called from any number of goroutines. One lock guards all; it is never held while somebody else's code is called.
//
// Limits. It promises what runs ask for, and looks at nothing that they really use: whoever does calls Hold. A run that asks for more than the whole budget
// enters when it is alone. Keys that nobody uses are forgotten.
package admission

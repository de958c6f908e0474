// Package webhook tells others that a run has finished, by a signed HTTP request to an address that they gave.
//
// What. A [Sender] takes a [Delivery], keeps it on disk, and posts it until the receiver says 2xx, says 410, or patience is
// over. Requests are signed as the Standard Webhooks specification has it, so that its libraries verify them; [Verify] does, too.
//
// Place in the flow. The server accepts a [Hook] with a run ([Sender.Check]) and hands over the result when there is one
// ([Sender.Send]); the address is whatever a client wrote, so it is foreign input, like code.
//
//	Check ──► accepted           url, secret: syntax, and what can be seen without asking anybody
//	Send  ──► DIR/ID.json        returns when that is on disk
//	            │ due
//	            ▼
//	          resolve ──► each address, when it is dialled: public? else refused (N4)
//	            │
//	            ▼
//	          POST ──► 2xx, 410: file removed      otherwise: later, up to Attempts
//
// Lifecycle. New reads what an earlier process left and goes on with it; Close ends what is being sent and keeps the rest. A delivery may
// arrive twice (the receiver answered, and we died before we wrote it down), with the same webhook-id.
//
// Concurrency. A Sender may be used by any number of goroutines; few requests are made at a time, fewer still to one host. Its lock is
// held for reading and writing the table only, never while something is sent.
//
// Limits. Plain http, private, loopback and link-local addresses, and this machine's own, are refused unless the operator names them.
// No redirect is followed, no proxy used, and nothing of the answer read but its status and a few bytes.
package webhook

// Package webhook reports a finished run by a signed HTTP request to a URL that the client gave.
//
// What. A [Sender] takes a [Delivery], keeps it on disk, and posts it until the receiver answers 2xx or 410, or the attempts are used up.
// Requests are signed by the Standard Webhooks specification, so that its libraries verify them; [Verify] does, too.
//
// Place in the flow. The server accepts a [wire.Webhook] with a run ([Sender.Check]) and passes the result when the run has ended
// ([Sender.Send]). The URL comes from a client and is untrusted.
//
//	Check ──► accepted           url, secret: syntax, and checks that need no resolver
//	Send  ──► DIR/ID.json        returns when the delivery is on disk
//	            │ due
//	            ▼
//	          resolve ──► each address, when it is dialled: public? else refused
//	            │
//	            ▼
//	          POST ──► 2xx, 410: files removed     otherwise: retried, up to Attempts
//
// Lifecycle. New continues with the deliveries that an earlier process left; Close ends requests under way and keeps their deliveries. A
// delivery may arrive twice with the same webhook-id: the receiver answered, and the server died before it recorded that.
//
// Concurrency. Any number of goroutines may use a Sender. It makes few requests at a time, and fewer to one host. Its lock guards the table
// and is never held during a request.
//
// Limits. Plain http, private, loopback and link-local addresses, and those of this machine, are refused unless the operator allows them.
// The sender follows no redirect, uses no proxy, and reads only the status and a few bytes of an answer.
package webhook

// Package receipt makes and checks signed statements of what a server ran: this request had this result, behind these walls, at
// this time.
//
// What. A Statement says it, by digests where the thing itself is long or nobody's business. A Signer, whose key is one server's,
// makes an envelope of it; Verify opens an envelope with a public key that its reader got elsewhere. The envelope is DSSE's, so that
// other tools can check it, too: what is signed are the payload's very bytes, and white space around them does not matter.
//
//	{"payloadType":"application/vnd.sandbox-run.receipt.v1+json",
//	 "payload":"<base64 of the statement>",
//	 "signatures":[{"keyid":"<of the server's key>","sig":"<base64 of Ed25519 over DSSE's encoding of type and payload>"}]}
//
// Place in the flow. pkg/api signs what a request with "receipt": true has come to; `sandbox-run receipt verify` and library users
// check. It knows results only as the JSON that users have, so that both sides digest the same thing.
//
// Lifecycle. OpenSigner makes the key of a directory once and reads it from then on; there is nothing to close.
//
// Concurrency. All of it may be used by many goroutines, and one directory by many processes.
//
// Limits. A receipt proves that who has the server's key said so, not that it is true. The digest of a result is of canonical JSON
// (Canonical): names sorted, no white space, numbers as they were written; a tool that writes numbers in another way makes another
// document of it. The digest of a request is of the bytes that were sent. Of output that was cut, what was kept is signed.
package receipt

// Package receipt makes and checks signed statements of a server's runs: this request had this result, with this isolation, at this
// time.
//
// What. A Statement describes a run; long or private parts appear as digests. A Signer, which has the server's key, makes an envelope
// of it. Verify opens an envelope with a public key that its reader got from elsewhere. The envelope has the DSSE format, so that
// other tools can check it: the signature covers the exact bytes of the payload, and white space around them does not matter.
//
//	{"payloadType":"application/vnd.sandbox-run.receipt.v1+json",
//	 "payload":"<base64 of the statement>",
//	 "signatures":[{"keyid":"<of the server's key>","sig":"<base64 of Ed25519 over DSSE's encoding of type and payload>"}]}
//
// Place in the flow. pkg/api signs the results of requests with "receipt": true; `sandbox-run receipt verify` and users of the library
// verify them. The package knows results only as the JSON that users have, so that both sides digest the same bytes.
//
// Lifecycle. OpenSigner makes the key of a directory once and reads it afterwards; a Signer needs no closing.
//
// Concurrency. All functions are safe for concurrent use, and many processes may use one directory.
//
// Limits. A receipt proves that the owner of the server's key made the statement, not that the statement is true. The digest of a
// result covers canonical JSON (Canonical): names sorted, no white space, numbers as they were written; a tool that writes numbers in
// another way gets another digest. The digest of a request covers the bytes that were sent. Of truncated output, the kept part is signed.
package receipt

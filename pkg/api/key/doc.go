// Package key keeps the API keys of a server: who may come in, what for, until when and how often.
//
// What. A key is a random secret with a name, scopes, an end and limits. The secret is shown once, when the key is made; only its SHA-256
// is kept:
//
//	sbx_ufp4k7m2xq_7v…(52 letters)…q5hk2za        what a client sends
//	    └ id       └ secret, 256 bits  └ checksum of all before it
//
//	keys.json        the keys; replaced as a whole, never changed in place
//	keys.json.lock   locked by the process that changes them
//	keys.json.used   when each was last used; a convenience, and not precious
//
// A plain SHA-256 is enough, where a password would need a slow hash: a secret of 256 random bits is in no dictionary, and a slow hash
// would make it easy to keep the server busy. The checksum lets a mistyped key, and a scanner that looks for keys in places they do not
// belong to, be recognised without a server; it says nothing about which keys there are.
//
// Place in the flow. `sandbox-run key` changes a Store; a server looks keys up in a Ring. It imports the types of pkg/sandbox,
// internal/userdir and pkg/api/internal/interval. sandbox-rund links it.
//
// Lifecycle. A Store is a path and needs no closing. A Ring is closed, which writes down what was used.
//
// Concurrency. Everything may be used by many goroutines, and a Store's file by many processes: changes take the lock and end in a
// rename, so that a reader sees the keys before or after a change, and a power cut leaves one of both. A Ring looks whether the file is
// still the same each time it is asked, so that a key which was removed is refused from then on.
//
// Limits. A few thousand keys: the file is read and written as a whole. Linux and macOS.
package key

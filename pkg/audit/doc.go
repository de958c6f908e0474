// Package audit is the user's own record of what was run: one line per run, in order, chained by
// hashes, so that a change made afterwards shows.
//
// What. Append writes an Entry; Tail and Query read them; Verify walks the whole chain and names every
// place where it does not hold.
//
//	audit.jsonl.00000000000000070211   older entries, moved aside by size; the number is their last seq
//	audit.jsonl                        {"seq":70212,…,"prev":"<hash of 70211>","hash":"<of all before it>"}
//	audit.jsonl.head                   seq and hash of the newest entry; also the lock
//
// Place in the flow. pkg/executor appends after each run, whichever door asked for it; the command
// `sandbox-run audit` reads. Nothing below knows of it.
//
// Lifecycle. Nothing stays open between two calls, so a Log needs no closing, a directory that is
// removed and made again is found again, and rotation by another process goes unnoticed. An entry is
// one write at the end of the file, then one to the head. A writer that is killed in between leaves
// the head one entry behind, or a torn line: the next one finds either, goes on with the chain, and
// says so in an entry of kind "repaired". Nothing that was ever written is removed again, except by an Append
// that fails, which takes its own bytes back, and by Prune, which removes whole files from the beginning and has said so before.
//
// Concurrency. Any number of goroutines and processes may append to one log: a lock (flock of the
// head) lets one in at a time, waited for no longer than Options.Wait. Readers take the lock only
// while they open the files, then read what was there at that moment.
//
// Limits. The chain proves order and content to somebody who kept a later hash; it does not keep the
// log from its owner. Who has the user's rights can write the whole log and its head anew, or delete
// both, and no program with the same rights can tell. What shows is everything less than that: see
// Verify. To hold against the user as well, keep the hash that Verify prints where he can not write.
// Without Options.Sync a power cut can cost the newest entries; Verify reports them as truncated.
package audit

// Package audit keeps the user's record of runs: one line per run, in order, chained by hashes, so that a later change of an
// entry is detected.
//
// What. Append writes an Entry. Tail and Query read entries. Verify walks the whole chain and reports every place where it is
// broken.
//
//	audit.jsonl.00000000000000070211   older entries, rotated by size; the number is their last seq
//	audit.jsonl                        {"seq":70212,…,"prev":"<hash of 70211>","hash":"<of all before it>"}
//	audit.jsonl.head                   seq and hash of the newest entry; also the lock
//
// Place in the flow. pkg/executor appends after each run of every entry point; the command `sandbox-run audit` reads. No
// package below them knows of the log.
//
// Lifecycle. A Log opens its files per call, so it needs no closing, finds a directory again that is removed and made anew, and
// does not notice a rotation by another process. An entry is one write at the end of the file, then one to the head. A writer
// that is killed in between leaves the head one entry behind, or a torn line. The next writer finds either, continues the chain,
// and reports it in an entry of kind "repaired". Written entries are removed only by Prune, which removes whole files from the
// beginning and first records that in the log. An Append that fails removes its own bytes.
//
// Concurrency. Any number of goroutines and processes may append to one log: a lock (flock of the head) admits one at a time.
// Append waits at most Options.Wait for it. Readers take the lock only while they open the files, then read the content as of
// that moment.
//
// Limits. The chain proves order and content to a reader who kept a later hash; it does not protect the log from its owner. A
// process with the user's rights can write the whole log and its head anew, or delete both, and no program with the same rights
// can detect that. Verify detects every smaller change. To protect the log against its owner, keep the hash that Verify prints
// where the owner can not write. Without Options.Sync a power cut can lose the newest entries; Verify reports them as truncated.
package audit

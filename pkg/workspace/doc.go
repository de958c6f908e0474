// Package workspace keeps directories that survive between runs, one per name.
//
// What. A workspace is a directory that sandboxes see, writable, as /workspace. It has a cap on bytes and files,
// and one user at a time.
//
//	workspaces/NAME/         what the sandboxed program sees, and alone may write to while it runs
//	workspaces/.NAME.json    its cap, when it was made and last used
//	workspaces/.NAME.lock    locked while it is in use, with the pid of who does
//
// Place in the flow. pkg/executor opens a workspace for a run and hands its Volume to the sandbox; the command
// `sandbox-run workspace` lists, shows and removes. It stands on pkg/sandbox for its types and on internal/linux
// for removal.
//
// Lifecycle. Open makes it on first use and takes the lock; Close gives the lock back, as does the end of the process, however
// that comes. Remove takes it away for good. What is in it belongs to whoever ran there last: no file of it is trusted.
//
// Concurrency. A Workspace may be used by many goroutines: Watch runs beside everything else. Two openings of one
// name exclude each other, within a process as well.
//
// Limits. The cap is polled, not enforced by the kernel: a program that writes quickly is past it until the next look, 250 ms
// later or more where a look takes long; and what it has deleted and still holds open is not seen before it ends. Links are never
// followed, neither depth nor number of what hostile code has planted costs memory or descriptors beyond a bound
// (F14), and files are brought in beneath the directory itself (F8). Linux only.
package workspace

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
// for removal and for the floor of free space.
//
// Lifecycle. Open makes it on first use and takes the lock; Close gives the lock back, as does the end of the process, however
// that comes. Remove takes it away for good. What is in it belongs to whoever ran there last: no file of it is trusted.
//
// Concurrency. A Workspace may be used by many goroutines: Watch runs beside everything else. Two openings of one
// name exclude each other, within a process as well.
//
// The cap is polled, and results say so (isolation.missing). Watch looks every 250 ms, or less often where a look takes
// long, and at once when the file system has lost more space than was left below the cap, which it asks for every 10 ms.
// The sandbox keeps a program from being quicker than that ([sandbox.Volume.Cap]): no file is larger than the cap, and
// space can not be taken ahead of writing. What a program has deleted and still holds open is not seen; so that it can not
// fill the host's disk, a run also ends at the floor of free space.
//
// A file system of its own per workspace would have a hard cap, and was decided against: the directory is public. Its files
// are there for editors, backups and `workspace show` between runs, which a mount is not without leaving something mounted
// behind; and a server of systemd has a mount namespace of its own (ProtectSystem), so that the host would not see the
// mount even during one. Project quotas would be the kernel's way to cap a directory, where the host's file system has
// them.
//
// Limits. Links are never
// followed, neither depth nor number of what hostile code has planted costs memory or descriptors beyond a bound
// (F14), and files are brought in beneath the directory itself (F8). Linux only.
package workspace

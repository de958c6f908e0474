// Package workspace keeps directories that survive between runs, one per name.
//
// What. A workspace is a directory that sandboxes see, writable, as /workspace. It has a cap on bytes and files, and one user at a time.
//
//	workspaces/NAME/         what the sandboxed program sees, and alone may write to while it runs
//	workspaces/.NAME.json    its cap, its project id, when it was made and last used
//	workspaces/.NAME.lock    locked while it is in use, with the pid of who does
//
// Place in the flow. pkg/executor opens a workspace for a run and hands its Volume to the sandbox; the command `sandbox-run workspace`
// lists, shows and removes. It stands on pkg/sandbox for its types and on internal/linux for quotas, for removal and for the floor of
// free space.
//
// Lifecycle. Open makes it on first use and takes the lock; Close gives the lock back, as does the end of the process, however that
// comes. Remove takes it away for good. Its files are those of the last program that ran there: none of them is trusted.
//
// Concurrency. A Workspace may be used by many goroutines: Watch runs beside everything else. Two openings of one name exclude each
// other, within a process as well.
//
// The cap is enforced by the kernel where the store's file system enforces project quotas (ext4 mounted with prjquota, XFS with pquota)
// and the process may set them (root in the initial user namespace). Open gives the directory and all files in it a project id of their
// own, sets the limits of that id to the cap, and reads both back. What is made in the directory inherits the id. A program can not
// change it: the filter refuses the ioctls, and so does the kernel in a user namespace. A store that is in a project already stays in it,
// and its caps are polled: the limit of that project is not ours to leave. Remove drops the limits.
//
// Elsewhere the cap is polled, and results say so, with the reason (isolation.missing). Watch looks every 250 ms, or less often where a
// look takes long, and at once when the file system has lost more space than was left below the cap, which it asks for every 10 ms. The
// sandbox keeps a program from being quicker than that ([sandbox.Volume.Cap]): no file is larger than the cap, and space can not be taken
// ahead of writing. What a program has deleted and still holds open is not seen. With either kind of cap a run also ends at the floor of
// free space of the host's disk.
//
// Limits. Links are never followed, neither depth nor number of what hostile code has planted costs memory or descriptors beyond a bound
// (F14), and files are brought in beneath the directory itself (F8). Linux only.
package workspace

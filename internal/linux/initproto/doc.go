// Package initproto is the messages between a supervisor and the init of a sandbox.
//
// Place in the flow. The supervisor (internal/linux/spawn) and the init (internal/linux/initproc) both import it; it imports nothing of
// ours and does no I/O.
//
// Lifecycle. One stream socket per init, length-prefixed frames, descriptors beside the first byte of the frame that names them:
//
//	host → setup{root, mounts, …}            once, with the descriptors of the mounts
//	init → ready{}                           with a descriptor of the scratch for the next phase
//	host → exec{id, argv, env, policy}       any number of times, with stdio and cgroup descriptors
//	init → listener{id}                      with the filter's listener, from the program's process, which is held until it is measured
//	init → started{id, pid, at}              with the terminal's master, if one was asked for and exec names no terminal relay
//	host → expect{id, policy}                in place of an exec: a zygote forks the program into this sandbox
//	init → expected{id}                      with what only the init could make
//	host → adopt{id, pid}                    the program is there, as the init's child
//	host → signal{id or everyone, number}
//	init → exited{id, status, at}            the last one is followed by the init's own exit
//	init → failed{id, stage, errno, detail}  instead of ready or started
//	(host closes)                            the init exits, and the kernel kills all the rest
//
// An init exchanges the same messages with a terminal relay (initproc), from exec on, and passes the answers on.
//
// A frame is a length (u32, little endian), the number of descriptors (u8), the kind (u8) and the fields: varints and length-prefixed
// bytes. The codec is by hand: the init decodes a few messages in its life, and reflection would cost it more than the root does.
//
// Concurrency. Values are plain data; encode and decode are pure.
//
// Limits. A frame has at most [MaxFrame] bytes and [MaxDescriptors] descriptors. The decoder checks every length against what is left;
// everything malformed is one error. Setup carries a version, so that an init of another build fails at once.
//
// A failure names its [Stage], and the user sees it: `mount /usr/share/x: read-only file system (stage volumes)`. A failure in exec is
// the program's (exit code 126 or 127), one in workdir the request's (2), all others are ours (125).
package initproto

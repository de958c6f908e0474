// Package initproto is the messages between a supervisor and the init of a sandbox.
//
// Place in the flow. The supervisor (internal/linux/spawn) and the init (internal/linux/initproc)
// both import it; it imports nothing of ours and does no I/O.
//
// Lifecycle. One stream socket per init, length-prefixed frames, descriptors beside the first
// byte of the frame that names them:
//
//	host → setup{root, mounts, …}            once, with the descriptors of the mounts
//	init → ready{}                           with a descriptor of the scratch for the next phase
//	host → exec{id, argv, env, policy}       any number of times, with stdio and cgroup descriptors
//	init → started{id, pid, at}              with the terminal's master, if one was asked for and exec names no terminal relay
//	host → expect{id, policy}                in place of an exec: a zygote forks the program into this sandbox
//	init → expected{id}                      with what only the init could make
//	host → adopt{id, pid}                    the program is there, as the init's child
//	host → signal{id or everyone, number}
//	init → exited{id, status, at}            the last one is followed by the init's own exit
//	init → failed{id, stage, errno, detail}  instead of ready or started
//	(host closes)                            the init exits, and the kernel kills all the rest
//
// An init speaks the same with a terminal relay (initproc), from exec on, and hands on the answers.
//
// Concurrency. Values are plain data; encode and decode are pure.
//
// Limits. A frame is at most MaxFrame bytes. A decoder never trusts a length it has not checked
// against what is left; everything malformed is one error.
package initproto

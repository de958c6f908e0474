// Package wire is what the docker backend and its helper say to each other over the one stream that a container
// has: its attached standard input and output.
//
// What. Frames of a kind, a number and a body, and on top of them any number of byte streams, each with a window of
// its own: a reader that is slow holds up its own stream and nothing else.
//
//	frame  = kind (1 byte) number (4, little-endian) length (4) body (length)
//	number = of a request, by whoever makes it; of a stream: request × 4 + 0 (input), 1 (output), 2 (error output)
//
//	backend                                    helper (first process of the container)
//	───────                                    ──────
//	setup{version, ids, heartbeat}       ──►
//	                                     ◄──   ready{what it finds itself in}
//	exec{phase, policy, initproto.Exec}  ──►
//	                                     ◄──   started | failed{stage, errno}
//	data ⇄ data, credit ⇄ credit, close, stop      of streams 0, 1, 2
//	signal, resize, kill                 ──►
//	                                     ◄──   refusal{call}            when a kind of call is first refused
//	                                     ◄──   exited{status, took}
//	finish                               ──►                            ends what the program left running
//	                                     ◄──   finished{counters, refusals}
//	sample                               ──►
//	                                     ◄──   sampled{counters}
//	create{mode, path} data… close       ──►
//	open{path}, list{path}, remove{path} ──►
//	                                     ◄──   opened{mode, size} data… | entries… | done{errno}
//	look                                 ──►                            when limits were changed
//	                                     ◄──   ready
//	beat                                 ──►                            every few seconds, if setup says so
//	end of the stream                    ──►                            the supervisor is gone: so is the container
//
// Place in the flow. Imported by both ends: pkg/sandbox/docker on any system, pkg/sandbox/docker/helper on Linux.
//
// Lifecycle. A [Conn] serves until its reader ends or says something that is no frame; then every stream of it fails.
//
// Concurrency. A Conn may be used from any goroutine. Handlers run on the goroutine that serves, and must not block.
//
// Limits. A frame's body has at most [MaxBody] bytes, data at most [MaxData], a stream at most [Window] bytes under way.
// Whoever sends more is cut off. The program in the container has no way to the stream: its descriptors are its own, and
// the helper is another user's process.
package wire

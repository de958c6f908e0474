// Package containerproto is the protocol between the docker backend and its helper over the one stream that a container
// has: its attached standard input and output.
//
// What. Frames of a kind, a number and a body, and on top of them any number of byte streams, each with a window of
// its own: a slow reader delays its own stream and no other.
//
//	frame  = kind (1 byte) number (4, little-endian) length (4) body (length)
//	number = of a request, chosen by its sender; of a stream: request × 4 + 0 (input), 1 (output)
//	output = pieces of stdout and stderr in their order: length × 2 + 0 (stdout), 1 (stderr) (4), bytes (length)
//
//	backend                                    helper (first process of the container)
//	───────                                    ──────
//	setup{version, ids, heartbeat}       ──►
//	                                     ◄──   ready{what it measures}
//	exec{phase, policy, initproto.Exec}  ──►
//	                                     ◄──   started | failed{stage, errno}
//	data ⇄ data, credit ⇄ credit, close, stop      of streams 0, 1
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
//	measure                              ──►                            when limits were changed
//	                                     ◄──   ready
//	beat                                 ──►                            every few seconds, if setup says so
//	end of the stream                    ──►                            the supervisor has ended: the container ends
//
// Place in the flow. Imported by both ends: pkg/sandbox/docker on any system, pkg/sandbox/docker/helper on Linux.
//
// Lifecycle. A [Conn] serves until its reader ends or sends a malformed frame; then every stream of it fails.
//
// Concurrency. A Conn may be used from any goroutine. Handlers run on the goroutine that serves, and must not block.
//
// Limits. A frame's body has at most [MaxBody] bytes, data at most [MaxData], a stream at most [Window] unacknowledged bytes.
// A peer that sends more is disconnected. The program in the container can not reach the stream: it has other descriptors, and
// the helper is a process of another user.
package containerproto

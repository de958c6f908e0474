// Package stack is the user-mode network of a sandbox: it takes the packets of a device in the sandbox's network namespace, decides
// with a network.Filter, and connects allowed flows to sockets of the host.
//
// Place in the flow. The executable sandbox-net runs one Stack for one phase of a sandbox; the backend starts it only if the
// phase has a network (pkg/sandbox/internal/netproc).
//
//	program ─► kernel's sockets ─► device ─► TCP/IP of gVisor ─► flow ─► Filter ─► inspection ─► socket of the host
//	                                  │                            ▲
//	                                  └─ DNS to the gateway ─► resolver: a name gets an address that stands for it
//
// Lifecycle. New builds the stack on a device, Serve runs until the device is gone or the context ends, Report tells at any time
// what was refused and how much went where.
//
// Concurrency. A goroutine for each direction of a flow; a flow's buffers are taken only while there is data to copy.
//
// Limits. Names reach only what a name rule allows, and never a private address (network.Filter). On ports 443 and 8443 the TLS
// server name, on 80 and 8080 the Host of every request must be the name of the connection; other ports are not inspected, and the
// Host inside TLS is not seen. The number of flows, of names, of remembered refusals and of destinations is bounded.
package stack

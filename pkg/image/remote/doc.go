// Package remote fetches container images from registries.
//
// What. Pull brings an image by tag or digest into a store, Update looks whether tags that were pulled have moved. Any registry that
// speaks the OCI distribution protocol will do, and no daemon is needed. Names, the handshake and the types are those of
// go-containerregistry; downloading is our own, because a download that was cut has to go on where it ended.
//
// Place in the flow. The store (pkg/image) has one way in, Store.Add; this package gives it a manifest, a configuration and, for each
// layer, a reader that can begin in the middle. The store keeps the part of a layer that has arrived, checks digests and unpacks. It is
// linked by sandbox-rund only: the libraries beneath are heavy.
//
//	Pull ─► parseReference ─► credentials ─► login ─► resolve: index ─► manifest ─► configuration
//	                                                                                      │
//	     Progress ◄── reporter ◄── layer: Range, pauses ◄── Layer.Open(offset), Layer.Retry ◄── Store.Add
//	                                  │
//	                                egress ─► network
//
// Lifecycle. Everything lives within one call. Connections are closed when it returns. What stays is in the store: the image, the parts
// of layers that have arrived, and a note of which names were pulled.
//
// Concurrency. Pull and Update may be called at the same time, by any number of goroutines and processes; two that want the same layer
// are kept apart by the store. Options.Progress is called by one goroutine at a time, though Update resolves several images at once. A
// cancelled context ends a call soon; what has arrived is kept.
//
// Limits. A registry is not trusted: it can not make us speak plain HTTP to anything but this machine, nor to addresses further inside
// than itself; it is never given credentials meant for another, manifests and configurations have 4 MiB, an answer has to make progress
// (Options.Stall), and attempts are counted. Foreign layers, images of schema 1, digests other than SHA-256 and what is not an image are
// refused. Mirrors are named in the reference, like any other registry.
//
// Egress check. It is the transport at the bottom, below redirects, addresses of token servers and the library's fallback to http://. It
// checks the dialled address. HTTPS goes anywhere for the registry that the user named, and otherwise to addresses not further inside
// than the registry's (public, private, loopback; link-local never). HTTP goes to loopback, if requested. Answers are never decompressed,
// so a compressed manifest is refused. Challenges (WWW-Authenticate) after the first answer are hidden: one caller replaces an expired
// token for all layers, where the library would do so in each, without synchronisation.
//
// Names. A pull leaves a note in the store's directory `pulled`: name, image, digest, platform. Update asks only for names whose note
// still matches the image of that name. Otherwise it would ask Docker Hub for names that were made on this machine.
package remote

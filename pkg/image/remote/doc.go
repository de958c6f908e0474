// Package remote fetches container images from registries.
//
// What. Pull fetches an image by tag or digest into a store. Update checks whether pulled tags name other images by now, and fetches
// those. Any registry that speaks the OCI distribution protocol works; no daemon is needed. Names, login and types are those of
// go-containerregistry. The download is code of this package, because an interrupted download has to continue where it ended.
//
// Place in the flow. Store.Add of pkg/image receives a manifest, a configuration and, for each layer, a reader that can start at any
// offset. The store keeps the part of a layer that has arrived, checks digests and unpacks. Only sandbox-rund links this package, because
// its libraries are large.
//
//	Pull ─► parseReference ─► credentials ─► login ─► resolve: index ─► manifest ─► configuration
//	                                                                                      │
//	     Progress ◄── reporter ◄── layer: Range, waits ◄── Layer.Open(offset), Layer.Retry ◄── Store.Add
//	                                  │
//	                                egress ─► network
//
// Lifecycle. A call closes its connections when it returns. The store keeps the image, the parts of layers that have arrived, and a
// record of each pulled name.
//
// Concurrency. Any number of goroutines and processes may call Pull and Update at the same time; the store downloads a layer once. One
// goroutine at a time calls Options.Progress, though Update resolves several images at once. A cancelled context ends a call soon; the
// store keeps the parts that have arrived.
//
// Limits. A registry is not trusted. It can not direct requests to plain HTTP on another machine, nor to addresses further inside than
// its own. It receives no credentials of another registry. Manifests and configurations have at most 4 MiB, an answer has to make
// progress (Options.Stall), and attempts are counted. Foreign layers, images of schema 1, digests other than SHA-256 and artifacts that
// are not images are refused. A mirror is named in the reference, as any other registry.
//
// Egress check. It is the lowest transport, below redirects, addresses of token servers and the library's fallback to http://. It checks
// the dialled address. HTTPS to the registry that the user named may use any address. HTTPS to another host may use addresses that are
// not further inside than the registry's (public, private, loopback; link-local never). HTTP may use loopback addresses, if requested.
// The transport never decompresses answers, and a compressed manifest is refused. It removes challenges (WWW-Authenticate) after the
// first answer: one caller replaces an expired token for all layers, where the library would do so in each, without synchronisation.
//
// Names. A pull writes a record into the store's directory `pulled`: name, image, digest, platform. Update requests only names whose
// record still matches the image of that name. Otherwise it would ask Docker Hub for names that were made on this machine.
package remote

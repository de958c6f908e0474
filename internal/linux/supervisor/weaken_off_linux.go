//go:build !weaken

package supervisor

// weakenIDs gives all sandboxes the same host ids, in builds with the tag weaken (package weaken).
const weakenIDs = false

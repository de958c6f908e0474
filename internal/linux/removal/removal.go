// Package removal removes directory trees of a hostile program.
//
// Place in the flow. Backends that keep directories on the host use it in place of os.RemoveAll.
//
// Lifecycle. One call per tree; nothing is kept.
//
// Concurrency. Calls for different trees are independent. The caller has ended all processes that could write to the tree.
//
// Limits. No symbolic link is followed. Depth costs nothing: a directory is moved to the top before
// it is read, so neither the stack nor the descriptors grow with it (F14). The context bounds the time; an incomplete
// removal is an error, and a later call continues it.
package removal

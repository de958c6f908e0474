// Package removal removes directory trees that a hostile program has made.
//
// Place in the flow. Backends that keep directories on the host use it in place of os.RemoveAll.
//
// Lifecycle. One call per tree; nothing is kept.
//
// Concurrency. Calls for different trees are independent. Nobody may write to the tree any more:
// its processes are dead.
//
// Limits. No symbolic link is followed. Depth costs nothing: a directory is moved to the top before
// it is looked into, so neither the stack nor the descriptors grow with it (F14). Time is bounded by
// the context; what is left then is an error, and a later call goes on.
package removal

//go:build linux && (amd64 || arm64) && !race

package clone

import _ "unsafe" // for go:linkname

// A thread that sleeps in vfork, a millisecond or two, is no use for goroutines: between these two the
// runtime has its processor for others. Only code that needs none may run there: nosplit, no allocation. The
// runtime keeps both names for such uses.
//
//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

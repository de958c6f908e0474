//go:build linux && (amd64 || arm64) && !race

package clone

import _ "unsafe" // for go:linkname

// A thread that is suspended in vfork, for a millisecond or two, can not run goroutines: between these two calls the
// runtime gives its processor to others. Only code that needs no processor may run there: nosplit, no allocation. The
// runtime keeps both names for such uses.
//
//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

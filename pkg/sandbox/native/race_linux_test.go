//go:build race

package native

// underRace: the race detector remembers every goroutine, and takes memory for it.
const underRace = true

//go:build race

package native

// underRace: the race detector keeps memory for every goroutine.
const underRace = true

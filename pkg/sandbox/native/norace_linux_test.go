//go:build !race

package native

const underRace = false

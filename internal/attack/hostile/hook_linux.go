//go:build linux && !cover

package hostile

// init makes every program that links this package able to be an attacker, without code in its main.
func init() { Play() }

//go:build !weaken

package clone

// weakenKeyring leaves programs the session keyring of their init, in builds with the tag weaken (package weaken).
const weakenKeyring = false

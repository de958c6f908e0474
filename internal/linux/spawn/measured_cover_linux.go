//go:build cover

package spawn

const measured = true

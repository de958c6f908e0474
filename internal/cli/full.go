package cli

// Full is what only the full executable has, for it takes libraries that are slow to start (D10).
type Full struct{}

//go:build !linux

package conformance

// These look at the host's side of a wall, which is on another machine.
var wallRows, rootRows, metricRows, plantedRows, addedRows []row

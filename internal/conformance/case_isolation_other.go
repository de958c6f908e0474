//go:build !linux

package conformance

// These cases inspect the host, which is another machine here.
var isolationRows, rootRows, metricRows, plantedRows, addedRows []row

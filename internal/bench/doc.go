// Package bench has the parts of a fair measurement: interleaved pairs, medians with intervals,
// and a table that shows for every bar whether it was met.
//
// Place in the flow. internal/bench/cmd measures with it, for `make bench` and docs/PERFORMANCE.md.
// It has no code for sandboxes and imports no other package of this project.
//
// Lifecycle. Pairs or Throughput collect samples, Compare and its siblings make rows of them, a
// Report of rows is written as text, Markdown or JSON.
//
// Concurrency. The package has no state. Only Throughput starts goroutines, and waits for them.
//
// Limits. A ratio is one of medians, never a mean, and its interval is bootstrapped over pairs, so
// that a slowdown of both sides at once cancels out. Bars are judged by the ratio itself, or by its
// interval where two versions are compared; once: no measurement is repeated because of its result.
package bench

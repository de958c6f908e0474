// Package ceiling compares what a request asks for with what the operator gives.
//
// What. A [Set] has a maximum for every limit of a run and of compiling, and for the number of files. Above one of them a request is refused, and the answer names the field and
// the ceiling. A default above one is lowered, and the result says so in its notes.
//
// Place in the flow. The HTTP API asks it before a run is queued; the engine is told by the request itself.
//
//	explicit limit ──► above? ── yes ──► 403 above_ceiling {field, ceiling}
//	no limit given ──► default above? ── yes ──► the ceiling, and a note
//	the language's own default, known with the plan ──► above? ── yes ──► the ceiling, and a note
//
// Lifecycle. Plain values.
//
// Concurrency. A Set is not changed; Check changes the request it is given and nothing else.
//
// Limits. Sizes of bodies are the server's business, and of batches package batch's. What is zero has no ceiling but the machine.
package ceiling

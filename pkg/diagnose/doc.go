// Package diagnose explains why a program failed: it reads the error that the program or its compiler printed, and finds the place, the
// cause and the next steps.
//
// What. [Of] turns a [Failure] (language, verdict, output, the user's files) into a [Diagnosis]: kind, message, frames of the user first,
// place, lines of source, cause, suggestions. It is nil if there is nothing to say. A cause that is a guess says "probably".
//
// Place in the flow. The executor and sessions call Of after the verdict. Of is pure, and nothing that it returns changes a verdict, a
// limit or a report of isolation: a program can print a false trace, so a diagnosis is as trustworthy as the program's own output.
//
//	stderr ──► parser of the language ──► []thrown ──► rules of the language, then common rules ──► Diagnosis
//	verdict, limits, metrics ────────────────────────► rules of limits ──────────────────────────┘
//
// Lifecycle. Only failures are diagnosed. Nothing is kept between calls.
//
// Concurrency. Of may be called concurrently; a Failure belongs to one call.
//
// Limits. At most maxText bytes of each stream are read, and a Diagnosis has at most maxFrames frames and maxMessage bytes of a message.
// The everyday executable links this package: tables are static data, and nothing is compiled at its start.
package diagnose

// Package yamlite reads YAML that is written by hand: settings, test cases, the heads of templates.
//
// It is the lowest layer of every reader of such files, beside encoding/json, and imports none of our packages. Libraries were
// measured first (2026-11):
//
//   - go.yaml.in/yaml v3.0.6 and v4.0.0-rc.6 need 412 and 1932 MiB of memory for a hostile file of 4 MiB (this reader 136).
//     Both read YAML 1.1: JSON's escapes \/ and \ud83d\ude00 are errors, U+0085 and U+2028 end lines. Errors of v3 name a
//     wrong line in 7 of 18 broken files; v4 is not released yet. Their initialisers take 0.1 ms at every start of the
//     thin executable, all others together 0.4 ms.
//   - goccy/go-yaml 1.19.2 needs quadratic time for nested brackets and for nested "- ": 1.4 s for 64 KiB.
//
// This reader has no initialisers, and its time is linear.
//
// Decode is a pure function and may be called by several goroutines at once.
//
// Supported: block and flow mappings and sequences, plain, quoted, literal (|) and folded (>) scalars over several lines, comments,
// and JSON, which is a part of YAML. Scalars are those of YAML 1.2's core schema: yes, no, on and off are strings; 017 is refused,
// because readers disagree on its meaning. Refused with an error that names the feature: anchors, aliases, merge keys, tags,
// directives, "? " keys, several documents, .nan and .inf. Input is bounded by MaxSize, nesting by maxDepth.
package yamlite

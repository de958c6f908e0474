// Package yamlite reads the YAML that people write by hand: settings, test cases, the heads of
// templates.
//
// It stands below everything that reads such files, beside encoding/json, and imports nothing of
// ours. Libraries were measured first: the initialisers of go.yaml.in/yaml/v3 cost every start of
// the thin executable more than 0.1 ms, and goccy/go-yaml needs quadratic time for nested brackets
// (a minute for 128 KiB), which a hostile file could use. This reader costs nothing until used,
// and its time is linear.
//
// Decode is a pure function and may be called by several goroutines at once.
//
// Read: block and flow mappings and sequences, plain, quoted, literal (|) and folded (>) scalars
// over several lines, comments, JSON as it is. Scalars are those of YAML 1.2's core schema: yes, no,
// on and off are strings; 017 is refused, as it means two things. Not read, and refused by name:
// anchors, aliases, merge keys, tags, directives, "? " keys, several documents, .nan and .inf.
// Input is bounded by MaxSize, nesting by maxDepth.
package yamlite

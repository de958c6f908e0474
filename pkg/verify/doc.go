// Package verify checks what people and agents wrote before it is used: the examples of a document, a change of a git work tree, the
// proposed text of a file.
//
// What. Scan finds the fenced code blocks of a Markdown file, and Document runs them and compares each with the output block that follows.
// A Report has a check for each block, file or test; WriteJUnit prints it.
//
// Place in the flow. The doors (command line, HTTP API) read files and call this package with an executor. It builds requests for
// pkg/executor, pkg/session and pkg/tests; what is run is run by these, in sandboxes.
//
// Lifecycle. A call owns its sandboxes and sessions, and has removed them when it returns. A Report is a value.
//
// Concurrency. A call runs several sandboxes at the same time, and calls its hooks one at a time. Calls share nothing.
//
// Limits. Fences in block quotes are no blocks. What a program prints is compared as text: spaces at the ends of lines and empty lines at
// the end do not count. Nothing of a document or of a project is executed outside of a sandbox.
package verify

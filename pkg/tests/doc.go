// Package tests runs the tests of a project in a sandbox, and returns the result of each test.
//
// What. Frameworks is the table of test frameworks, and Detect finds the one of a project by the names and texts of its files. Run has the
// executor run its tests, reads the framework's report while it is written, and merges repeated runs. WriteJUnit and WriteTAP print results.
//
// Place in the flow. The doors (command line, HTTP API) call Run with an executor and a request. The language makes the command and says in
// which form the report is (language.Plan.Report); a parser of this package reads that form.
//
// Lifecycle. Run owns its sandboxes, one for each attempt. The caller closes the Result.
//
// Concurrency. Run calls its hook for events one at a time.
//
// Limits. A report is the word of the program: the tests run in the process that writes it, or beside it. Parsers bound what they keep, and
// ignore what they do not understand. A report never changes the verdict of a run, and a failed run never becomes a success by a report.
package tests

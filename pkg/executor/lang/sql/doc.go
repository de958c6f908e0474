// Package sql is the language SQL, run by the SQLite of the kit.
//
// Place in the flow. One value of language.Language in the executor's table. Package kit/sqlite does the work, inside the sandbox.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. A database among the files (*.db, *.sqlite) is opened if it is the only one. Results are printed as tables, and left as JSON in
// a file that becomes the result's tables.
package sql

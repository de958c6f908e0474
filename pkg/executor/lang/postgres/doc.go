// Package postgres is the language PostgreSQL: scripts for a server that the sandbox starts.
//
// Place in the flow. One value of language.Language in the executor's table. The server is the machine's own; package kit/postgres starts
// it, inside the sandbox.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. The server needs shared memory, and so a tier above namespace.
//
// Prepared files. A cluster, made by initdb in a sandbox and taken out of it; each server runs on a copy. There is no way without it. At
// a pool, the server is started on its copy and waits for the scripts (`sandbox-kit postgres --wait`).
package postgres

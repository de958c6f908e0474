// Package typescript is the language TypeScript: the kit removes the types, and Node runs the rest.
//
// Place in the flow. One value of language.Language in the executor's table, over package javascript. Package kit/typescript compiles.
// Sessions are those of package javascript, whose driver asks the kit to remove the types of each cell.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. Types are not checked. The compiled module is in /tmp/build, or in node_modules/.cache where there are packages, because Node
// looks for packages from the directory of a module. Two processes wait in a pooled sandbox: the kit, which has compiled once, and Node.
package typescript

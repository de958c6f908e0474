// Package template makes code to run out of templates: placeholders filled in, and harnesses that run a snippet against cases.
//
// It stands before pkg/executor: a template and its variables become files, an entry and a language, which a request then carries. The
// package runs nothing, and reads and writes no file except in Store and Create.
//
// Open finds templates, Get reads and checks one, Render fills it in; nothing has to be closed.
//
// A Store and a Template may be used by several goroutines at once.
//
// Limits: a template has at most 1 MiB, a rendering at most MaxOutput bytes and a bounded number of steps, so that hostile templates end,
// too. The syntax is text/template's without methods, call, printf and html; data is only strings, numbers, booleans, lists and maps.
// text/template costs the everyday executable 1.7 MB and no measurable time at the start. A harness is a tool for the author of the
// snippet, not a judge: a snippet can read the cases beside it.
package template

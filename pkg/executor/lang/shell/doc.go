// Package shell is the shell as a language: bash, sh and zsh, with all programs of the machine or only the ones that a request names.
//
// Place in the flow. One value of language.Language in the executor's table; imports package language and toolchain.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. A .sh file without a first line is run by bash where it is installed, else by sh.
//
// The restricted mode (Commands) is a root of its own: the shell, the named programs with the links to them, the loader, the libraries
// that their ELF headers name, and the C library's UTF-8 tables. /bin/sh is there only if it is the shell, was named, or interprets a
// named script. A program that is not listed does not exist, by any path. Of a file that is many programs (busybox) only the requested
// names are visible; the file under another name still has the others, and notes say so. Scripts for other interpreters than a shell are
// refused. Files that a program opens only while it runs (plug-ins, zsh modules) are not there.
package shell

// Package session has the driver of a Java session, as data: the sources of a program that executes cells with JShell.
//
// Place in the flow. pkg/executor/lang/java compiles the sources once per JDK, or has the launcher compile them at each start ([Source]);
// pkg/session speaks pkg/session/protocol with the driver.
//
// Lifecycle. The driver serves cells until the frame close or the end of the socket. A cell that calls System.exit ends it with that code.
//
// Concurrency. The main thread answers one frame after the other. Two more threads read and write the socket. Each snippet of a cell runs
// in a thread of its own, and threads that cells have started run on; all may print, and ask for lines while a cell runs.
//
// Limits. The driver shares its process with the cells. It needs JDK 17, whose System.inheritedChannel takes a Unix socket: Java can not
// move descriptors, but the JDK makes a copy of descriptor 0 for the channel, and puts /dev/null in the place of a standard stream that is
// closed, for writing only. Programs that cells start get no other descriptors. A cell may close System.out and System.err; one that closes
// the channel, or descriptor 1 or 2 by a stream of its own, ends the driver.
//
// Cells. JShell splits a cell into snippets, and evaluates them in order. Nothing of a cell runs that can not be split; another error of
// the compiler ends the cell at its snippet. The value of a cell is that of its last snippet, if that is an expression, in the form of the
// jshell tool, which also names it: $1, $2, …; the last hundred can be used. In traces, classes of snippets are cells:
//
//	at Point.norm(<cell 1>:3)    a method of a class
//	at cell.f(<cell 1>:7)        a method outside of a class
//	at cell.main(<cell 2>:1)     statements
//
// Traces that a cell prints itself have the names of JShell (REPL.$JShell$11).
//
// Interrupts. SIGINT interrupts the thread of the snippet; if it runs on for 20 ms, it is stopped: up to JDK 19 by Thread.stop, which ends
// everything but a call of the kernel. JDK 20 has no such thing: JShell puts checks into the loops and methods of snippets, also those
// that run in threads of earlier cells, but not of libraries. A snippet that is in a library and ignores interrupts runs on, and its
// session ends with the grace period. An interrupt that arrives while no cell runs is ignored.
//
// Memory. An OutOfMemoryError that a cell does not catch ends the cell. Its variables keep their memory; the driver keeps 8 MiB in reserve
// so that a later cell can clear them.
package session

import (
	"embed"
	"io/fs"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// Class is the driver's class with a main.
const Class = "run.sandbox.session.Driver"

// Practice is the argument after the class path with which the driver executes a few cells of its own and ends.
const Practice = "practise"

//go:embed driver/*.java
var sources embed.FS

// Sources are the files of the driver.
func Sources() fs.FS {
	sub, err := fs.Sub(sources, "driver")
	if err != nil { // can not happen: the name is well-formed
		panic(err)
	}
	return sub
}

// Source returns the driver as one file, which the launcher of Java compiles and runs: the class with a main comes first. It is in no
// package, which the launcher of JDK 22 would look for in the path of the file.
func Source() []byte {
	var imports, classes strings.Builder
	names, err := fs.Glob(sources, "driver/*.java")
	if err != nil { // can not happen: the pattern is well-formed
		panic(err)
	}
	const first = "driver/Driver.java"
	for _, name := range append([]string{first}, names...) {
		if name == first && classes.Len() > 0 {
			continue
		}
		text, err := sources.ReadFile(name)
		if err != nil { // can not happen: it was listed
			panic(err)
		}
		for line := range strings.Lines(string(text)) {
			switch {
			case strings.HasPrefix(line, "import "):
				if !strings.Contains(imports.String(), line) {
					imports.WriteString(line)
				}
			case !strings.HasPrefix(line, "package "):
				classes.WriteString(line)
			}
		}
	}
	return []byte(imports.String() + classes.String())
}

// Add adds the phase of the driver to the job's plan. machine is the command of the virtual machine, up to its class path; classPath is
// that of the cells. The driver is compiled at each start.
func Add(j *language.Job, machine []string, classPath string) *language.Phase {
	file := j.ShowSessionDriver("JavaSession.java", Source())
	return j.AddDriver(append(machine[:len(machine):len(machine)], "-cp", classPath, file, classPath)...)
}

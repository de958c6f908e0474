// Package java is the language Java: javac and java, with an archive of the compiler's classes and virtual machines that wait for a
// program (warm.go, driver.go).
//
// Place in the flow. One value of language.Language in the executor's table; imports package language, prepared and toolchain.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. -Xmx is the memory limit less an eighth and 48 MiB. A program can catch the error of a full heap; if the error ends the main
// thread, the verdict is memory_limit. Both compilers of the machine are on: stopping at the first saves little and slows long
// computations.
//
// Packages. Jars of a Maven repository, by coordinates of --deps and of lines //DEPS in sources; the kit resolves and fetches them. The
// jars of a layer stand on the class path behind the program's own, in the order of resolution. POMs and builds of projects are not read.
//
// Prepared files. An archive of javac's own classes (CDS), and the classes of the driver.
//
// Sessions. Package session has the driver. A session has the heap and the class path of a program, without a directory of compiled
// sources, and the simpler of the two compilers. The driver and an archive of its classes are prepared files, too; on an image the
// launcher compiles the driver at each start.
//
// Waiting compiler. javac has compiled programs of ours a few times before it reads its message.
//
// Waiting machine. It is started with the flags and class path of a cold start, and with driver/Runner on the boot class path, where
// HotSpot lets a method hide itself from stack traces. Runner calls the program's main through a hidden class, so that no frame is below
// main. It starts no thread, and what takes identity hash codes runs in the finalizer's thread, so that numbers that programs print are
// those of a cold start. Programs start cold that mention the machine's arguments or other threads' stacks (RuntimeMXBean, ProcessHandle,
// /proc/self/cmdline), have variables or a directory of their own, a main of a newer kind, or jars, which are not searched for such names.
// A program that the launcher would refuse is given to a machine of its own, which reports the error.
//
// What differs from a cold start: identity hash codes in threads that the program starts (on JDK 25 also the main thread's, by one), and
// the name of one class in the program's loader (run.sandbox.warm.Key).
package java

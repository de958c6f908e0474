// Package toolchain finds the language toolchains of this machine, also behind the shims and links of pyenv, rustup, nvm, sdkman, asdf,
// update-alternatives, virtual environments, Homebrew and Nix. It lists the paths of the host that a toolchain needs, so that a sandbox
// shows those and no others.
//
// Place in the flow. The executor gives a [Finder] the [Description] of a language's toolchain and builds its plan with the result:
// programs by their paths inside, mounts for the root, a version for the result, an ID for the key of its compile cache. One description
// serves this machine and images. On the host a search runs only programs of the user's PATH; programs of an image run in sandboxes.
//
//	PATH, usual places ──► candidates ──► trusted? ──► queried ──► view: mounts, aliases, libraries ──► Toolchain
//	                                                                                                   store ◄──────────┘
//
// Lifecycle. A Finder has no open files. A file of the user (see [DefaultStore]) keeps each found toolchain with a stamp of every file
// that the search read and every path that it found absent. The next process compares the stamps, one stat each, and runs no program. A
// toolchain that is missing is searched for each time.
//
// Concurrency. Any number of goroutines may use a Finder, and any number of processes a store. A writer replaces the whole store; of two
// concurrent writers the later one wins, and the other record costs one more search.
//
// Limits. A queried program has a few chosen variables, the directory /, ten seconds and 64 KiB of output, so that a project's files have
// no influence and nothing is downloaded. Programs in directories that other users can write to are ignored. A process that can change the
// user's own files can change the result. Paths below sandbox.HostDirs need no mount, because every sandbox shows them.
//
// Candidates. A search tries the first program along PATH, then the usual places (directories of version managers, /usr/lib/jvm …). It
// asks the program for its home (sys.base_prefix, process.execPath, go env GOROOT, rustc --print sysroot, java.home), because only running
// a shim resolves it. It skips relative and empty entries of PATH, and files, links and directories that users other than the caller and
// root can change, and lists them (Skipped). It prefers a complete candidate to one that lacks a part (a compiler, a linker, readable
// directories). Without a complete one, the error names the missing part and the command that installs it.
//
// Mounts. A sandbox mounts the toolchain's own prefix read-only. It never mounts a home directory, its parents, ~/.local and ~/.cargo; of
// an interpreter in one of them it mounts the file and the library. It mounts a path with links under each of its names, because programs
// may have recorded any of them. It mounts a toolchain below /tmp or another directory of the sandbox's own below /opt/sandbox-run. The
// search reads libraries outside the system's directories from ELF headers; /nix/store is mounted as a whole.
package toolchain

// Package toolchain finds the language toolchains of this machine behind whatever stands in front of them (pyenv, rustup, nvm, sdkman,
// asdf, update-alternatives, virtual environments, Homebrew, Nix), and says which paths of the host a sandbox has to show for them to
// work, so that it shows those and no others.
//
// Place in the flow. The executor gives a [Finder] the [Description] of a language's toolchain and builds its plan with the result:
// programs by their paths inside, mounts for the root, a version for the result, an ID for the key of its compile cache. One description
// serves this machine and images. On the host only the user's own programs run, from their own PATH; programs of an image run in
// sandboxes.
//
//	PATH, usual places ──► candidates ──► trusted? ──► queried ──► view: mounts, aliases, libraries ──► Toolchain
//	                                                                                                   store ◄──────────┘
//
// Lifecycle. A Finder holds nothing open. What it finds is kept in a file of the user's (see [DefaultStore]) together with stamps of
// every file and every absence that led there; the next process compares the stamps, which costs a look-up each, and queries nothing.
// What is not found is looked for again each time.
//
// Concurrency. A Finder may be used from any number of goroutines, a store by any number of processes: it is replaced as a whole, and of
// two writers the later wins, at the price of one more search.
//
// Limits. A program is queried with an environment of a few chosen variables, in the directory /, for ten seconds and 64 KiB of answer at
// most, so that no project's files have a say and nothing is downloaded. Directories that others may write to supply nothing. A process
// that can change the user's own files can change what is found: no control protects users from themselves. Which directories every
// sandbox shows anyway is known here (sandbox.HostDirs).
//
// Candidates. The first program along PATH, then the usual places (directories of version managers, /usr/lib/jvm …). The program itself
// says what it is (sys.base_prefix, process.execPath, go env GOROOT, rustc --print sysroot, java.home), because a shim can only be
// resolved by running it. Relative and empty entries of PATH, and files, links and directories that others than the user and root can
// change, are skipped and listed (Skipped). A candidate that lacks a part (a compiler, a linker, readable directories) comes after one
// that is whole; if there is none, the error names the missing part and how to install it.
//
// Mounts. The toolchain's own prefix, read-only. A home directory, its parents, ~/.local and ~/.cargo are never mounted: of an
// interpreter in one of them, its file and its library are. A path with links is mounted under each name on the way, because programs
// remember any of them. A toolchain below /tmp or another directory of the sandbox's own is mounted below /opt/sandbox-run. Libraries
// outside the system's directories are found in ELF headers; /nix/store is mounted as a whole.
package toolchain

// Package toolchain finds the language toolchains of this machine behind whatever stands in front of them (pyenv, rustup,
// nvm, sdkman, asdf, update-alternatives, virtual environments, Homebrew, Nix), and says which paths of the host a
// sandbox has to show for them to work, so that it shows those and no others.
//
// Place in the flow. The executor asks a [Finder] for a language and builds its plan with what it gets: programs by their
// paths inside, mounts for the root, a version for the result, an ID for the key of its compile cache. Nothing here runs
// foreign code: the programs asked are the user's own, on their own PATH.
//
//	PATH, usual places ──► candidates ──► trusted? ──► asked what they are ──► view: mounts, aliases, libraries ──► Toolchain
//	                                                                                                   store ◄──────────┘
//
// Lifecycle. A Finder holds nothing open. What it finds is kept in a file of the user's (see [DefaultStore]) together with
// stamps of every file and every absence that led there; the next process compares the stamps, which costs a look-up each,
// and asks nobody. What is not found is looked for again each time.
//
// Concurrency. A Finder may be used from any number of goroutines, a store by any number of processes: it is replaced as a
// whole, and of two writers the later wins, at the price of one more search.
//
// Limits. A program is asked with an environment of a few chosen variables, in the directory /, for ten seconds and 64 KiB
// of answer at most, so that no project's files have a say and nothing is downloaded. Directories that others may write to
// supply nothing. Whoever can change the user's own files can change what is found: that is the user's own business, not a
// wall. Which directories every sandbox shows anyway is known here (sandbox.HostDirs).
package toolchain

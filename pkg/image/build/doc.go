// Package build makes the project's own language images, from the packages of Debian.
//
// What. A definition (images/NAME.yaml) lists packages. Build has mmdebstrap install them below a directory of its own, without Docker
// and without a registry, and makes one layer and a configuration of the result. Definition.Dockerfile says the same in Docker's
// language.
//
//	definition ─► packages (cached) ─► mmdebstrap, in namespaces ─► archive ─► one layer, normalised ─► image.Store.Add
//
// Place in the flow. `sandbox-run image build` and `image dockerfile` call it. It stands on pkg/image, where images end up.
//
// Lifecycle. A build works in a directory of its own, locked while the build lives, and removes it at the end. mmdebstrap and all that it
// starts live in a pid and a mount namespace that end with it, and it ends with this process: a build that is cancelled or killed leaves
// no process and no mount. The directory that a killed one leaves is removed by the next. Packages stay, until no image needs them.
//
// Concurrency. Builds may run side by side, in one process or several.
//
// Limits. Linux, with mmdebstrap, apt and unshare (util-linux 2.38); an ordinary user needs a range of subordinate ids. Maintainer
// scripts of packages run as root of the namespaces, so the signers of the packages are trusted, as by every installation of them. An
// image depends on the versions of its packages, the definition and this program only: not on the time, the machine, or who builds it.
//
// Namespaces. mmdebstrap's own mode for ordinary users forks out of reach of its caller. Instead unshare makes the namespaces and
// mmdebstrap runs as their root: root as it is, an ordinary user through subordinate ids (--map-auto). Both get the same image and
// digest. unshare ends with the thread that started it (PDEATHSIG). Every process of a build inherits the lock of its working directory.
// An ordinary user removes such a directory from within a user namespace, because its files belong to subordinate ids.
//
// Normalising. The archive is written again, sorted by path, with numeric owners, without extended attributes and set-user-id bits.
// Caches, logs, apt's state and files of the machine are left out. A file that a maintainer script made has the time of the newest file
// of a package; files of packages keep theirs, because compiled Python compares them. SOURCE_DATE_EPOCH is hidden from the scripts: with
// it Python would compile for checks by content, which slows every import. Java's certificate store, which has dates, is rewritten.
// Labels name every package with its version.
//
// Sources. Those that apt has for the machine's release (apt-get indextargets), as far as they are suites of Debian; a pin by origin
// excludes other packages. usrmerge is excluded, which would bring Perl: /usr is merged before the first package is unpacked. apt checks
// signatures when packages are downloaded, and a cached package only by its size, so its SHA-256 is recorded then and compared at every
// use.
package build

// Package build makes the project's own language images, from the packages of Debian.
//
// What. A definition (images/NAME.yaml) lists packages. Build starts mmdebstrap, which installs them below a working directory, without
// Docker and without an image registry, and makes one layer and a configuration of the result. Definition.Dockerfile returns a Dockerfile
// for the same image.
//
//	definition ─► packages (cached) ─► mmdebstrap, in namespaces ─► archive ─► one layer, normalised ─► image.Store.Add
//
// Place in the flow. `sandbox-run image build` and `image dockerfile` call it. It adds images to the store of pkg/image.
//
// Lifecycle. A build locks a working directory of its own and removes it at the end. mmdebstrap and its children run in a pid and a mount
// namespace that end with mmdebstrap, and mmdebstrap ends with this process: a build that is cancelled or killed leaves no process and no
// mount. The next build removes the directory of a killed one. A package stays until no image needs it.
//
// Concurrency. Builds may run side by side, in one process or several.
//
// Limits. Linux, with mmdebstrap, apt and unshare (util-linux 2.38); an ordinary user needs a range of subordinate ids. Maintainer
// scripts of packages run as root of the namespaces, so a build trusts the signers of the packages, as every installation does. An image
// depends only on the versions of its packages, the definition and this program: not on the time, the machine or the user.
//
// Namespaces. mmdebstrap's own mode for ordinary users forks out of reach of its caller. Instead unshare makes the namespaces and
// mmdebstrap runs as their root: root as it is, an ordinary user through subordinate ids (--map-auto). Both get the same image and
// digest. unshare ends with the thread that started it (PDEATHSIG). Every process of a build inherits the lock of its working directory.
// An ordinary user removes such a directory from within a user namespace, because its files belong to subordinate ids.
//
// Normalising. The archive is written again, sorted by path, with numeric owners, without extended attributes and set-user-id bits.
// Caches, logs, apt's state and files of the machine are left out. A file that a maintainer script made gets the time of the newest file
// of a package; files of packages keep theirs, because compiled Python compares them. The scripts do not see SOURCE_DATE_EPOCH: with it
// Python compiles for checks by content, which slows every import. Java's certificate store, which has dates, is rewritten. Labels name
// every package with its version.
//
// Sources. A build uses apt's sources for the machine's release (apt-get indextargets) that are suites of Debian; a pin by origin
// excludes other packages. usrmerge, which depends on Perl, is excluded: /usr is merged before the first package is unpacked. apt checks
// the signature of a downloaded package, but only the size of a cached one, so the build records the SHA-256 after the download and
// compares it at every use.
package build

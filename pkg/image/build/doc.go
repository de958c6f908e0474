// Package build makes the project's own language images, from the packages of Debian.
//
// What. A definition (images/NAME.yaml) lists packages. Build has mmdebstrap install them below a directory of its own, without Docker
// and without a registry, and makes one layer and a configuration of the result. Definition.Dockerfile says the same in Docker's language.
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
// Limits. Linux, with mmdebstrap, apt and unshare (util-linux 2.38); an ordinary user needs a range of subordinate ids. Maintainer scripts of
// packages run as root of the namespaces, so the signers of the packages are trusted, as by every installation of them. An
// image depends on the versions of its packages, the definition and this program only: not on the time, the machine, or who builds it.
package build

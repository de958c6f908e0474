package toolchain

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

func rust() language {
	return language{
		name: Rust, names: []string{"rustc"}, ask: askRust, inside: (*inside).rust,
		places: []string{
			"$CARGO_HOME/bin/rustc", "~/.cargo/bin/rustc", "$RUSTUP_HOME/toolchains/stable-*/bin/rustc", "~/.rustup/toolchains/stable-*/bin/rustc",
			"$RUSTUP_HOME/toolchains/*/bin/rustc", "~/.rustup/toolchains/*/bin/rustc",
			"$ASDF_DATA_DIR/installs/rust/*/bin/rustc", "~/.asdf/installs/rust/*/bin/rustc",
			"/usr/local/bin/rustc", "/usr/bin/rustc", "/usr/lib/rust-*/bin/rustc",
			"/home/linuxbrew/.linuxbrew/bin/rustc", "~/.linuxbrew/bin/rustc", "/opt/homebrew/bin/rustc",
			"~/.nix-profile/bin/rustc", "/nix/var/nix/profiles/default/bin/rustc", "/run/current-system/sw/bin/rustc",
		},
	}
}

func askRust(h *hunt, found resolved) (*Toolchain, error) {
	said, err := h.ask(found.via[0], "--print", "sysroot")
	if err != nil {
		return nil, err
	}
	sysroot := strings.TrimSpace(said.stdout)
	if !filepath.IsAbs(sysroot) || strings.ContainsAny(sysroot, "\n") {
		return nil, errors.New("does not answer as rustc does")
	}
	t := &Toolchain{Name: Rust, Path: filepath.Join(sysroot, "bin", "rustc"), Home: sysroot, Programs: map[string]string{}}
	real, err := h.probe(t.Path)
	if err != nil { // Nix wraps: the compiler is elsewhere than its sysroot
		t.Path, real = found.real, found
	}
	h.behind(found, real.real, "$RUSTUP_HOME/settings.toml", "~/.rustup/settings.toml", "/rust-toolchain", "/rust-toolchain.toml")
	// Behind rustup's proxy it is this one that will run.
	said, err = h.ask(t.Path, "-vV")
	if err != nil {
		return nil, err
	}
	build := said.stdout
	release, host := rustBuild(build)
	if release == "" {
		return nil, errors.New("does not answer as rustc does")
	}
	t.Version = release
	if p := h.beside(filepath.Dir(t.Path), "cargo"); p != "" {
		t.Programs["cargo"] = p
	} else if r, ok := h.onPath("cargo"); ok && filepath.Base(r.real) != "rustup" {
		t.Programs["cargo"] = r.real
	}
	if host != "" && !isDir(filepath.Join(sysroot, "lib", "rustlib", host, "lib")) {
		return nil, &incomplete{t, fmt.Sprintf("no standard library for %s in %s", host, sysroot), []string{"rustup component add rust-std"}}
	}
	v := h.view(Rust)
	if err := v.show(sysroot); err != nil {
		return nil, err
	}
	linker, ok := h.onPath("cc", "gcc", "clang")
	if !ok {
		return nil, &incomplete{t, "rustc needs a linker, and there is no cc", h.install("cc")}
	}
	// A compiler's driver goes by its name: a link in a directory that is shown is called as that.
	t.Programs["cc"] = nameInside(linker)
	if crt, err := h.ask(t.Programs["cc"], "-print-file-name=crt1.o"); err == nil && strings.TrimSpace(crt.stdout) == "crt1.o" {
		return nil, &incomplete{t, "rustc needs the C library's start files to link with, and there is no crt1.o", h.install("libc")}
	}
	libraries, _ := filepath.Glob(filepath.Join(globQuote(sysroot), "lib", "librustc_driver*.so"))
	for _, p := range libraries {
		h.trail.add(p)
	}
	return h.finish(t, v, found, append(libraries, real.real), build)
}

// nameInside is what a program is called: the name it was found by where a sandbox shows that, its file otherwise.
func nameInside(r resolved) string {
	if shown(r.via[0]) && shown(r.real) {
		return r.via[0]
	}
	return r.real
}

// rustBuild reads `rustc -vV`.
func rustBuild(out string) (release, host string) {
	for line := range strings.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch k {
		case "release":
			release = versionIn(v)
		case "host":
			if !strings.ContainsAny(v, "/\x00") {
				host = v
			}
		}
	}
	return release, host
}

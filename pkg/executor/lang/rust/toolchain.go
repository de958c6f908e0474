package rust

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

var description = toolchain.Description{
	Name: "rust", Programs: []string{"rustc"}, Query: query,
	Places: []string{
		"$CARGO_HOME/bin/rustc", "~/.cargo/bin/rustc", "$RUSTUP_HOME/toolchains/stable-*/bin/rustc", "~/.rustup/toolchains/stable-*/bin/rustc",
		"$RUSTUP_HOME/toolchains/*/bin/rustc", "~/.rustup/toolchains/*/bin/rustc",
		"$ASDF_DATA_DIR/installs/rust/*/bin/rustc", "~/.asdf/installs/rust/*/bin/rustc",
		"/usr/local/bin/rustc", "/usr/bin/rustc", "/usr/lib/rust-*/bin/rustc",
		"/home/linuxbrew/.linuxbrew/bin/rustc", "~/.linuxbrew/bin/rustc", "/opt/homebrew/bin/rustc",
		"~/.nix-profile/bin/rustc", "/nix/var/nix/profiles/default/bin/rustc", "/run/current-system/sw/bin/rustc",
	},
	Variables: []string{"RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO_HOME", "ASDF_RUST_VERSION"},
	Settings: []string{
		"RUSTUP_AUTO_INSTALL=0",
		"RUSTUP_DIST_SERVER=http://127.0.0.1:9", "RUSTUP_UPDATE_ROOT=http://127.0.0.1:9", // older rustups do not have the first variable
	},
	Packages: toolchain.Packages{
		Apt: "rustc cargo gcc libc6-dev", Dnf: "rust cargo gcc glibc-devel", Apk: "rust cargo gcc musl-dev", Pacman: "rust gcc", Brew: "rust gcc",
	},
}

// The packages that rustc needs for linking.
var (
	linkerPackages   = toolchain.Packages{Apt: "gcc libc6-dev", Dnf: "gcc glibc-devel", Apk: "gcc musl-dev", Pacman: "gcc", Brew: "gcc"}
	cLibraryPackages = toolchain.Packages{Apt: "libc6-dev", Dnf: "glibc-devel", Apk: "musl-dev", Pacman: "glibc", Brew: "gcc"}
)

func query(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
	answer, err := s.Query(found.Name(), "--print", "sysroot")
	if err != nil {
		return nil, err
	}
	sysroot := strings.TrimSpace(answer.Stdout)
	if !filepath.IsAbs(sysroot) || strings.ContainsAny(sysroot, "\n") {
		return nil, errors.New("does not answer as rustc does")
	}
	t := &toolchain.Toolchain{Path: found.Real(), Home: sysroot, Programs: map[string]string{}}
	// Behind rustup's proxy, the compiler of the sysroot runs. Nix wraps the compiler, which is outside of its sysroot.
	real := found
	if own := s.At(filepath.Join(sysroot, "bin", "rustc"), "-vV"); own != "" {
		if real, err = s.Probe(own); err != nil {
			return nil, err
		}
		t.Path = own
	}
	s.BehindShim(found, real.Real(), "$RUSTUP_HOME/settings.toml", "~/.rustup/settings.toml", "/rust-toolchain", "/rust-toolchain.toml")
	if answer, err = s.Query(t.Path, "-vV"); err != nil {
		return nil, err
	}
	build := answer.Stdout
	release, host := readBuild(build)
	if t.Version = release; release == "" {
		return nil, errors.New("does not answer as rustc does")
	}
	if p := s.At(filepath.Join(filepath.Dir(t.Path), "cargo"), "--version"); p != "" {
		t.Programs["cargo"] = p
	} else if cargo, ok := s.Named([]string{"--version"}, "cargo"); ok && filepath.Base(cargo.Real()) != "rustup" {
		t.Programs["cargo"] = cargo.Real()
	}
	if host != "" && !s.HasDir(filepath.Join(sysroot, "lib", "rustlib", host, "lib")) {
		return nil, s.Incomplete(t, fmt.Sprintf("no standard library for %s in %s", host, sysroot), "rustup component add rust-std")
	}
	v := s.View()
	if err := v.Show(sysroot); err != nil {
		return nil, err
	}
	linker, ok := s.Named([]string{"--version"}, "cc", "gcc", "clang")
	if !ok {
		return nil, s.Incomplete(t, "rustc needs a linker, and there is no cc", s.Install(linkerPackages)...)
	}
	// A compiler's driver depends on its name: the sandbox calls it by the name of the link.
	t.Programs["cc"] = linker.Inside()
	if crt, err := s.Query(t.Programs["cc"], "-print-file-name=crt1.o"); err == nil && strings.TrimSpace(crt.Stdout) == "crt1.o" {
		why := "rustc needs the C library's start files to link with, and there is no crt1.o"
		return nil, s.Incomplete(t, why, s.Install(cLibraryPackages)...)
	}
	libraries := s.Glob(sysroot, "lib", "librustc_driver*.so")
	s.Watch(libraries...)
	return s.Finish(t, v, found, append(libraries, real.Real()), build)
}

// readBuild reads the output of `rustc -vV`.
func readBuild(out string) (release, host string) {
	for line := range strings.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch k {
		case "release":
			release = toolchain.Version(v)
		case "host":
			if !strings.ContainsAny(v, "/\x00") {
				host = v
			}
		}
	}
	return release, host
}

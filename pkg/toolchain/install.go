package toolchain

import "slices"

// managers are package managers by the program they are, and how they install.
var managers = []struct{ program, command string }{
	{"apt-get", "apt-get install "}, {"dnf", "dnf install "}, {"yum", "yum install "}, {"apk", "apk add "}, {"pacman", "pacman -S "},
	{"zypper", "zypper install "}, {"brew", "brew install "},
}

// packages are what a language is called by: apt, dnf (yum, zypper), apk, pacman, brew.
func packages(name string) (apt, dnf, apk, pacman, brew string) {
	switch name {
	case Python:
		return "python3", "python3", "python3", "python", "python"
	case Node:
		return "nodejs", "nodejs", "nodejs", "nodejs", "node"
	case Go:
		return "golang-go", "golang", "go", "go", "go"
	case Rust:
		return "rustc cargo gcc libc6-dev", "rust cargo gcc glibc-devel", "rust cargo gcc musl-dev", "rust gcc", "rust gcc"
	case Java:
		return "openjdk-17-jdk-headless", "java-17-openjdk-devel", "openjdk17-jdk", "jdk17-openjdk", "openjdk"
	case Shell:
		return "bash", "bash", "bash", "bash", "bash"
	case Postgres:
		return "postgresql", "postgresql-server", "postgresql postgresql-client", "postgresql", "postgresql"
	case "cc":
		return "gcc libc6-dev", "gcc glibc-devel", "gcc musl-dev", "gcc", "gcc"
	case "libc":
		return "libc6-dev", "glibc-devel", "musl-dev", "glibc", "gcc"
	}
	return "", "", "", "", ""
}

// install says how to get a language, for this machine's package manager first.
func (h *hunt) install(name string) []string {
	apt, dnf, apk, pacman, brew := packages(name)
	if apt == "" {
		return nil
	}
	var here, elsewhere []string
	for _, m := range managers {
		pkg := dnf
		switch m.program {
		case "apt-get":
			pkg = apt
		case "apk":
			pkg = apk
		case "pacman":
			pkg = pacman
		case "brew":
			pkg = brew
		}
		present := slices.ContainsFunc(append(slices.Clone(h.dirs), "/usr/bin", "/sbin"), func(dir string) bool {
			_, err := program(dir + "/" + m.program)
			return err == nil
		})
		if present {
			here = append(here, m.command+pkg)
		} else {
			elsewhere = append(elsewhere, m.command+pkg)
		}
	}
	return append(here, elsewhere...)
}

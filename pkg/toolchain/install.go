package toolchain

import "slices"

// managers are package managers, by their program and the command that installs.
var managers = []struct{ program, command string }{
	{"apt-get", "apt-get install "}, {"dnf", "dnf install "}, {"yum", "yum install "}, {"apk", "apk add "}, {"pacman", "pacman -S "},
	{"zypper", "zypper install "}, {"brew", "brew install "},
}

// Install returns commands that install packages, the one of this machine's package manager first. In an image it returns none.
func (s *Search) Install(p Packages) []string {
	if p.Apt == "" || s.image != nil {
		return nil
	}
	var here, elsewhere []string
	for _, m := range managers {
		pkg := p.Dnf
		switch m.program {
		case "apt-get":
			pkg = p.Apt
		case "apk":
			pkg = p.Apk
		case "pacman":
			pkg = p.Pacman
		case "brew":
			pkg = p.Brew
		}
		present := slices.ContainsFunc(append(slices.Clone(s.dirs), "/usr/bin", "/sbin"), func(dir string) bool {
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

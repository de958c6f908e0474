package java

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

var description = toolchain.Description{
	Name: "java", Programs: []string{"java"}, Query: query,
	Places: []string{
		"$JAVA_HOME/bin/java", "$SDKMAN_DIR/candidates/java/current/bin/java",
		"~/.sdkman/candidates/java/current/bin/java", "~/.sdkman/candidates/java/*/bin/java",
		"$ASDF_DATA_DIR/installs/java/*/bin/java", "~/.asdf/installs/java/*/bin/java", "~/.local/share/mise/installs/java/*/bin/java",
		"~/.jenv/versions/*/bin/java",
		"/usr/lib/jvm/*/bin/java", "/usr/java/*/bin/java", "/opt/java/*/bin/java", "/opt/jdk*/bin/java", "~/.jdks/*/bin/java",
		"/usr/local/bin/java", "/usr/bin/java",
		"/home/linuxbrew/.linuxbrew/opt/openjdk/bin/java", "~/.linuxbrew/opt/openjdk/bin/java", "/opt/homebrew/opt/openjdk/bin/java",
		"~/.nix-profile/bin/java", "/nix/var/nix/profiles/default/bin/java", "/run/current-system/sw/bin/java",
	},
	Variables: []string{"JAVA_HOME", "SDKMAN_DIR", "ASDF_JAVA_VERSION"},
	Packages: toolchain.Packages{
		Apt: "openjdk-17-jdk-headless", Dnf: "java-17-openjdk-devel", Apk: "openjdk17-jdk", Pacman: "jdk17-openjdk", Brew: "openjdk",
	},
}

func query(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
	answer, err := s.Query(found.Name(), "-XshowSettings:properties", "-version")
	if err != nil {
		return nil, err
	}
	home, version := readProperties(answer.Stderr + answer.Stdout)
	if !filepath.IsAbs(home) || version == "" {
		return nil, errors.New("does not answer as Java does")
	}
	if above := filepath.Dir(home); filepath.Base(home) == "jre" && s.At(filepath.Join(above, "bin", "javac"), "-version") != "" {
		home = above // Java 8
	}
	v := s.View()
	if !s.InImage() {
		if err := v.Show(home); err != nil {
			return nil, err
		}
		if home, err = toolchain.Real(home); err != nil {
			return nil, err
		}
	}
	t := &toolchain.Toolchain{Version: version, Path: filepath.Join(home, "bin", "java"), Home: home, Programs: map[string]string{}}
	t.Env = map[string]string{"JAVA_HOME": home}
	s.BehindShim(found, t.Path, "~/.jenv/version")
	for _, tool := range [][2]string{{"java", "-version"}, {"javac", "-version"}, {"jar", "--version"}, {"jshell", "--version"}} {
		role := tool[0]
		if !s.Sees() && (role == "jar" || role == "jshell") {
			continue // not worth a virtual machine's start
		}
		if p := s.At(filepath.Join(home, "bin", role), tool[1]); p != "" {
			t.Programs[role] = p
		}
	}
	s.Watch(filepath.Join(home, "release"), filepath.Join(home, "lib", "modules"))
	if t.Programs["javac"] == "" {
		return nil, s.Incomplete(t, "a runtime without javac")
	}
	if s.InImage() {
		return t, nil
	}
	for _, p := range toolchain.LinksOut(home) {
		_ = v.Show(configRoot(p)) // a link that leads nowhere is no worse inside
	}
	return s.Finish(t, v, found, nil)
}

// configRoot is the directory in /etc that is Java's own, if p lies in one: distributions keep the configuration of a JDK there.
func configRoot(p string) string {
	rest, ok := strings.CutPrefix(p, "/etc/")
	if !ok {
		return p
	}
	top, _, below := strings.Cut(rest, "/")
	if below && (strings.Contains(top, "java") || strings.Contains(top, "jdk")) {
		return "/etc/" + top
	}
	return p
}

// readProperties reads the settings that a virtual machine prints: "    java.home = /usr/lib/jvm/…".
func readProperties(out string) (home, version string) {
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), " = ")
		switch {
		case !ok:
		case k == "java.home" && home == "":
			home = v
		case k == "java.version" && version == "":
			version = v
		}
	}
	if home != "" {
		home = filepath.Clean(home)
	}
	return home, version
}

package toolchain

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
)

func java() language {
	return language{
		name: Java, names: []string{"java"}, ask: askJava, inside: (*inside).java,
		places: []string{
			"$JAVA_HOME/bin/java", "$SDKMAN_DIR/candidates/java/current/bin/java", "~/.sdkman/candidates/java/current/bin/java", "~/.sdkman/candidates/java/*/bin/java",
			"$ASDF_DATA_DIR/installs/java/*/bin/java", "~/.asdf/installs/java/*/bin/java", "~/.local/share/mise/installs/java/*/bin/java", "~/.jenv/versions/*/bin/java",
			"/usr/lib/jvm/*/bin/java", "/usr/java/*/bin/java", "/opt/java/*/bin/java", "/opt/jdk*/bin/java", "~/.jdks/*/bin/java",
			"/usr/local/bin/java", "/usr/bin/java",
			"/home/linuxbrew/.linuxbrew/opt/openjdk/bin/java", "~/.linuxbrew/opt/openjdk/bin/java", "/opt/homebrew/opt/openjdk/bin/java",
			"~/.nix-profile/bin/java", "/nix/var/nix/profiles/default/bin/java", "/run/current-system/sw/bin/java",
		},
	}
}

func askJava(h *hunt, found resolved) (*Toolchain, error) {
	said, err := h.ask(found.via[0], "-XshowSettings:properties", "-version")
	if err != nil {
		return nil, err
	}
	home, version := javaProperties(said.stderr + said.stdout)
	if !filepath.IsAbs(home) || version == "" {
		return nil, errors.New("does not answer as Java does")
	}
	if filepath.Base(home) == "jre" && exists(filepath.Join(filepath.Dir(home), "bin", "javac")) {
		home = filepath.Dir(home) // Java 8
	}
	r, err := resolve(home)
	if err != nil {
		return nil, err
	}
	v := h.view(Java)
	if err := v.show(home); err != nil {
		return nil, err
	}
	home = r.real
	t := &Toolchain{Name: Java, Version: version, Path: filepath.Join(home, "bin", "java"), Home: home, Programs: map[string]string{}}
	t.Env = map[string]string{"JAVA_HOME": home}
	h.behind(found, t.Path, "~/.jenv/version")
	for _, role := range []string{"java", "javac", "jar", "jshell"} {
		if p := h.beside(filepath.Join(home, "bin"), role); p != "" {
			t.Programs[role] = p
		}
	}
	h.trail.add(filepath.Join(home, "release"), filepath.Join(home, "lib", "modules"))
	if t.Programs["javac"] == "" {
		return nil, &incomplete{t, "a runtime without javac", h.install(Java)}
	}
	for _, p := range linksOut(home) {
		_ = v.show(configRoot(p)) // a link that leads nowhere is no worse inside
	}
	return h.finish(t, v, found, nil)
}

// linksOut are what links in a JDK lead to outside of what is shown: distributions keep its configuration in /etc.
func linksOut(home string) (targets []string) {
	entries := 0
	_ = filepath.WalkDir(home, func(p string, d fs.DirEntry, err error) error {
		if entries++; entries > maxWalk {
			return errWalked
		}
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		if r, err := resolve(p); err == nil && !shown(r.real) && !within(r.real, home) {
			targets = append(targets, r.real)
		}
		return nil
	})
	return targets
}

// configRoot is the directory in /etc that is Java's own, if p lies in one.
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

// javaProperties reads the settings that a JVM prints: "    java.home = /usr/lib/jvm/…".
func javaProperties(out string) (home, version string) {
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

package javascript

import (
	"errors"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Node is the toolchain of JavaScript and TypeScript. Its further program "npm" is npm's main file, for Node.
var Node = toolchain.Description{
	Name: "node", Programs: []string{"node", "nodejs"}, Query: query,
	Places: []string{
		"$NVM_DIR/versions/node/*/bin/node", "~/.nvm/versions/node/*/bin/node", "~/.volta/tools/image/node/*/bin/node",
		"~/.local/share/fnm/node-versions/*/installation/bin/node",
		"$ASDF_DATA_DIR/installs/nodejs/*/bin/node", "~/.asdf/installs/nodejs/*/bin/node", "~/.local/share/mise/installs/node/*/bin/node",
		"/usr/local/bin/node", "/usr/bin/node", "/usr/bin/nodejs", "/opt/nodejs/bin/node", "/opt/node*/bin/node",
		"/home/linuxbrew/.linuxbrew/bin/node", "~/.linuxbrew/bin/node", "/opt/homebrew/bin/node",
		"~/.nix-profile/bin/node", "/nix/var/nix/profiles/default/bin/node", "/run/current-system/sw/bin/node",
	},
	Variables: []string{"NVM_DIR", "VOLTA_HOME", "ASDF_NODEJS_VERSION"},
	Settings:  []string{"COREPACK_ENABLE_NETWORK=0"},
	Detail:    "npm", // records of earlier searches lack it
	Packages:  toolchain.Packages{Apt: "nodejs", Dnf: "nodejs", Apk: "nodejs", Pacman: "nodejs", Brew: "node"},
}

const queryScript = `process.stdout.write("` + toolchain.Mark + `version=" + process.versions.node + "\n` +
	toolchain.Mark + `executable=" + process.execPath + "\n")`

const npmMain = "npm-cli.js"

func query(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
	answer, err := s.Query(found.Name(), "-e", queryScript)
	if err != nil {
		return nil, err
	}
	facts := toolchain.Facts(answer.Stdout)
	if facts["version"] == "" || !filepath.IsAbs(facts["executable"]) {
		return nil, errors.New("does not answer as Node does")
	}
	real, err := s.Probe(facts["executable"])
	if err != nil {
		return nil, err
	}
	t := &toolchain.Toolchain{Version: facts["version"], Path: real.Real(), Home: filepath.Dir(filepath.Dir(real.Real()))}
	if s.InImage() {
		return t, nil
	}
	s.BehindShim(found, real.Real(), "$VOLTA_HOME/tools/user/platform.json", "~/.volta/tools/user/platform.json")
	v := s.View()
	// Node is one file; npm and other tools are beside it, in an installation of its own.
	ownPrefix := toolchain.Exists(filepath.Join(t.Home, "include", "node")) ||
		toolchain.Exists(filepath.Join(t.Home, "lib", "node_modules", "npm"))
	switch {
	case toolchain.Shown(t.Home):
	case ownPrefix && !v.Broad(t.Home):
		if err := v.Show(t.Home); err != nil {
			return nil, err
		}
	default:
		t.Home = filepath.Dir(real.Real())
	}
	// npm is beside Node, as a link to its main file.
	if npm, err := s.Probe(filepath.Join(filepath.Dir(real.Real()), "npm")); err == nil && filepath.Base(npm.Real()) == npmMain {
		if err := v.Show(filepath.Dir(filepath.Dir(npm.Real()))); err == nil {
			t.Programs = map[string]string{"npm": npm.Real()}
		}
	}
	return s.Finish(t, v, found, nil)
}

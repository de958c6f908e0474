package toolchain

import (
	"errors"
	"path/filepath"
)

func node() language {
	return language{
		name: Node, names: []string{"node", "nodejs"}, ask: askNode, inside: (*inside).node,
		places: []string{
			"$NVM_DIR/versions/node/*/bin/node", "~/.nvm/versions/node/*/bin/node", "~/.volta/tools/image/node/*/bin/node",
			"~/.local/share/fnm/node-versions/*/installation/bin/node",
			"$ASDF_DATA_DIR/installs/nodejs/*/bin/node", "~/.asdf/installs/nodejs/*/bin/node", "~/.local/share/mise/installs/node/*/bin/node",
			"/usr/local/bin/node", "/usr/bin/node", "/usr/bin/nodejs", "/opt/nodejs/bin/node", "/opt/node*/bin/node",
			"/home/linuxbrew/.linuxbrew/bin/node", "~/.linuxbrew/bin/node", "/opt/homebrew/bin/node",
			"~/.nix-profile/bin/node", "/nix/var/nix/profiles/default/bin/node", "/run/current-system/sw/bin/node",
		},
	}
}

const nodeScript = `process.stdout.write("` + mark + `version=" + process.versions.node + "\n` + mark + `executable=" + process.execPath + "\n")`

func askNode(h *hunt, found resolved) (*Toolchain, error) {
	said, err := h.ask(found.via[0], "-e", nodeScript)
	if err != nil {
		return nil, err
	}
	facts := told(said.stdout)
	if facts["version"] == "" || !filepath.IsAbs(facts["executable"]) {
		return nil, errors.New("does not answer as Node does")
	}
	real, err := h.probe(facts["executable"])
	if err != nil {
		return nil, err
	}
	h.behind(found, real.real, "$VOLTA_HOME/tools/user/platform.json", "~/.volta/tools/user/platform.json")
	t := &Toolchain{Name: Node, Version: facts["version"], Path: real.real, Home: filepath.Dir(filepath.Dir(real.real))}
	v := h.view(Node)
	// Node is one file; npm and its like lie beside it, in an installation that is Node's own.
	ownPrefix := exists(filepath.Join(t.Home, "include", "node")) || exists(filepath.Join(t.Home, "lib", "node_modules", "npm"))
	if !shown(t.Home) {
		if ownPrefix && !v.broad(t.Home) {
			if err := v.show(t.Home); err != nil {
				return nil, err
			}
		} else {
			t.Home = filepath.Dir(real.real)
		}
	}
	return h.finish(t, v, found, nil)
}

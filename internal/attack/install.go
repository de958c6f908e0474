package attack

import "context"

// LayerInside is where a run of an [Installation] sees what was installed.
const LayerInside = "/opt/sandbox-run/layer"

// Installation is what Options.Install carries out: a language's tool in place of which a script attacks, and a run with what it left.
type Installation struct {
	Name   string            // of what is installed: each name is a layer of its own
	Index  string            // URL of the registry that the installation may reach
	Attack string            // a shell script, run twice: once with INDEX, where the registry is, and then without a network
	Run    string            // a shell script
	Env    map[string]string // of the run
	Mark   string            // in the environment of the attackers; ATTACKER is their executable, WORD the first argument
}

// Installed is what an Installation has said.
type Installed struct {
	Online, Offline, Run []byte
	Layer                string // directory of the host
}

// Install carries out an installation. An error of kind sandbox.ErrUnsupported means that the backend has none.
type Install func(ctx context.Context, i Installation) (*Installed, error)

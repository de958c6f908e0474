// Command sandbox-rund is sandbox-run with everything that needs heavy libraries: the HTTP API, the client of image
// registries, the docker backend and the attack suite. sandbox-run executes it in its own place where it is needed; the
// command line is the same.
package main

import (
	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/serve"

	_ "github.com/sandbox-run/sandbox-run/pkg/image/codec" // zstd, and a faster gzip
)

func main() {
	hostile.Play() // if doctor --attack has started this process as an attacker, it does not return
	app.Register(app.Docker, openDocker)
	cli.MainFull(cli.Full{
		Registries: registries{}, Builder: builder{}, SetUpDocker: setUpDocker, Server: serve.Server{}, Web: dialWeb, Attack: runAttack,
	})
}

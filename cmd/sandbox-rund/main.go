// Command sandbox-rund is sandbox-run with all that takes heavy libraries: the HTTP API, what reaches image registries, and the Docker
// backend. sandbox-run executes it in its own place where it is needed; the command line is the same.
package main

import (
	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/serve"

	_ "github.com/sandbox-run/sandbox-run/pkg/image/codec" // zstd, and a faster gzip
)

func main() {
	app.Register(app.Docker, openDocker)
	cli.MainFull(cli.Full{Registries: registries{}, Builder: builder{}, SetUpDocker: setUpDocker, Server: serve.Server{}, Web: dialWeb})
}

package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (c *cli) newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say which version this is", Args: noArguments, DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error { return c.printVersion() },
	}
}

func (c *cli) printVersion() error {
	_, err := fmt.Fprintln(c.std.out, c.executable(), version(debug.ReadBuildInfo()))
	return err
}

// executable is the name of the one that runs.
func (c *cli) executable() string {
	if c.full != nil {
		return fullName
	}
	return commandName
}

// version is what the build knows of itself: a release, or the commit it was made from.
func version(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	if text == "" {
		text = "(devel)"
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			text += " " + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			text += " modified"
		}
	}
	return fmt.Sprintf("%s %s %s/%s", text, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}

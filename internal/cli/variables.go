package cli

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// OtherVariables are variables that no flag has: without the stem. One that ends in _ is the beginning of several.
var OtherVariables = []string{
	"INIT", "KIT", "HELPER", "SOCKET", "SERVER_KEY", "IMAGES", "IMAGE_", "REGISTRIES_FILE",
	"NO_INSTALL", "TEST_", // of this project's scripts and tests
}

// FullFlags are the flags that only commands of the full executable have; sandbox-run, which does not have these commands, knows their
// variables by this list. TestVariables of package full compares it with the commands.
const FullFlags = " all allow-backend allow-env allow-image allow-origin allow-packages allow-publish allow-runtime allow-volume" +
	" allow-workspaces allow-writable-root allow-writable-volumes base burst concurrency config dir disk-floor door" +
	" drain-timeout fail-fast filter forbid-network force framework host idle insecure insecure-http keep keep-runs keep-size key key-id keys" +
	" kind language lifetime lines listen log-level max-body max-compile-memory max-compile-timeout max-connections" +
	" max-cpu-time max-cpus max-disk max-inodes max-installations max-layers-size max-memory max-net-bytes max-net-connections" +
	" max-net-rate max-network max-network-allow max-network-deny max-network-dns max-network-registries" +
	" max-open-files max-output-limit max-packages-size max-pids max-sessions max-timeout max-workspaces max-workspaces-size" +
	" mirror name no-warm older older-than output overlap platform promise-cpus promise-memory queue" +
	" queue-per-key queue-wait rate registries repeat replay request require-keys rerun-failed result run-timeout session-idle session-lifetime" +
	" session-queue sessions-per-key share-compiled since spill-size suite tag tls-cert tls-key until user verbose" +
	" verdict warm warm-cpus warm-memory warm-per-key webhook-host webhooks yes "

// checkVariables refuses a variable with the stem of this project that nothing reads: as with a misspelt flag, the user believes that a
// setting is in force. The variables of all commands are known, because an environment is shared by several. Empty variables count as
// unset.
func checkVariables(cmd *cobra.Command, environ []string) error {
	for _, entry := range environ {
		variable, value, _ := strings.Cut(entry, "=")
		name, ours := strings.CutPrefix(variable, environmentStem)
		if !ours || value == "" || isKnownVariable(cmd.Root(), name) {
			continue
		}
		hint, flag := "unset "+variable, flagOfVariable(name)
		if like := cmp.Or(nearestFlag(cmd.Flags(), flag), nearestFlag(cmd.Root().Flags(), flag)); like != "" {
			hint = EnvironmentName(like)
		}
		return &sandbox.Error{Op: variable, Kind: sandbox.ErrInvalid, Err: errors.New("no flag has this variable"), Hint: hint}
	}
	return nil
}

func flagOfVariable(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

func isKnownVariable(root *cobra.Command, name string) bool {
	flag := flagOfVariable(name)
	if name != strings.ToUpper(name) {
		return false
	}
	return strings.Contains(FullFlags, " "+flag+" ") || root.Flags().Lookup(flag) != nil ||
		slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Flags().Lookup(flag) != nil }) ||
		slices.ContainsFunc(OtherVariables, func(o string) bool {
			return name == o || strings.HasSuffix(o, "_") && strings.HasPrefix(name, o)
		})
}

// nearestFlag returns the flag with the most similar name; empty if none is similar.
func nearestFlag(flags *pflag.FlagSet, name string) string {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
	return nearest.Word(name, all)
}

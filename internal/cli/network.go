package cli

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// addNetwork adds the flags of a network policy. The flags of a compilation's network have the prefix of its mode's flag.
func addNetwork(fs *pflag.FlagSet, p *network.Policy, name, shown, usage string) {
	prefix, ofRun := strings.CutSuffix(name, "network")
	AddParsed(fs, &p.Mode, name, shown, usage, sandbox.ParseNetwork)
	rules := func(flag string, into *[]string, usage string, with func(text string) network.Policy) {
		fs.Var(&List{Into: into, Check: func(text string) error {
			if err := with(text).Validate(); err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), flag+": "))
			}
			return nil
		}}, prefix+flag, usage)
	}
	rules("allow", &p.Allow, "allow connections by a `rule`, HOST[:PORT[,PORT]][/udp]; repeatable; *.example.com, addresses and prefixes, too",
		func(text string) network.Policy { return network.Policy{Allow: []string{text}} })
	fs.Var(&List{Into: &p.Registries, Commas: true, Check: func(text string) error {
		return network.Policy{Registries: []string{text}}.Validate()
	}}, prefix+"allow-registry", "allow the package registries of these `names`: "+strings.Join(network.Registries(), ", "))
	if prefix != "" || !ofRun {
		return
	}
	rules("deny", &p.Deny, "refuse connections by a `rule`, HOST[:PORT[,PORT]][/udp], in spite of others; repeatable",
		func(text string) network.Policy { return network.Policy{Mode: network.Full, Deny: []string{text}} })
	fs.BoolVar(&p.DNS, "allow-dns", false, "resolve every name, not only allowed ones; names can carry data out")
	rules("publish", &p.Publish, "make a `port` of the program reachable on 127.0.0.1: [HOSTPORT:]PORT; repeatable",
		func(text string) network.Policy { return network.Policy{Publish: []string{text}} })
}

package executor

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Policy is what the program may see and reach, and how strong its isolation must be. The zero value is the default. Every field
// has a row in Fields.
type Policy struct {
	Network      network.Policy
	Volumes      []sandbox.Volume
	Workdir      string // default /workspace
	Scratch      sandbox.ScratchMode
	WritableRoot bool
	Hostname     string
	User         sandbox.User // one id alone leaves the other at its default
	Require      sandbox.Tier
	Strict       bool
	KillOnOutput bool
	MergeOutput  bool // of the program; compilers have two streams
	Labels       map[string]string

	CompileNetwork network.Policy
	Bounds         network.Bounds // the operator's, of both networks; no field of a request
}

// LanguageOptions are settings of some languages. A language refuses an option that it does not have. Every field has a row in
// Fields.
type LanguageOptions = language.Options

// Field is one setting of requests, with its place and its names. The flags of the command line and their variables, the JSON of
// the HTTP API, its OpenAPI document and its clients are derived from it.
type Field struct {
	Name    string // in JSON; the flag has dashes for underscores
	Short   string // letter of the flag; empty: none
	Value   any    // pointer to the value
	Group   Group  // of the flag, in help
	Usage   string // help of the flag; empty: no flag, or one that the command line reads in its own way
	Words   string // the possible values, separated by commas, which help adds; empty: any
	Shown   string // default that help shows
	Doc     string // in the OpenAPI document; empty: Usage as a sentence
	Example string // in the OpenAPI document, as JSON
}

// Group is the title under which help lists a flag.
type Group string

// The groups of flags of settings.
const (
	GroupLimits    Group = "Limits"
	GroupSees      Group = "What it sees"
	GroupCompiling Group = "What compiling sees" // runs only: help shows them in GroupSees
	GroupStrength  Group = "How strong"
	GroupOutput    Group = "Input and output"
	GroupPackages  Group = "Packages"
	GroupLanguages Group = "Of some languages"
)

// Fields is the table of settings with the values of these two, in the order of help.
func Fields(p *Policy, o *LanguageOptions) []Field {
	return []Field{
		{Name: "kill_on_output", Value: &p.KillOnOutput, Group: GroupLimits, Usage: "end the program when it prints more than that"},
		{Name: "volumes", Value: &p.Volumes, Doc: "host:dest[:ro|rw] of the server's own paths. Refused unless the operator allows it."},
		{Name: "workdir", Value: &p.Workdir, Group: GroupSees, Shown: sandbox.WorkspaceDir, Usage: "working `directory` inside"},
		{
			Name: "writable_root", Value: &p.WritableRoot, Group: GroupSees,
			Usage: "let it write anywhere on an image; changes are thrown away",
			Doc:   "Let it write anywhere on an image; changes are thrown away. Refused unless the operator allows it.",
		},
		{
			Name: "network", Value: &p.Network, Group: GroupSees, Shown: string(network.None), Words: "none, localhost, allow, full, learn",
			Usage: "network `mode`",
			Doc: "Network: a mode, or an object with mode, allow[], deny[], registries[], dns and publish[]. Rules are HOST[:PORT[,PORT]][/udp]. " +
				"What a request may ask for is the operator's decision.",
			Example: `{"allow": ["api.example.com"]}`,
		},
		{
			Name: "compile_network", Value: &p.CompileNetwork, Group: GroupCompiling, Shown: string(network.None), Words: "none, allow, full",
			Usage: "network `mode` of compiling",
			Doc:   "Network of compiling, in the same form.",
		},
		{
			Name: "scratch", Value: &p.Scratch, Group: GroupSees, Shown: string(sandbox.ScratchAuto), Words: "auto, disk, memory",
			Usage: "`kind` of scratch disk",
		},
		{Name: "hostname", Value: &p.Hostname, Group: GroupSees, Shown: sandbox.UserName, Usage: "host `name` inside"},
		{
			Name: "uid", Value: &p.User.UID, Group: GroupSees, Shown: strconv.Itoa(sandbox.DefaultUser.UID),
			Usage: "user `id` inside; never root",
		},
		{
			Name: "gid", Value: &p.User.GID, Group: GroupSees, Shown: strconv.Itoa(sandbox.DefaultUser.GID),
			Usage: "group `id` inside; never root",
		},
		{
			Name: "require", Value: &p.Require, Group: GroupStrength, Shown: string(sandbox.TierContainer),
			Words: "process, namespace, container, gvisor, microvm",
			Usage: "least `tier` to accept", Doc: "Least tier to accept; not below the server's own floor.",
		},
		{Name: "strict", Value: &p.Strict, Group: GroupStrength, Usage: "refuse unless no control at all is missing"},
		{
			Name: "merge_output", Value: &p.MergeOutput, Group: GroupOutput,
			Usage: "give the program one pipe for stdout and stderr, which keeps their order (default if yours are the same)",
			Doc:   "Give the program one pipe for stdout and stderr. All its output is stdout, in the exact order of its writes.",
		},
		{Name: "labels", Value: &p.Labels, Doc: "Labels of the sandbox."},
		{
			Name: "commands", Value: &o.Commands, Group: GroupLanguages,
			Usage: "shell: the only `programs` there are, with commas between", Doc: "shell: the only programs there are.",
		},
		{
			Name: "forbid_imports", Value: &o.ForbidImports, Group: GroupLanguages,
			Usage: "python: refuse a program that imports these `modules`; a lint, not a wall",
			Doc:   "python: refuse a program that imports these; a lint, not a wall.",
		},
		{Name: "release", Value: &o.Release, Group: GroupLanguages, Usage: "rust: optimise", Doc: "rust: optimise."},
		{Name: "edition", Value: &o.Edition, Group: GroupLanguages, Usage: "rust: `year` of the edition (default 2021)",
			Doc: "rust: year of the edition."},
		{
			Name: "test", Value: &o.Test, Group: GroupLanguages,
			Usage: "go, rust, python, javascript, java: run the tests, even if there is a main",
			Doc:   "go, rust, python, javascript, java: run the tests, even if there is a main.",
		},
		{Name: "enable_assertions", Value: &o.EnableAssertions, Group: GroupLanguages, Usage: "java: execute assert statements",
			Doc: "java: execute assert statements."},
		{
			Name: "module", Short: "m", Value: &o.Module, Group: GroupLanguages, Usage: "python: run a `module`, as python -m does",
			Doc: "python: run a module, as python -m does. Needs neither code nor files.", Example: `"json.tool"`,
		},
		{
			Name: "deps", Value: &o.Deps, Group: GroupPackages, Usage: "install `packages` first: requests==2.31,numpy",
			Doc:     "Packages to install first, as the language's tool names them, beside those that the program declares.",
			Example: `["requests==2.31", "numpy"]`,
		},
		{
			Name: "install", Value: &o.Install, Group: GroupPackages, Usage: "install the packages that the program declares",
			Doc: "Install the packages that the program declares: in requirements.txt, package.json, go.mod, Cargo.toml, or in its source.",
		},
		{Name: "lock", Value: &o.Lock, Doc: "Install exactly the packages of this lock, which an earlier result contained."},
		{Name: "return_lock", Value: &o.ReturnLock, Doc: "Have the lock in the result, for later requests."},
		{Name: "frozen", Value: &o.Frozen, Group: GroupPackages, Usage: "refuse packages that no lock fixes",
			Doc: "Refuse packages whose versions and digests no lock fixes."},
		{Name: "deps_refresh", Value: &o.DepsRefresh, Group: GroupPackages, Usage: "resolve packages again",
			Doc: "Resolve again, in place of what an earlier run has installed."},
		{
			Name: "allow_install_scripts", Value: &o.AllowInstallScripts, Group: GroupPackages,
			Usage: "let packages run their install scripts, without a network",
			Doc:   "Let packages run their install scripts, without a network.",
		},
		{Name: "setup", Value: &o.Setup, Group: GroupLanguages, Doc: "sql, postgres: which of files and in to run first."},
	}
}

// Flag returns the name of the field's flag, which errors use as well.
func (f *Field) Flag() string { return strings.ReplaceAll(f.Name, "_", "-") }

// IsSet reports whether the field has a value.
func (f *Field) IsSet() bool {
	v := reflect.ValueOf(f.Value).Elem()
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() > 0
	}
	return !v.IsZero()
}

// Apply writes the policy into the spec of a sandbox, except KillOnOutput and MergeOutput, which belong to the process.
func (p *Policy) Apply(s *sandbox.Spec) {
	s.Network = p.Network.Clone()
	if p.Network.Complete().HasRules() || p.CompileNetwork.Complete().HasRules() {
		s.Bounds = p.Bounds // they decide nothing else, and a pool keeps sandboxes with other bounds apart
	}
	s.Volumes, s.Workdir, s.Scratch, s.WritableRoot = slices.Clone(p.Volumes), p.Workdir, p.Scratch, p.WritableRoot
	s.Hostname, s.Require, s.Strict, s.Labels = p.Hostname, p.Require, p.Strict, maps.Clone(p.Labels)
	if s.User = p.User; s.User != (sandbox.User{}) { // a zero beside an id means root
		s.User.UID, s.User.GID = cmp.Or(p.User.UID, sandbox.DefaultUser.UID), cmp.Or(p.User.GID, sandbox.DefaultUser.GID)
	}
}

// checkOptions refuses options that the language ignores: accepting a restriction that is not enforced is unsafe.
func checkOptions(l *Language, o LanguageOptions) error {
	for _, f := range Fields(&Policy{}, &o) {
		if f.Group == GroupLanguages && f.IsSet() && !slices.Contains(l.Options, f.Flag()) {
			return sandbox.Invalid(f.Flag(), "%s has no such option", l.Title)
		}
	}
	return nil
}

package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// boxOptions are what every command that makes a sandbox lets its user decide: how large it is, what is seen in it, how
// strong it has to be, and where its output goes.
type boxOptions struct {
	backend    string
	runtime    string
	dockerHost string
	limits     sandbox.Limits
	policy     executor.Policy
	options    executor.LanguageOptions
	environ    map[string]string // of the program
	env        List
	volumes    List
	spill      string
	tty        bool
	raw        bool
	quiet      bool
	noStream   bool
	auditLog   string
	image      string
	pull       bool
}

// FlagGroups are the titles under which help lists flags, with what adds them.
type FlagGroups []struct {
	Title string
	Add   func(*pflag.FlagSet)
}

// AddTo gives a command its flags, group by group, in the order of help.
func (groups FlagGroups) AddTo(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	for _, g := range groups {
		fs := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		fs.SortFlags = false
		g.Add(fs)
		fs.VisitAll(func(f *pflag.Flag) { Annotate(f, FlagGroup, g.Title) })
		cmd.Flags().AddFlagSet(fs)
	}
}

// fields are the settings of the request that have flags.
func (o *boxOptions) fields() []executor.Field { return executor.Fields(&o.policy, &o.options) }

func (o *boxOptions) addLimitFlags(fs *pflag.FlagSet) {
	defaults := sandbox.DefaultLimits()
	for _, row := range sandbox.AllLimits() {
		AddLimit(fs, row, "", row.Usage, &o.limits, &defaults)
	}
	addFields(fs, executor.GroupLimits, o.fields())
}

func (o *boxOptions) addEnvironmentFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.image, "image", "", "`reference` of an image to run on, in place of this machine's programs")
	fs.BoolVar(&o.pull, "pull", false, "get the image that is needed, if it is not here")
	fs.Var(&o.env, "env", "set a variable: `NAME=value`; NAME alone passes ours on; repeatable")
	fs.Var(&o.volumes, "volume", "show `host:dest[:ro|rw]`, read-only unless rw; repeatable")
	addFields(fs, executor.GroupSees, o.fields())
}

func (o *boxOptions) addStrengthFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.backend, "backend", app.Auto, "`name` of the backend: "+strings.Join(append([]string{app.Auto}, app.AllBackends()...), ", "))
	fs.StringVar(&o.runtime, "runtime", "", "OCI runtime of the oci backend, by `name` or path: runc, crun, runsc, kata, youki (default the first found); of docker, one that its daemon knows")
	fs.StringVar(&o.dockerHost, "docker-host", "", "`address` of the daemon for the docker backend, such as unix:///run/docker.sock (default where Docker or Podman is found)")
	addFields(fs, executor.GroupStrength, o.fields())
}

func (o *boxOptions) addOutputFlags(fs *pflag.FlagSet, c *Invocation) {
	fs.BoolVarP(&o.tty, "tty", "t", false, "give it a terminal, and our standard input")
	fs.BoolVar(&c.JSON, "json", false, "print the result as one JSON document, and nothing else")
	AddParsed(fs, &c.format, "format", FormatText, "`form` of what is printed: text, json, ndjson (one event per line)",
		ReadOneOf(FormatText, FormatJSON, FormatNDJSON))
	fs.BoolVar(&o.noStream, "no-stream", false, "print everything at the end, in one piece")
	fs.StringVar(&o.spill, "spill", "", "keep output beyond --output-limit in files in this `directory`")
	fs.BoolVar(&o.raw, "raw", false, "do not escape control characters when printing to a terminal")
	AddParsed(fs, &c.colour, "color", ColourAuto, "`when` to use colour: auto, always, never", ReadOneOf(ColourAuto, ColourAlways,
		ColourNever))
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "no header, no summary and no word on why the program was ended")
	fs.StringVar(&o.auditLog, "audit-log", "", "write a line on the run to this `file` instead of your own log; off: nowhere")
	fs.BoolP("help", "h", false, "show this text")
}

// BriefSize writes a size the way flags take it.
func BriefSize(s sandbox.Size) string {
	for _, u := range []struct {
		unit sandbox.Size
		name string
	}{{sandbox.GiB, "g"}, {sandbox.MiB, "m"}, {sandbox.KiB, "k"}} {
		if s >= u.unit && s%u.unit == 0 {
			return strconv.FormatUint(uint64(s/u.unit), 10) + u.name
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// complete reads what can only be read once all flags are known.
func (o *boxOptions) complete(c *Invocation, flags *pflag.FlagSet) error {
	if err := c.chooseFormat(flags); err != nil {
		return err
	}
	if o.tty && c.format != FormatText {
		return sandbox.Invalid("tty", "a terminal's output is for people; leave out --format %s", c.format)
	}
	if o.tty && o.noStream {
		return sandbox.Invalid("tty", "a terminal is used while the program runs; leave out --no-stream")
	}
	// An empty value is a variable that was not set: it must not silently mean the default.
	for _, name := range []string{"image", "spill", "audit-log", "runtime", "docker-host"} {
		if err := CheckNotEmpty(flags, name); err != nil {
			return err
		}
	}
	for _, f := range o.fields() {
		if _, text := f.Value.(*string); text && flags.Lookup(f.Flag()) != nil {
			if err := CheckNotEmpty(flags, f.Flag()); err != nil {
				return err
			}
		}
	}
	if err := app.CheckRuntime(o.backend, o.runtime); err != nil {
		return err
	}
	o.environ = parseEnvironment(o.env.Values)
	for _, text := range o.volumes.Values {
		v, err := readVolume(text)
		if err != nil {
			return err
		}
		o.policy.Volumes = append(o.policy.Volumes, v)
	}
	if o.spill != "" {
		return o.prepareSpill()
	}
	return nil
}

func CheckNotEmpty(flags *pflag.FlagSet, name string) error {
	if f := flags.Lookup(name); f.Changed && f.Value.String() == "" {
		return sandbox.Invalid(name, "it is empty")
	}
	return nil
}

// environment reads NAME=value and NAME; a NAME that we do not have either stays unset.
func parseEnvironment(entries []string) map[string]string {
	env := map[string]string{}
	for _, e := range entries {
		name, value, given := strings.Cut(e, "=")
		if !given {
			if value, given = os.LookupEnv(name); !given {
				continue
			}
		}
		env[name] = value
	}
	return env
}

// readVolume is sandbox.ParseVolume for people: the host's path may be relative to where they are.
func readVolume(text string) (sandbox.Volume, error) {
	source, rest, found := strings.Cut(text, ":")
	if !found || source == "" {
		return sandbox.ParseVolume(text) // says what is wrong with it
	}
	source, err := absolutePath("volume", source)
	if err != nil {
		return sandbox.Volume{}, err
	}
	return sandbox.ParseVolume(source + ":" + rest)
}

// absolute completes a relative path of the host. A path with .. is refused instead of being
// shortened: through a symlink, it may mean another place than it says (F10).
func absolutePath(field, path string) (string, error) {
	if slices.Contains(strings.Split(filepath.ToSlash(path), "/"), "..") {
		return "", sandbox.Invalid(field, "path %q contains ..; name the directory itself", path)
	}
	if filepath.IsAbs(path) {
		return path, nil
	}
	// The kernel's word, not $PWD: that may lead through a symlink, which volumes refuse.
	here, err := syscall.Getwd()
	if err != nil {
		return "", &sandbox.Error{Op: "working directory", Err: err}
	}
	return filepath.Join(here, path), nil
}

// prepareSpill finds out now what would otherwise be lost at the end of a long run.
func (o *boxOptions) prepareSpill() error {
	if err := os.MkdirAll(o.spill, 0o700); err != nil {
		return sandbox.Invalid("spill", "%w", err)
	}
	for _, name := range []string{"stdout", "stderr"} {
		path := filepath.Join(o.spill, name)
		if _, err := os.Lstat(path); err == nil {
			return sandbox.Invalid("spill", "%q exists already; name an empty directory", path)
		}
	}
	return nil
}

// noAudit is in the place of a log's name.
const noAudit = "off"

// openAudit opens the log that the run is written to. A log that somebody has named must be usable; that of somebody who has none
// (no home, a disk that is read-only) is missed with a word on it.
func (o *boxOptions) openAudit() (log *audit.Log, missing, err error) {
	if o.auditLog == noAudit {
		return nil, nil, nil
	}
	log, err = audit.Open(o.auditLog, audit.Options{})
	switch {
	case err == nil:
		return log, nil, nil
	case o.auditLog == "":
		return nil, err, nil
	}
	return nil, nil, err
}

// appendNotes adds what went wrong beside the run itself.
func appendNotes(notes []string, left, unlogged error) []string {
	notes = slices.Clip(notes)
	if left != nil {
		notes = append(notes, cleanupNote+left.Error())
	}
	if unlogged != nil {
		notes = append(notes, executor.AuditNote+unlogged.Error())
	}
	return notes
}

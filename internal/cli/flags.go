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

// boxOptions are the flags of every command that makes a sandbox: limits, contents, isolation and output.
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
	summary    bool
	noStream   bool
	keepApart  bool // stdout and stderr
	auditLog   string
	image      string
	pull       bool
}

// FlagGroups are groups of flags: the title in help, and the function that adds the flags.
type FlagGroups []struct {
	Title string
	Add   func(*pflag.FlagSet)
}

// AddTo adds the flags of all groups to a command, in the order of help.
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

// fields returns the settings of the request that have flags.
func (o *boxOptions) fields() []executor.Field { return executor.Fields(&o.policy, &o.options) }

func (o *boxOptions) addLimitFlags(fs *pflag.FlagSet) {
	defaults := sandbox.DefaultLimits()
	for _, row := range sandbox.AllLimits() {
		AddLimit(fs, row, "", row.Usage, &o.limits, &defaults)
	}
	addFields(fs, executor.GroupLimits, o.fields())
}

func (o *boxOptions) addEnvironmentFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.image, "image", "", "`reference` of an image whose programs are used, in place of this machine's")
	fs.BoolVar(&o.pull, "pull", false, "download the image if it is missing")
	fs.Var(&o.env, "env", "set a variable: `NAME=value`; NAME alone passes on your own; repeatable")
	fs.Var(&o.volumes, "volume", "mount `host:dest[:ro|rw]`, read-only unless rw; repeatable")
	addFields(fs, executor.GroupSees, o.fields())
}

func (o *boxOptions) addStrengthFlags(fs *pflag.FlagSet) {
	backends := append([]string{app.Auto}, app.AllBackends()...)
	fs.StringVar(&o.backend, "backend", app.Auto, "`name` of the backend: "+strings.Join(backends, ", "))
	fs.StringVar(&o.runtime, "runtime", "", "OCI runtime of the oci backend, by `name` or path: runc, crun, runsc, kata, youki (default "+
		"the first found); for docker, one that its daemon knows")
	fs.StringVar(&o.dockerHost, "docker-host", "", "`address` of the daemon for the docker backend, such as unix:///run/docker.sock "+
		"(default where Docker or Podman is found)")
	addFields(fs, executor.GroupStrength, o.fields())
}

func (o *boxOptions) addOutputFlags(fs *pflag.FlagSet, c *Invocation) {
	fs.BoolVarP(&o.tty, "tty", "t", false, "give the program a terminal, connected to yours")
	fs.BoolVar(&c.JSON, "json", false, "print the result as one JSON document, and nothing else")
	AddParsed(fs, &c.format, "format", FormatText, "output `format`: text, json, ndjson (one event per line)",
		ReadOneOf(FormatText, FormatJSON, FormatNDJSON))
	fs.BoolVar(&o.noStream, "no-stream", false, "print the output at the end, not while the program runs")
	addFields(fs, executor.GroupOutput, o.fields())
	fs.BoolVar(&o.keepApart, "no-merge-output", false, "give it two pipes, also if yours are the same")
	Annotate(fs.Lookup("no-merge-output"), NoVariable, "true") // that of --merge-output takes false
	fs.StringVar(&o.spill, "spill", "", "keep output beyond --output-limit in files in this `directory`")
	fs.BoolVar(&o.raw, "raw", false, "do not escape control characters when printing to a terminal")
	AddParsed(fs, &c.colour, "color", ColourAuto, "`when` to use colour: auto, always, never", ReadOneOf(ColourAuto, ColourAlways,
		ColourNever))
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "no header, no summary, and no reason if the program is ended")
	fs.BoolVar(&o.summary, "summary", false, "print the summary also if standard error is no terminal")
	fs.StringVar(&o.auditLog, "audit-log", "", "audit log `file` for this run (default your own log); off: no log")
	fs.BoolP("help", "h", false, "show this help")
}

// BriefSize formats a size as flags accept it, such as 512m.
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

// complete fills in the fields that depend on several flags, and checks their values.
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
	if o.quiet && o.summary {
		if isOnCommandLine(flags, "quiet") == isOnCommandLine(flags, "summary") {
			return sandbox.Invalid("summary", "--quiet prints none; leave out one of them")
		}
		o.quiet = isOnCommandLine(flags, "quiet") // a flag has precedence over a variable
		o.summary = !o.quiet
	}
	// An empty value is probably that of an unset shell variable. It must not mean the default.
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
	if err := o.chooseMergeOutput(c, flags); err != nil {
		return err
	}
	var err error
	if o.environ, err = parseEnvironment(o.env.Values); err != nil {
		return err
	}
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

// chooseMergeOutput merges the program's streams, if no flag says otherwise, where this process can not tell them apart: its own are one
// terminal, file or pipe, and no document has a place for each.
func (o *boxOptions) chooseMergeOutput(c *Invocation, flags *pflag.FlagSet) error {
	const flag = "merge-output"
	if o.keepApart && o.policy.MergeOutput && isOnCommandLine(flags, flag) {
		return sandbox.Invalid("no-"+flag, "--%s and --no-%s contradict each other", flag, flag)
	}
	if !flags.Changed(flag) {
		out, err := c.Std.Out.Stat()
		other, otherErr := c.Std.Err.Stat()
		o.policy.MergeOutput = c.format == FormatText && !o.options.Test && err == nil && otherErr == nil && os.SameFile(out, other)
	}
	o.policy.MergeOutput = o.policy.MergeOutput && !o.keepApart
	return nil
}

// CheckNotEmpty refuses a flag that is given with an empty value. Its error is of kind sandbox.ErrInvalid.
func CheckNotEmpty(flags *pflag.FlagSet, name string) error {
	if f := flags.Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
		return sandbox.Invalid(name, "it is empty")
	}
	return nil
}

// parseEnvironment parses NAME=value and NAME. NAME alone takes the value from this process; without one it stays unset.
func parseEnvironment(entries []string) (map[string]string, error) {
	env := map[string]string{}
	for _, e := range entries {
		name, value, given := strings.Cut(e, "=")
		if err := sandbox.ValidateVariable(name); err != nil {
			return nil, err
		}
		if !given {
			if value, given = os.LookupEnv(name); !given {
				continue
			}
		}
		env[name] = value
	}
	return env, nil
}

// readVolume is sandbox.ParseVolume with a host path that may be relative to the current directory.
func readVolume(text string) (sandbox.Volume, error) {
	source, rest, found := strings.Cut(text, ":")
	if !found || source == "" {
		return sandbox.ParseVolume(text) // returns the error
	}
	source, err := absolutePath("volume", source)
	if err != nil {
		return sandbox.Volume{}, err
	}
	return sandbox.ParseVolume(source + ":" + rest)
}

// absolutePath makes a path of the host absolute. It refuses a path with .. instead of shortening it: behind a symlink, the shortened
// path names another directory (F10).
func absolutePath(field, path string) (string, error) {
	if slices.Contains(strings.Split(filepath.ToSlash(path), "/"), "..") {
		return "", sandbox.Invalid(field, "path %q contains ..; name the directory itself", path)
	}
	if filepath.IsAbs(path) {
		return path, nil
	}
	// Not os.Getwd: it returns $PWD, which may contain a symlink, and volumes refuse symlinks.
	here, err := syscall.Getwd()
	if err != nil {
		return "", &sandbox.Error{Op: "working directory", Err: err}
	}
	return filepath.Join(here, path), nil
}

// prepareSpill makes the directory of --spill, and refuses one that has files of an earlier run, before the run begins.
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

// noAudit is the value of --audit-log that disables the log.
const noAudit = "off"

// openAudit opens the audit log. A log that --audit-log names must be usable; otherwise err is set. The default log may be unusable, for
// example without a home directory or on a read-only disk; then the run goes on, and missing says why.
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

// appendNotes adds notes about a failed cleanup and about a missing audit log.
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

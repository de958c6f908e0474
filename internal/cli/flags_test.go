package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// FuzzSettings: a command line and an environment are refused with the name of the flag or variable, or give valid settings.
func FuzzSettings(f *testing.F) {
	f.Add("--timeout\n5\n--volume\n/a:/b:rw\n--env\nA=b", "memory", "64m")
	f.Add("--uid\n0\n--gid=-1\n-it\n--\nls", "volume", "/x:/y\n:\n/z")
	f.Add("--network=localhost\n--hostname=\n--workdir\n../x\n--root", "cpus", "NaN")
	f.Fuzz(func(t *testing.T, line, variable, value string) {
		o, c := &execOptions{}, &Invocation{}
		flags := pflag.NewFlagSet("exec", pflag.ContinueOnError)
		flags.SetInterspersed(false)
		o.addLimitFlags(flags)
		o.addEnvironmentFlags(flags)
		o.addStrengthFlags(flags)
		o.addOutputFlags(flags, c)
		if err := flags.Parse(strings.Split(line, "\n")); err != nil {
			return
		}
		name := EnvironmentName(variable)
		lookup := func(asked string) (string, bool) {
			if asked == name {
				return value, true
			}
			return "", false
		}
		if err := ReadEnvironment(flags, lookup, "sandbox-run exec --help"); err != nil {
			if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "; try: ") && !hasAdvice(err) {
				t.Errorf("%s=%q: %v", name, value, err)
			}
			return
		}
		o.spill = "" // complete would make the directory
		if err := o.complete(c, flags); err != nil {
			return
		}
		l := o.spec.Limits
		if l.Wall < 0 || l.Grace < 0 || l.CPUTime < 0 || l.CPUs < 0 || l.Inodes < 0 || l.Processes < 0 || l.OpenFiles < 0 {
			t.Errorf("%q made %+v", line, l)
		}
		if flags.Changed("uid") && o.spec.User.UID == 0 || flags.Changed("gid") && o.spec.User.GID == 0 {
			t.Errorf("%q is root: %+v", line, o.spec.User)
		}
		for _, v := range o.spec.Volumes {
			if again, err := sandbox.ParseVolume(v.String()); err != nil || again != v {
				t.Errorf("%+v is written as %q, read as %+v, %v", v, v.String(), again, err)
			}
		}
	})
}

// The streams of a program are merged where this process has one place for both, unless a flag or its variable says otherwise.
func TestMergeOutput(t *testing.T) {
	pipe := func() *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return w
	}
	one, other := pipe(), pipe()
	for _, c := range []struct {
		args, variable string
		apart          bool // standard output and standard error are two pipes
		want, fails    bool
	}{
		{want: true},
		{apart: true},
		{args: "--merge-output", apart: true, want: true},
		{args: "--merge-output=false"},
		{args: "--no-merge-output"},
		{variable: "false"},
		{variable: "true", apart: true, want: true},
		{variable: "true", args: "--no-merge-output"},
		{variable: "false", args: "--merge-output", want: true},
		{args: "--merge-output --no-merge-output", fails: true},
		{args: "--json"},
		{args: "--json --merge-output", want: true},
		{args: "--format ndjson"},
		{args: "--test"},
		{args: "--test --merge-output", want: true},
	} {
		o, c2 := &runOptions{}, &Invocation{Std: Streams{Out: one, Err: one}}
		if c.apart {
			c2.Std.Err = other
		}
		flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
		o.addStrengthFlags(flags)
		o.boxOptions.addEnvironmentFlags(flags)
		o.addOutputFlags(flags, c2)
		o.addLanguageFlags(flags)
		err := flags.Parse(strings.Fields(c.args))
		if err == nil {
			err = ReadEnvironment(flags, func(name string) (string, bool) {
				return map[string]string{"SANDBOX_RUN_MERGE_OUTPUT": c.variable}[name], true
			}, "")
		}
		if err == nil {
			err = o.boxOptions.complete(c2, flags)
		}
		if (err != nil) != c.fails || err == nil && o.policy.MergeOutput != c.want {
			t.Errorf("%+v: %v, %v", c, o.policy.MergeOutput, err)
		}
	}
}

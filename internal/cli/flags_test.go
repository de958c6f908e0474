package cli

import (
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

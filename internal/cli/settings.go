package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// parsed is a flag whose text is read by a function when it is given.
type parsed[T any] struct {
	into *T
	read func(string) (T, error)
	text string // as given; before that, the default that help shows
}

func (p *parsed[T]) Set(s string) error {
	v, err := p.read(s)
	if err != nil {
		return err
	}
	*p.into, p.text = v, s
	return nil
}

func (p *parsed[T]) String() string { return p.text }
func (p *parsed[T]) Type() string   { return "" }

// NewParsed makes the value of a flag; shown is the default as help writes it.
func NewParsed[T any](into *T, shown string, read func(string) (T, error)) pflag.Value {
	return &parsed[T]{into: into, read: read, text: shown}
}

// AddParsed adds a flag; shown is the default as help writes it.
func AddParsed[T any](fs *pflag.FlagSet, into *T, name, shown, usage string, read func(string) (T, error)) {
	fs.Var(NewParsed(into, shown, read), name, usage)
}

// List is a flag that may be given several times.
type List struct {
	Values []string
	Into   *[]string // gets the values as well; nil: nothing does
	Commas bool      // one text may hold several values
}

func (l *List) Set(s string) error {
	given := []string{s}
	if l.Commas {
		given = strings.Split(s, ",")
		for i := range given {
			if given[i] = strings.TrimSpace(given[i]); given[i] == "" {
				return errors.New("there is a name missing; write it like ls,find,grep")
			}
		}
	}
	l.Values = append(l.Values, given...)
	if l.Into != nil {
		*l.Into = l.Values
	}
	return nil
}

func (l *List) String() string { return "" }
func (l *List) Type() string   { return "" }

// single is a flag whose second value would hide the first.
type single struct {
	into  *string
	given bool
}

func (s *single) Set(text string) error {
	if s.given {
		return errors.New("it is given twice")
	}
	*s.into, s.given = text, true
	return nil
}

func (s *single) String() string { return "" }
func (s *single) Type() string   { return "" }

// EnvironmentName is the variable that stands in for a flag.
func EnvironmentName(flag string) string {
	return environmentStem + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// NoVariable marks flags that have none: what is called so elsewhere is something else.
const NoVariable = "no-variable"

// fromVariable marks flags whose value came from the environment, so that errors name the source.
const fromVariable = "from-variable"

// ReadEnvironment sets every flag that was not given from its variable. A variable that is empty
// counts as unset: that is how shells and unit files switch one off. Lists have one value per line.
func ReadEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool), hint string) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		// Two flags are no settings; a variable called after the second is likely to mean something else.
		if f.Changed || f.Name == "help" || f.Name == "version" || failed != nil || len(f.Annotations[NoVariable]) > 0 {
			return
		}
		name := EnvironmentName(f.Name)
		value, _ := lookup(name)
		if value == "" {
			return
		}
		values := []string{value}
		if _, ok := f.Value.(*List); ok {
			values = strings.FieldsFunc(value, func(r rune) bool { return r == '\n' })
		}
		for _, v := range values {
			if err := f.Value.Set(v); err != nil {
				failed = &sandbox.Error{
					Op: fmt.Sprintf("%s=%q", name, v), Kind: sandbox.ErrInvalid, Err: PlainCause(err), Hint: hintOfVariable(f, name, err, hint),
				}
				return
			}
		}
		f.Changed = true
		Annotate(f, fromVariable, name)
	})
	return failed
}

// given reports whether a flag stands on the command line itself.
func given(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f.Changed && len(f.Annotations[fromVariable]) == 0
}

func Annotate(f *pflag.Flag, key, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = []string{value}
}

// NameSource turns the field an error is about into what the user wrote: a flag, or a variable.
func NameSource(flags *pflag.FlagSet, err error, hint string) error {
	var e *sandbox.Error
	var problem *client.Problem // a server names fields of what it refuses, too
	if !errors.As(err, &e) || !errors.Is(e.Kind, sandbox.ErrInvalid) && !(errors.As(err, &problem) && len(problem.Errors) > 0 && !problem.Missing()) {
		return err
	}
	named := *e
	field := e.Op
	if field == "user" { // one field there, two flags here; the message says which id
		field = "uid"
		if f := flags.Lookup(field); f != nil && !f.Changed {
			field = "gid"
		}
	}
	if f := flags.Lookup(field); f != nil {
		named.Op = "--" + f.Name
		if variable := f.Annotations[fromVariable]; len(variable) > 0 {
			named.Op = variable[0]
		}
		hint = hintOfFlag(f, err, hint)
	} else if hasAdvice(err) {
		hint = ""
	}
	named.Hint = cmp.Or(e.Hint, hint)
	return &named
}

// hasAdvice reports whether the text of an error ends with the next step.
func hasAdvice(err error) bool {
	for _, advice := range []string{"; write it like ", "; use one of ", "; leave out "} {
		if strings.Contains(err.Error(), advice) {
			return true
		}
	}
	return false
}

// hintOfFlag is the next step for a wrong value of a flag: the default where it is a value and the error has no advice, else help.
func hintOfFlag(f *pflag.Flag, err error, help string) string {
	_, isNumber := f.Value.(*limitFlag)
	switch {
	case hasAdvice(err):
		return ""
	case isNumber && f.DefValue != "":
		return "--" + f.Name + " " + f.DefValue + ", the default"
	}
	return help
}

// hintOfVariable is the next step for a wrong value of a variable.
func hintOfVariable(f *pflag.Flag, name string, err error, help string) string {
	hint := hintOfFlag(f, err, help)
	if value, ok := strings.CutPrefix(hint, "--"+f.Name+" "); ok {
		return name + "=" + value
	}
	return hint
}

// isFlag reports whether a value is a flag of the command, and was taken for the value of the flag before it.
func isFlag(flags *pflag.FlagSet, value string) bool {
	name, _, _ := strings.Cut(value, "=")
	if long, ok := strings.CutPrefix(name, "--"); ok {
		return flags.Lookup(long) != nil
	}
	short, ok := strings.CutPrefix(name, "-")
	return ok && len(short) == 1 && flags.ShorthandLookup(short) != nil
}

// ReadSize reads a size of more than zero. It and its siblings are functions: variables would be made at every start.
func ReadSize(s string) (sandbox.Size, error) { return sandbox.Positive(sandbox.ParseSize)(s) }

// ReadDuration reads a duration of more than zero.
func ReadDuration(s string) (time.Duration, error) { return sandbox.Positive(sandbox.ParseDuration)(s) }

// ReadCount reads a whole number of more than zero.
func ReadCount(s string) (int, error) { return sandbox.Positive(sandbox.ParseCount)(s) }

// ReadCores reads a number of cores of more than zero.
func ReadCores(s string) (float64, error) { return sandbox.Positive(sandbox.ParseCores)(s) }

// limitFlag is a flag that sets a limit.
type limitFlag struct {
	row  *sandbox.Limit
	into *sandbox.Limits
	text string // as given; before that, the default that help shows
}

func (f *limitFlag) Set(s string) error {
	if err := f.row.Parse(f.into, s); err != nil {
		return err
	}
	f.text = s
	return nil
}

func (f *limitFlag) String() string { return f.text }
func (f *limitFlag) Type() string   { return "" }

// AddLimit adds the flag of a limit. Help shows its value in defaults.
func AddLimit(fs *pflag.FlagSet, row *sandbox.Limit, prefix, usage string, into, defaults *sandbox.Limits) {
	f := &limitFlag{row: row, into: into}
	switch v := row.Field(defaults).(type) {
	case *sandbox.Size:
		f.text = BriefSize(*v)
	case *time.Duration:
		if f.text = v.String(); *v < 2*time.Minute {
			f.text = strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + "s"
		}
	default:
		f.text = row.Plain(defaults)
	}
	if !row.IsSet(defaults) {
		f.text = ""
	}
	fs.Var(f, prefix+row.Flag(), usage)
}

// AddCompileLimits adds the flags of limits of compiling that can be set.
func AddCompileLimits(fs *pflag.FlagSet, prefix string, into, defaults *sandbox.Limits) {
	for _, row := range sandbox.AllLimits() {
		if row.CompileDoc != "" {
			AddLimit(fs, row, prefix+"compile-", cmp.Or(row.CeilingUsage, row.Usage)+" of compiling", into, defaults)
		}
	}
}

// addFields adds the flags of a group of a request's settings.
func addFields(fs *pflag.FlagSet, group executor.Group, fields []executor.Field) {
	for _, f := range fields {
		if f.Group != group || f.Usage == "" {
			continue
		}
		name, usage := f.Flag(), f.Usage
		if f.Words != "" {
			usage += ": " + f.Words
		}
		switch v := f.Value.(type) {
		case *bool:
			fs.BoolVar(v, name, false, usage)
		case *string:
			fs.StringVar(v, name, f.Shown, usage)
		case *[]string:
			fs.Var(&List{Into: v, Commas: true}, name, usage)
		case *int:
			AddParsed(fs, v, name, f.Shown, usage, ReadCount)
		case *sandbox.NetworkMode:
			AddParsed(fs, v, name, f.Shown, usage, sandbox.ParseNetwork)
		case *sandbox.ScratchMode:
			AddParsed(fs, v, name, f.Shown, usage, sandbox.ParseScratch)
		case *sandbox.Tier:
			AddParsed(fs, v, name, f.Shown, usage, sandbox.ParseTier)
		default:
			panic(fmt.Sprintf("flag %s: no way to read %T", name, v))
		}
	}
}

// nearestFlag finds the flag somebody probably meant.
func nearestFlag(flags *pflag.FlagSet, name string) string {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
	return nearest.Word(name, all)
}

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// parsed is a flag value that a function parses.
type parsed[T any] struct {
	into *T
	read func(string) (T, error)
	text string // the value as given; before that, the default in help
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

// NewParsed makes a flag value that read parses into into. shown is the default in help.
func NewParsed[T any](into *T, shown string, read func(string) (T, error)) pflag.Value {
	return &parsed[T]{into: into, read: read, text: shown}
}

// AddParsed adds a flag whose value read parses into into. shown is the default in help.
func AddParsed[T any](fs *pflag.FlagSet, into *T, name, shown, usage string, read func(string) (T, error)) {
	fs.Var(NewParsed(into, shown, read), name, usage)
}

// List is the value of a flag that may be repeated.
type List struct {
	Values []string
	Into   *[]string // if not nil, a second place for the values
	Commas bool      // commas separate values
	Check  func(string) error
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
	for _, value := range given {
		if l.Check == nil {
			break
		}
		if err := l.Check(value); err != nil {
			return err
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

// single is the value of a flag that must not be repeated.
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

// EnvironmentName returns the name of the variable that sets the default of a flag.
func EnvironmentName(flag string) string {
	return environmentStem + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// NoVariable is the annotation of flags without a variable: a flag of another command with the same name has another meaning.
const NoVariable = "no-variable"

// FlagVariable returns the variable that gives a flag its default, or "" if the flag has none.
func FlagVariable(f *pflag.Flag) string {
	// help and version are no settings, and SANDBOX_RUN_VERSION probably has another meaning.
	if f.Name == "help" || f.Name == "version" || len(f.Annotations[NoVariable]) > 0 {
		return ""
	}
	return EnvironmentName(f.Name)
}

// fromVariable is the annotation of flags that a variable has set: errors name the variable.
const fromVariable = "from-variable"

// ReadEnvironment sets every flag that is not on the command line from its variable. An empty variable counts as unset: shells and unit
// files disable variables that way. The variable of a List has one value per line. Errors are of kind sandbox.ErrInvalid, with the hint.
func ReadEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool), hint string) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		name := FlagVariable(f)
		if f.Changed || name == "" || failed != nil {
			return
		}
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

// isOnCommandLine reports whether a flag is given on the command line, and not by its variable.
func isOnCommandLine(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f.Changed && len(f.Annotations[fromVariable]) == 0
}

// Annotate sets an annotation of a flag.
func Annotate(f *pflag.Flag, key, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = []string{value}
}

// NameSource replaces the field that an error names by the flag or the variable that has set it. It adds the hint to an error without
// one, and returns errors that are not about a field unchanged.
func NameSource(flags *pflag.FlagSet, err error, hint string) error {
	var e *sandbox.Error
	var problem *client.Problem
	if !errors.As(err, &e) {
		return err
	}
	fields := errors.As(err, &problem) && len(problem.Errors) > 0 && !problem.Missing() // a server names fields of a request, too
	if !errors.Is(e.Kind, sandbox.ErrInvalid) && !fields {
		return err
	}
	named := *e
	if f := flags.Lookup(e.Op); f != nil {
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
	_, _, found := wire.CutAdvice(err.Error())
	return found
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

// ReadSize parses a size of more than zero. It is a function and not a variable, because initialisers cost time at every start.
func ReadSize(s string) (sandbox.Size, error) { return sandbox.Positive(sandbox.ParseSize)(s) }

// ReadDuration parses a duration of more than zero.
func ReadDuration(s string) (time.Duration, error) { return sandbox.Positive(sandbox.ParseDuration)(s) }

// ReadCount parses a whole number of more than zero.
func ReadCount(s string) (int, error) { return sandbox.Positive(sandbox.ParseCount)(s) }

// ReadCores parses a number of cores of more than zero.
func ReadCores(s string) (float64, error) { return sandbox.Positive(sandbox.ParseCores)(s) }

// limitFlag is the value of a flag that sets a limit.
type limitFlag struct {
	row  *sandbox.Limit
	into *sandbox.Limits
	text string // the value as given; before that, the default in help
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

// AddLimit adds the flag of a limit. The value in defaults is the default in help.
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

// AddCompileLimits adds the flags of the limits that the compile phase has.
func AddCompileLimits(fs *pflag.FlagSet, prefix string, into, defaults *sandbox.Limits) {
	for _, row := range sandbox.AllLimits() {
		if row.CompileDoc != "" {
			AddLimit(fs, row, prefix+"compile-", cmp.Or(row.CeilingUsage, row.Usage)+" of compiling", into, defaults)
		}
	}
}

// addFields adds the flags of the settings of one group.
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
			fs.StringVarP(v, name, f.Short, f.Shown, usage)
		case *[]string:
			fs.Var(&List{Into: v, Commas: true}, name, usage)
		case *int:
			AddParsed(fs, v, name, f.Shown, usage, ReadCount)
		case *network.Policy:
			addNetwork(fs, v, name, f.Shown, usage)
		case *sandbox.ScratchMode:
			AddParsed(fs, v, name, f.Shown, usage, sandbox.ParseScratch)
		case *sandbox.Tier:
			AddParsed(fs, v, name, f.Shown, usage, sandbox.ParseTier)
		default:
			panic(fmt.Sprintf("flag %s: no way to read %T", name, v))
		}
	}
}

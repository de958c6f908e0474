package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/client"
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

// addParsed adds a flag; shown is the default as help writes it.
func addParsed[T any](fs *pflag.FlagSet, into *T, name, shown, usage string, read func(string) (T, error)) {
	fs.Var(&parsed[T]{into: into, read: read, text: shown}, name, usage)
}

// list is a flag that may be given several times.
type list struct {
	values []string
	commas bool // one text may hold several values
}

func (l *list) Set(s string) error {
	if !l.commas {
		l.values = append(l.values, s)
		return nil
	}
	for _, v := range strings.Split(s, ",") {
		if v = strings.TrimSpace(v); v == "" {
			return errors.New("there is a name missing; write it like ls,find,grep")
		}
		l.values = append(l.values, v)
	}
	return nil
}

func (l *list) String() string { return "" }
func (l *list) Type() string   { return "" }

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

// environmentName is the variable that stands in for a flag.
func environmentName(flag string) string {
	return environmentStem + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// noVariable marks flags that have none: what is called so elsewhere is something else.
const noVariable = "no-variable"

// fromVariable marks flags whose value came from the environment, so that errors name the source.
const fromVariable = "from-variable"

// fromEnvironment sets every flag that was not given from its variable. A variable that is empty
// counts as unset: that is how shells and unit files switch one off. Lists have one value per line.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool), hint string) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		// Two flags are no settings; a variable called after the second is likely to mean something else.
		if f.Changed || f.Name == "help" || f.Name == "version" || failed != nil || len(f.Annotations[noVariable]) > 0 {
			return
		}
		name := environmentName(f.Name)
		value, _ := lookup(name)
		if value == "" {
			return
		}
		values := []string{value}
		if _, ok := f.Value.(*list); ok {
			values = strings.FieldsFunc(value, func(r rune) bool { return r == '\n' })
		}
		for _, v := range values {
			if err := f.Value.Set(v); err != nil {
				failed = &sandbox.Error{
					Op: fmt.Sprintf("%s=%q", name, v), Kind: sandbox.ErrInvalid, Err: plainCause(err), Hint: hint,
				}
				return
			}
		}
		f.Changed = true
		annotate(f, fromVariable, name)
	})
	return failed
}

// given reports whether a flag stands on the command line itself.
func given(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f.Changed && len(f.Annotations[fromVariable]) == 0
}

func annotate(f *pflag.Flag, key, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = []string{value}
}

// nameSource turns the field an error is about into what the user wrote: a flag, or a variable.
func nameSource(flags *pflag.FlagSet, err error, hint string) error {
	var e *sandbox.Error
	var problem *client.Problem // a server names fields of what it refuses, too
	if !errors.As(err, &e) || !errors.Is(e.Kind, sandbox.ErrInvalid) && !(errors.As(err, &problem) && len(problem.Errors) > 0 && !problem.Missing()) {
		return err
	}
	named := *e
	if named.Hint == "" {
		named.Hint = hint
	}
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
	}
	return &named
}

var errNotPositive = errors.New("must be more than zero")

// readPositive wraps the reading of a limit: a zero would mean "the default" further in, and nobody
// who writes a zero wants that.
func readPositive[T int | float64 | time.Duration | sandbox.Size](read func(string) (T, error)) func(string) (T, error) {
	return func(s string) (T, error) {
		if strings.HasPrefix(strings.TrimSpace(s), "-") {
			return 0, errNotPositive
		}
		v, err := read(s)
		if err == nil && v <= 0 {
			err = errNotPositive
		}
		return v, err
	}
}

// isDecimal reports whether s is digits with at most one point: no signs, exponents, NaN or Inf.
func isDecimal(s string) bool {
	return s != "" && s != "." && strings.Trim(s, "0123456789.") == "" && strings.Count(s, ".") <= 1
}

// readDuration accepts Go's forms and plain seconds.
func readDuration(s string) (time.Duration, error) {
	wrong := fmt.Errorf("not a duration; write it like 5, 1.5s, 500ms or 2m")
	if isDecimal(s) {
		seconds, err := strconv.ParseFloat(s, 64)
		if err != nil || seconds >= float64(math.MaxInt64)/float64(time.Second) {
			return 0, errors.New("longer than this machine can count")
		}
		return time.Duration(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, wrong
	}
	return d, nil
}

func readCores(s string) (float64, error) {
	if !isDecimal(s) {
		return 0, errors.New("not a number of cores; write it like 1, 0.5 or 2")
	}
	return strconv.ParseFloat(s, 64)
}

func readCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errors.New("more than this machine can count")
	case err != nil || strings.HasPrefix(s, "+"):
		return 0, errors.New("not a whole number")
	}
	return n, nil
}

// nearestFlag finds the flag somebody probably meant.
func nearestFlag(flags *pflag.FlagSet, name string) string {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
	return nearest.Word(name, all)
}

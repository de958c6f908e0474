package full

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/internal/yamlite"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// noSetting marks flags that have no place in a file of settings.
const noSetting = "no-setting"

// readSettings sets flags from a file of settings: those that neither the command line nor a variable has set.
func readSettings(flags *pflag.FlagSet, path string) error {
	data, err := readBounded(path)
	if err != nil {
		return &sandbox.Error{Op: "config", Kind: sandbox.ErrInvalid, Err: err, Hint: "--config FILE, with a file that exists and is readable"}
	}
	doc, err := yamlite.Decode(data)
	if err != nil {
		return sandbox.Invalid("config", "%s: %w", path, err)
	}
	switch doc := doc.(type) {
	case nil:
		return nil
	case yamlite.Map:
		s := &settingsFile{flags: flags, path: path}
		return s.read("", doc)
	default:
		return sandbox.Invalid("config", "%s: it is %s, not a mapping of names to values", path, yamlite.Kind(doc))
	}
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, yamlite.MaxSize+1))
}

type settingsFile struct {
	flags *pflag.FlagSet
	path  string
}

// read takes a mapping. One within another has its name in front: max: {memory: 1g} is max_memory: 1g.
func (s *settingsFile) read(prefix string, m yamlite.Map) error {
	for _, p := range m {
		name := strings.ReplaceAll(p.Key, "_", "-")
		if prefix != "" {
			name = prefix + "-" + name
		}
		f := s.flags.Lookup(name)
		if nested, ok := p.Value.(yamlite.Map); ok {
			if err := s.read(name, nested); err != nil {
				return err
			}
			continue
		}
		if f == nil || len(f.Annotations[noSetting]) > 0 || name == "help" {
			return s.unknown(p, name)
		}
		if f.Changed {
			continue
		}
		if err := set(f, p.Value); err != nil {
			return s.wrong(p, "%s: %w", p.Key, cli.PlainCause(err))
		}
	}
	return nil
}

// set gives a flag the value of a file. It does not mark it as changed: the file is not what the user said just now.
func set(f *pflag.Flag, value any) error {
	values := []any{value}
	if several, ok := value.([]any); ok {
		if _, ok := f.Value.(*cli.List); !ok {
			return errors.New("one value is wanted, not a list")
		}
		values = several
	}
	for _, v := range values {
		var text string
		switch v := v.(type) {
		case string:
			text = v
		case yamlite.Number:
			text = string(v)
		case bool:
			text = fmt.Sprint(v)
		default:
			return fmt.Errorf("it is %s; a text, a number, true or false is wanted", yamlite.Kind(v))
		}
		if text == "" {
			return errors.New("it is empty")
		}
		if err := f.Value.Set(text); err != nil {
			return fmt.Errorf("%q: %w", text, cli.PlainCause(err))
		}
	}
	return nil
}

func (s *settingsFile) unknown(p yamlite.Pair, name string) error {
	var all []string
	s.flags.VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations[noSetting]) == 0 && f.Name != "help" {
			all = append(all, f.Name)
		}
	})
	if like := nearest.Word(name, all); like != "" {
		return s.wrong(p, "unknown setting %q; %s?", p.Key, strings.ReplaceAll(like, "-", "_"))
	}
	return s.wrong(p, "unknown setting %q", p.Key)
}

func (s *settingsFile) wrong(p yamlite.Pair, format string, args ...any) error {
	where := s.path
	if p.Line > 0 {
		where = fmt.Sprintf("%s, line %d", s.path, p.Line)
	}
	return &sandbox.Error{
		Op: "config " + where, Kind: sandbox.ErrInvalid, Err: fmt.Errorf(format, args...), Hint: cli.CommandName + " serve --help",
	}
}

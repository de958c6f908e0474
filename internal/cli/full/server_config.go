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

// noSetting is the annotation of flags that can not stand in a settings file.
const noSetting = "no-setting"

// readSettings sets flags from a settings file, except flags that the command line or a variable has set.
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
		return s.readMapping("", doc)
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

// readMapping sets the flags of a mapping. The name of a nested mapping is the prefix of its names: max: {memory: 1g} is max_memory: 1g.
func (s *settingsFile) readMapping(prefix string, m yamlite.Map) error {
	for _, p := range m {
		name := strings.ReplaceAll(p.Key, "_", "-")
		if prefix != "" {
			name = prefix + "-" + name
		}
		if p.Key == "mode" && s.flags.Lookup(prefix) != nil { // max_network: {mode: allow, …}, as requests have it
			name = prefix
		}
		f := s.flags.Lookup(name)
		if nested, ok := p.Value.(yamlite.Map); ok && f != nil && f.Name == "registries" {
			p.Value = joinPairs(nested)
		} else if ok {
			if err := s.readMapping(name, nested); err != nil {
				return err
			}
			continue
		}
		if f == nil || len(f.Annotations[noSetting]) > 0 || name == "help" {
			return s.unknownSettingError(p, name)
		}
		if f.Changed {
			continue
		}
		if err := setFlag(f, p.Value); err != nil {
			return s.settingError(p, "%s: %w", p.Key, cli.PlainCause(err))
		}
	}
	return nil
}

// joinPairs turns a mapping into a list of NAME=VALUE. A name may have several values.
func joinPairs(m yamlite.Map) (list []any) {
	for _, p := range m {
		values, several := p.Value.([]any)
		if !several {
			values = []any{p.Value}
		}
		for _, v := range values {
			if text, ok := v.(string); ok {
				v = p.Key + "=" + text
			}
			list = append(list, v)
		}
	}
	return list
}

// setFlag sets a flag to a value of the file. The flag does not count as changed: that means the command line or a variable.
func setFlag(f *pflag.Flag, value any) error {
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

func (s *settingsFile) unknownSettingError(p yamlite.Pair, name string) error {
	var all []string
	s.flags.VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations[noSetting]) == 0 && f.Name != "help" {
			all = append(all, f.Name)
		}
	})
	if like := nearest.Word(name, all); like != "" {
		return s.settingError(p, "unknown setting %q; %s?", p.Key, strings.ReplaceAll(like, "-", "_"))
	}
	return s.settingError(p, "unknown setting %q", p.Key)
}

func (s *settingsFile) settingError(p yamlite.Pair, format string, args ...any) error {
	where := s.path
	if p.Line > 0 {
		where = fmt.Sprintf("%s, line %d", s.path, p.Line)
	}
	return &sandbox.Error{
		Op: "config " + where, Kind: sandbox.ErrInvalid, Err: fmt.Errorf(format, args...), Hint: cli.CommandName + " serve --help",
	}
}

package key

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Limits are what a key may ask for, and how often. What is zero is left to the server.
type Limits struct {
	Max         sandbox.Limits // of one run; a server's own ceilings hold besides
	MaxCompile  sandbox.Limits // of compiling
	Rate        float64        // runs a second, in the long run
	Burst       int            // runs at once that Rate does not hold up; 0 is a second's worth
	Concurrency int            // runs at a time
}

// limit is one of them, under the name that flags, the file and answers have for it.
type limit struct {
	name string
	read func(l *Limits, text string) error
	show func(l Limits) string // as read takes it; empty where it is not set
}

const notPositive = "must be more than zero"

func duration(name string, of func(*Limits) *time.Duration) limit {
	return limit{name, func(l *Limits, text string) error {
		d, err := time.ParseDuration(text)
		if seconds, number := strconv.ParseFloat(text, 64); number == nil && seconds < math.MaxInt64/float64(time.Second) {
			d, err = time.Duration(seconds*float64(time.Second)), nil
		}
		switch {
		case err != nil:
			return errors.New("not a duration; write it like 5, 1.5s, 500ms or 2m")
		case d <= 0:
			return errors.New(notPositive)
		}
		*of(l) = d
		return nil
	}, func(l Limits) string {
		if d := *of(&l); d != 0 {
			return d.String()
		}
		return ""
	}}
}

func size(name string, of func(*Limits) *sandbox.Size) limit {
	return limit{name, func(l *Limits, text string) error {
		s, err := sandbox.ParseSize(text)
		if err == nil && s == 0 {
			err = errors.New(notPositive)
		}
		if err == nil {
			*of(l) = s
		}
		return err
	}, func(l Limits) string {
		if s := *of(&l); s != 0 {
			return strings.ReplaceAll(exactly(s), " ", "")
		}
		return ""
	}}
}

// exactly is a size that reads as the very same again: Size's own text is rounded.
func exactly(s sandbox.Size) string {
	if text := s.String(); !strings.Contains(text, ".") {
		return text
	}
	return strconv.FormatUint(uint64(s), 10)
}

func count(name string, of func(*Limits) *int) limit {
	return limit{name, func(l *Limits, text string) error {
		n, err := strconv.Atoi(text)
		switch {
		case err != nil:
			return errors.New("not a whole number")
		case n <= 0:
			return errors.New(notPositive)
		}
		*of(l) = n
		return nil
	}, func(l Limits) string {
		if n := *of(&l); n != 0 {
			return strconv.Itoa(n)
		}
		return ""
	}}
}

func number(name string, of func(*Limits) *float64, units map[string]float64) limit {
	return limit{name, func(l *Limits, text string) error {
		digits, unit, per := strings.Cut(text, "/")
		factor := 1.0
		if per {
			if factor = units[unit]; factor == 0 {
				return errors.New("not a rate; write it like 5/s, 30/m or 100/h")
			}
		}
		f, err := strconv.ParseFloat(digits, 64)
		switch {
		case err != nil || strings.Trim(digits, "0123456789.") != "":
			return errors.New("not a number")
		case f <= 0:
			return errors.New(notPositive)
		}
		*of(l) = f / factor
		return nil
	}, func(l Limits) string {
		if f := *of(&l); f != 0 {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
		return ""
	}}
}

var rates = map[string]float64{"s": 1, "m": 60, "h": 3600}

var limits = []limit{
	duration("timeout", func(l *Limits) *time.Duration { return &l.Max.Wall }),
	number("cpus", func(l *Limits) *float64 { return &l.Max.CPUs }, nil),
	duration("cpu_time", func(l *Limits) *time.Duration { return &l.Max.CPUTime }),
	size("memory", func(l *Limits) *sandbox.Size { return &l.Max.Memory }),
	size("disk", func(l *Limits) *sandbox.Size { return &l.Max.Disk }),
	count("inodes", func(l *Limits) *int { return &l.Max.Inodes }),
	count("pids", func(l *Limits) *int { return &l.Max.Processes }),
	count("open_files", func(l *Limits) *int { return &l.Max.OpenFiles }),
	size("output_limit", func(l *Limits) *sandbox.Size { return &l.Max.Output }),
	duration("compile_timeout", func(l *Limits) *time.Duration { return &l.MaxCompile.Wall }),
	size("compile_memory", func(l *Limits) *sandbox.Size { return &l.MaxCompile.Memory }),
	number("rate", func(l *Limits) *float64 { return &l.Rate }, rates),
	count("burst", func(l *Limits) *int { return &l.Burst }),
	count("concurrency", func(l *Limits) *int { return &l.Concurrency }),
}

// LimitNames lists what a key's limits are called.
func LimitNames() (names []string) {
	for _, l := range limits {
		names = append(names, l.name)
	}
	return names
}

// Set reads one limit. Names may be written with dashes, as flags are.
func (l *Limits) Set(name, text string) error {
	name = strings.ReplaceAll(strings.TrimSpace(name), "-", "_")
	for _, one := range limits {
		if one.name == name {
			if err := one.read(l, strings.TrimSpace(text)); err != nil {
				return fmt.Errorf("%s %q: %w", name, text, err)
			}
			return nil
		}
	}
	if like := nearest.Word(name, LimitNames()); like != "" {
		return fmt.Errorf("unknown limit %q; %s?", name, like)
	}
	return fmt.Errorf("unknown limit %q; one of %s", name, strings.Join(LimitNames(), ", "))
}

// ParseLimits reads "memory=1g,rate=5/s".
func ParseLimits(text string) (l Limits, err error) {
	for _, part := range strings.Split(text, ",") {
		name, value, found := strings.Cut(part, "=")
		if !found {
			return Limits{}, fmt.Errorf("%q is no limit; write it like memory=1g,rate=5/s,concurrency=4", part)
		}
		if err := l.Set(name, value); err != nil {
			return Limits{}, err
		}
	}
	return l, nil
}

// String is what ParseLimits reads; empty where there are none.
func (l Limits) String() string {
	var parts []string
	for _, one := range limits {
		if text := one.show(l); text != "" {
			parts = append(parts, one.name+"="+text)
		}
	}
	return strings.Join(parts, ",")
}

// MarshalJSON writes those that are set, as Set reads them.
func (l Limits) MarshalJSON() ([]byte, error) {
	set := map[string]string{}
	for _, one := range limits {
		if text := one.show(l); text != "" {
			set[one.name] = text
		}
	}
	return json.Marshal(set)
}

// UnmarshalJSON reads what MarshalJSON writes. A name that is no limit is an error: it would not be kept.
func (l *Limits) UnmarshalJSON(data []byte) error {
	var set map[string]string
	if err := json.Unmarshal(data, &set); err != nil {
		return err
	}
	*l = Limits{}
	for name, text := range set {
		if err := l.Set(name, text); err != nil {
			return err
		}
	}
	return nil
}

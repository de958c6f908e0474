package key

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Limits are the most that a key may ask for, and how often. A limit of zero leaves the decision to the server.
type Limits struct {
	Max         sandbox.Limits // of one run; the server's ceilings hold as well
	MaxCompile  sandbox.Limits // of a compilation
	Network     network.Mode   // of both
	Rate        float64        // runs per second, on average
	Burst       int            // runs that may exceed Rate at once; 0 is Concurrency, or the runs of one second if that is more
	Concurrency int            // runs at the same time
}

// limit is one limit of a key, with its name in flags, in the file and in answers.
type limit struct {
	name string
	read func(l *Limits, text string) error
	show func(l *Limits) string // in the form that read accepts; empty if it is not set
}

// ceiling returns the limit of a key for a limit of runs or of compilations.
func ceiling(prefix string, row *sandbox.Limit, of func(*Limits) *sandbox.Limits) limit {
	return limit{
		name: prefix + row.Name,
		read: func(l *Limits, text string) error { return row.Parse(of(l), text) },
		show: func(l *Limits) string {
			if !row.IsSet(of(l)) {
				return ""
			}
			return row.Plain(of(l))
		},
	}
}

func count(name string, of func(*Limits) *int) limit {
	return limit{name, func(l *Limits, text string) (err error) {
		*of(l), err = sandbox.Positive(sandbox.ParseCount)(text)
		return err
	}, func(l *Limits) string {
		if *of(l) == 0 {
			return ""
		}
		return strconv.Itoa(*of(l))
	}}
}

func readNetwork(l *Limits, text string) (err error) {
	l.Network, err = sandbox.ParseNetwork(text)
	if e := new(sandbox.Error); errors.As(err, &e) {
		return e.Err // the field is named by the caller
	}
	return err
}

// readRate reads runs per second, or runs with a unit: 30/m.
func readRate(l *Limits, text string) error {
	digits, unit, per := strings.Cut(text, "/")
	factor := 1.0
	if per {
		if factor = map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]; factor == 0 {
			return errors.New("not a rate; write it like 5/s, 30/m or 100/h")
		}
	}
	f, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil || !sandbox.IsDecimal(digits):
		return errors.New("not a number")
	case f <= 0:
		return errors.New("must be more than zero")
	}
	l.Rate = f / factor
	return nil
}

func showRate(l *Limits) string {
	if l.Rate == 0 {
		return ""
	}
	return strconv.FormatFloat(l.Rate, 'f', -1, 64)
}

// allLimits returns the ceilings that keys can have and the limits that only keys have.
func allLimits() (all []limit) {
	for _, row := range sandbox.AllLimits() {
		if !row.NoCeiling {
			all = append(all, ceiling("", row, func(l *Limits) *sandbox.Limits { return &l.Max }))
		}
	}
	for _, row := range sandbox.AllLimits() {
		if row.CompileDoc != "" {
			all = append(all, ceiling("compile_", row, func(l *Limits) *sandbox.Limits { return &l.MaxCompile }))
		}
	}
	network := limit{"network", readNetwork, func(l *Limits) string { return string(l.Network) }}
	return append(all, network, limit{"rate", readRate, showRate}, count("burst", func(l *Limits) *int { return &l.Burst }),
		count("concurrency", func(l *Limits) *int { return &l.Concurrency }))
}

// LimitNames lists the names of a key's limits.
func LimitNames() (names []string) {
	for _, l := range allLimits() {
		names = append(names, l.name)
	}
	return names
}

// Set reads one limit. Names may have dashes, as flags do.
func (l *Limits) Set(name, text string) error {
	name = strings.ReplaceAll(strings.TrimSpace(name), "-", "_")
	for _, one := range allLimits() {
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
	return fmt.Errorf("unknown limit %q; use one of %s", name, strings.Join(LimitNames(), ", "))
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

// String returns the text that ParseLimits reads; it is empty without limits.
func (l Limits) String() string {
	var parts []string
	for _, one := range allLimits() {
		if text := one.show(&l); text != "" {
			parts = append(parts, one.name+"="+text)
		}
	}
	return strings.Join(parts, ",")
}

// MarshalJSON writes the limits that are set, in the form that Set reads.
func (l Limits) MarshalJSON() ([]byte, error) {
	set := map[string]string{}
	for _, one := range allLimits() {
		if text := one.show(&l); text != "" {
			set[one.name] = text
		}
	}
	return json.Marshal(set)
}

// UnmarshalJSON reads what MarshalJSON writes. An unknown name is an error, because the server could not enforce it.
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

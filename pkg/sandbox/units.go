package sandbox

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes.
type Size uint64

// Units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

var sizeUnits = map[string]Size{
	"": 1, "b": 1,
	"k": KiB, "kb": KiB, "kib": KiB,
	"m": MiB, "mb": MiB, "mib": MiB,
	"g": GiB, "gb": GiB, "gib": GiB,
	"t": TiB, "tb": TiB, "tib": TiB,
}

// ParseSize reads "512m", "256mb", "1g", "1.5GiB", "1t" or plain bytes. Units are powers of 1024.
func ParseSize(s string) (Size, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	split := strings.LastIndexAny(text, "0123456789.") + 1
	number, unit := text[:split], strings.TrimSpace(text[split:])
	factor, known := sizeUnits[unit]
	if !known || number == "" || strings.ContainsAny(number, "+-eExX_ ") {
		return 0, errNotSize
	}
	if !strings.Contains(number, ".") {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > math.MaxInt64/uint64(factor) {
			return 0, errors.New("not a size this machine can count; write it like 512m or 1g")
		}
		return Size(n) * factor, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f*float64(factor) >= math.MaxInt64 {
		return 0, errNotSize
	}
	return Size(f * float64(factor)), nil
}

// String writes the largest unit that is exact to two decimals.
func (s Size) String() string {
	for _, u := range []struct {
		unit Size
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if s >= u.unit {
			text := strconv.FormatFloat(float64(s)/float64(u.unit), 'f', 2, 64)
			return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + " " + u.name
		}
	}
	return strconv.FormatUint(uint64(s), 10) + " B"
}

// plain writes a size exactly, as ParseSize reads it: String rounds.
func (s Size) plain() string {
	if text := s.String(); !strings.Contains(text, ".") {
		return strings.ReplaceAll(text, " ", "")
	}
	return strconv.FormatUint(uint64(s), 10)
}

// quantity is the type of a limit's value.
type quantity interface {
	int | float64 | time.Duration | Size
}

var (
	errNotPositive = errors.New("must be more than zero")
	errNotSize     = errors.New("not a size; write it like 512m, 256mb, 1g or 1073741824")
)

// Positive makes a parser refuse zero and less. A zero would mean "the default" in a request; a user who writes it means
// something else.
func Positive[T quantity](parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (T, error) {
		if strings.HasPrefix(strings.TrimSpace(s), "-") {
			return 0, errNotPositive
		}
		v, err := parse(s)
		if err == nil && v <= 0 {
			err = errNotPositive
		}
		return v, err
	}
}

// IsDecimal reports whether s is digits with at most one point: no signs, exponents, NaN or Inf.
func IsDecimal(s string) bool {
	return s != "" && s != "." && strings.Trim(s, "0123456789.") == "" && strings.Count(s, ".") <= 1
}

// ParseDuration reads Go's forms ("1.5s", "2m") and plain seconds.
func ParseDuration(s string) (time.Duration, error) {
	if IsDecimal(s) {
		seconds, err := strconv.ParseFloat(s, 64)
		if err != nil || seconds >= float64(math.MaxInt64)/float64(time.Second) {
			return 0, errors.New("longer than this machine can count; write it like 5, 1.5s, 500ms or 2m")
		}
		return time.Duration(math.Round(seconds * float64(time.Second))), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("not a duration; write it like 5, 1.5s, 500ms or 2m")
	}
	return d, nil
}

// ParseCores reads a number of cores, or another decimal number.
func ParseCores(s string) (float64, error) {
	if !IsDecimal(s) {
		return 0, errors.New("not a number of cores; write it like 1, 0.5 or 2")
	}
	return strconv.ParseFloat(s, 64)
}

func formatCores(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// ParseCount reads a whole number.
func ParseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errors.New("more than this machine can count; write it like 64")
	case err != nil || strings.HasPrefix(s, "+"):
		return 0, errors.New("not a whole number; write it like 64")
	}
	return n, nil
}

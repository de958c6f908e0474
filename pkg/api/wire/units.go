package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Size is a number of bytes. In JSON it is that number, or a text as the flags take it: "256MiB". Zero is left out.
type Size sandbox.Size

// Duration is a time. In JSON it is a number of seconds, or a text as the flags take it: "1.5s". Zero is left out.
type Duration time.Duration

// Count is a whole number of something, such as processes. Zero is left out.
type Count int

// Cores are a share of the processors. Zero is left out.
type Cores float64

var errNotPositive = errors.New("must be more than zero")

// number tells a JSON number from a text in quotes, which it unquotes.
func number(b []byte) (text string, isNumber bool, err error) {
	if len(b) > 0 && b[0] == '"' {
		err = json.Unmarshal(b, &text)
		return text, false, err
	}
	if len(b) == 0 || b[0] != '-' && (b[0] < '0' || b[0] > '9') {
		return "", false, fmt.Errorf("%s is neither a number nor a text", brief(b))
	}
	return string(b), true, nil
}

// brief shows the beginning of what somebody has sent.
func brief(b []byte) string {
	const most = 40
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

func isNull(b []byte) bool { return string(b) == "null" }

// UnmarshalJSON reads bytes or a text; it refuses zero, which nobody wants who writes it.
func (s *Size) UnmarshalJSON(b []byte) error {
	if isNull(b) {
		return nil
	}
	text, isNumber, err := number(b)
	if err != nil {
		return err
	}
	if strings.HasPrefix(strings.TrimSpace(text), "-") {
		return errNotPositive
	}
	var size sandbox.Size
	if isNumber && strings.ContainsAny(text, ".eE") {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != math.Trunc(f) || f >= math.MaxInt64 {
			return fmt.Errorf("%s is not a whole number of bytes that this machine can count", brief(b))
		}
		size = sandbox.Size(f)
	} else if size, err = sandbox.ParseSize(text); err != nil {
		return err
	}
	if size == 0 {
		return errNotPositive
	}
	*s = Size(size)
	return nil
}

// MarshalJSON writes bytes.
func (s Size) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(s), 10), nil }

// UnmarshalJSON reads seconds or a text; it refuses zero.
func (d *Duration) UnmarshalJSON(b []byte) error {
	if isNull(b) {
		return nil
	}
	text, isNumber, err := number(b)
	if err != nil {
		return err
	}
	if strings.HasPrefix(strings.TrimSpace(text), "-") {
		return errNotPositive
	}
	var value time.Duration
	if isNumber || isDecimal(text) {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || seconds >= float64(math.MaxInt64)/float64(time.Second) {
			return errors.New("longer than this machine can count")
		}
		value = time.Duration(math.Round(seconds * float64(time.Second)))
	} else if value, err = time.ParseDuration(text); err != nil {
		return fmt.Errorf("%.40q is not a duration; write it like 5, \"1.5s\", \"500ms\" or \"2m\"", text)
	}
	if value <= 0 {
		return errNotPositive
	}
	*d = Duration(value)
	return nil
}

// isDecimal reports whether s is digits with at most one point: no signs, exponents, NaN or Inf.
func isDecimal(s string) bool {
	return s != "" && s != "." && strings.Trim(s, "0123456789.") == "" && strings.Count(s, ".") <= 1
}

// MarshalJSON writes seconds; what is no multiple of a microsecond is written as a text, which loses nothing.
func (d Duration) MarshalJSON() ([]byte, error) {
	value := time.Duration(d)
	if value%time.Microsecond != 0 {
		return json.Marshal(value.String())
	}
	return json.Marshal(value.Seconds())
}

// UnmarshalJSON reads a whole number; it refuses zero.
func (c *Count) UnmarshalJSON(b []byte) error {
	if isNull(b) {
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 0)
	switch {
	case errors.Is(err, strconv.ErrRange) && n > 0:
		return errors.New("more than this machine can count")
	case err == nil && n <= 0, errors.Is(err, strconv.ErrRange):
		return errNotPositive
	case err != nil:
		return fmt.Errorf("%s is not a whole number", brief(b))
	}
	*c = Count(n)
	return nil
}

// UnmarshalJSON reads a number; it refuses zero.
func (c *Cores) UnmarshalJSON(b []byte) error {
	if isNull(b) {
		return nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	switch {
	case err != nil || math.IsNaN(f) || math.IsInf(f, 0):
		return fmt.Errorf("%s is not a number of cores; write it like 1, 0.5 or 2", brief(b))
	case f <= 0:
		return errNotPositive
	}
	*c = Cores(f)
	return nil
}

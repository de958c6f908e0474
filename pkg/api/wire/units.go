package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Size is a number of bytes. In JSON it is that number, or a text in the form of the flags: "256MiB". Zero is left out.
type Size sandbox.Size

// Duration is a time. In JSON it is a number of seconds, or a text in the form of the flags: "1.5s". Zero is left out.
type Duration time.Duration

// Count is a whole number, such as a number of processes. Zero is left out.
type Count int

// Cores is a number of processors, which may be a fraction. Zero is left out.
type Cores float64

// number distinguishes a JSON number from a text in quotes, which it unquotes. It returns numbers without exponents, as the
// parsers of flags read them.
func number(b []byte) (text string, isNumber bool, err error) {
	if len(b) > 0 && b[0] == '"' {
		err = json.Unmarshal(b, &text)
		return text, false, err
	}
	if len(b) == 0 || b[0] != '-' && (b[0] < '0' || b[0] > '9') {
		return "", false, fmt.Errorf("%s is neither a number nor a text", brief(b))
	}
	if text = string(b); strings.ContainsAny(text, ".eE") {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return "", true, fmt.Errorf("%s is not a number that this machine can count", brief(b))
		}
		text = strconv.FormatFloat(f, 'f', -1, 64)
	}
	return text, true, nil
}

// brief returns the first characters of a client's value, for messages.
func brief(b []byte) string {
	const most = 40
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// withValue puts the client's value before the reason why it is refused; nil stays nil.
func withValue(b []byte, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", brief(b), err)
}

func isNull(b []byte) bool { return string(b) == "null" }

// UnmarshalJSON reads bytes or a text; it refuses zero.
func (s *Size) UnmarshalJSON(b []byte) error {
	text, isNumber, err := number(b)
	switch {
	case isNull(b):
		return nil
	case err != nil:
		return err
	case isNumber && strings.Contains(text, "."):
		return fmt.Errorf("%s: not a whole number of bytes; write it like 1073741824 or \"1g\"", brief(b))
	}
	size, err := sandbox.Positive(sandbox.ParseSize)(text)
	if err == nil {
		*s = Size(size)
	}
	return withValue(b, err)
}

// MarshalJSON writes bytes.
func (s Size) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(s), 10), nil }

// UnmarshalJSON reads seconds or a text; it refuses zero.
func (d *Duration) UnmarshalJSON(b []byte) error {
	text, _, err := number(b)
	switch {
	case isNull(b):
		return nil
	case err != nil:
		return err
	}
	value, err := sandbox.Positive(sandbox.ParseDuration)(text)
	if err == nil {
		*d = Duration(value)
	}
	return withValue(b, err)
}

// MarshalJSON writes seconds; a duration that is no multiple of a microsecond becomes a text, so that it stays exact.
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
	n, err := sandbox.Positive(sandbox.ParseCount)(string(b))
	if err == nil {
		*c = Count(n)
	}
	return withValue(b, err)
}

// UnmarshalJSON reads a number; it refuses zero.
func (c *Cores) UnmarshalJSON(b []byte) error {
	text, isNumber, err := number(b)
	switch {
	case isNull(b):
		return nil
	case err != nil || !isNumber:
		return fmt.Errorf("%s is not a number of cores; write it like 1, 0.5 or 2", brief(b))
	}
	f, err := sandbox.Positive(sandbox.ParseCores)(text)
	if err == nil {
		*c = Cores(f)
	}
	return withValue(b, err)
}

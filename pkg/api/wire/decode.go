package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// The bounds of every body.
const (
	maxDepth  = 64 // no field needs more; variables of templates are the deepest
	maxErrors = 20 // reported in one answer
)

// Decode reads the body of a run from an untrusted client. Its error is a *Problem that names every wrong field.
func Decode(body []byte) (*Run, error) {
	run := new(Run)
	if err := DecodeStrict(body, run); err != nil {
		return nil, err
	}
	return run, nil
}

// DecodeStrict reads one JSON object into a struct, as Decode does: names must be known, have the exact case and occur once; no
// text may follow. A null field counts as absent. The error is a *Problem.
func DecodeStrict(body []byte, into any) error {
	if err := scan(body); err != nil {
		return malformed(err)
	}
	d := &strict{}
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := d.object(dec, "", reflect.ValueOf(into).Elem()); err != nil {
		return malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return malformed(fmt.Errorf("something follows the object, at byte %d", dec.InputOffset()))
	}
	if len(d.errors) == 0 {
		return nil
	}
	p := WrongField(CodeInvalid, d.errors[0].Field, "%s", d.errors[0].Message)
	if n := len(d.errors) - 1; n > 0 {
		p.Title, p.Hint, p.Errors = "Some fields of the request are wrong", DescribeRequests, d.errors
		p.Detail += fmt.Sprintf("; and %d more", n)
	}
	return p
}

// CutAdvice cuts the next step off a message, such as examples of a valid value: it is a problem's hint.
func CutAdvice(message string) (cause, advice string, found bool) {
	for _, words := range []string{"write it like ", "use one of ", "leave out "} {
		if cause, rest, found := strings.Cut(message, "; "+words); found {
			return cause, words + rest, true
		}
	}
	return message, "", false
}

func malformed(err error) error {
	p := NewProblem(CodeMalformed, "body: %s", plain(err))
	p.Title, p.Hint = "The body is not the JSON that is expected", `one JSON object, such as {"language":"python","code":"print(1)"}`
	return p
}

// plain rewrites an error of encoding/json without Go's words.
func plain(err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("at byte %d: %s", syntax.Offset, syntax.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends in the middle")
	}
	return err
}

// scan refuses bodies that encoding/json silently changes or that nest too deep: text that is not UTF-8, halves of surrogate
// pairs.
func scan(body []byte) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return errors.New("it is empty")
	}
	if !utf8.Valid(body) {
		return errors.New(`it is not UTF-8; send bytes as base64 (encoding: "base64")`)
	}
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
			if i < len(body) && body[i] == 'u' {
				n, err := escape(body[i+1:])
				if err != nil {
					return fmt.Errorf("at byte %d: %w", i, err)
				}
				i += n
			}
		case c == '"':
			inString = !inString
		case inString:
			// A run of plain text is skipped in one step: code is long.
			if n := bytes.IndexAny(body[i:], `"\`); n > 0 {
				i += n - 1
			}
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("at byte %d: it is nested deeper than %d", i, maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// escape checks the digits after \u and returns how many bytes the escape has.
func escape(b []byte) (int, error) {
	code := func(b []byte) (uint64, bool) {
		if len(b) < 4 {
			return 0, false
		}
		n, err := strconv.ParseUint(string(b[:4]), 16, 16)
		return n, err == nil
	}
	first, ok := code(b)
	if !ok || first < 0xD800 || first > 0xDFFF {
		return min(4, len(b)), nil // the decoder reports what is no escape
	}
	if first < 0xDC00 && len(b) >= 10 && b[4] == '\\' && b[5] == 'u' {
		if second, ok := code(b[6:]); ok && second >= 0xDC00 && second <= 0xDFFF {
			return 10, nil
		}
	}
	return 0, fmt.Errorf(`\u%s is half a character`, b[:4])
}

// strict decodes values and collects the errors of fields. Its methods return an error only for text that is not JSON.
type strict struct{ errors []FieldError }

func (d *strict) wrong(field, format string, args ...any) {
	if len(d.errors) < maxErrors {
		d.errors = append(d.errors, FieldError{Field: strings.TrimSuffix(field, "."), Message: fmt.Sprintf(format, args...)})
	}
}

func (d *strict) object(dec *json.Decoder, at string, into reflect.Value) error {
	begin, err := dec.Token()
	if err != nil {
		return err
	}
	if begin != json.Delim('{') {
		if at == "" {
			return errors.New("it is not an object")
		}
		d.wrong(strings.TrimSuffix(at, "."), "it is not an object")
		return skip(dec, begin)
	}
	fields := fieldsIn(into)
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		name := key.(string)
		where := at + name
		target := fields.find(name)
		if !target.IsValid() {
			d.wrong(Clip(where), "%s", unknown(name, fields.names()))
			if err := dec.Decode(new(json.RawMessage)); err != nil {
				return err
			}
			continue
		}
		if seen[name] {
			d.wrong(where, "it is given twice")
		}
		seen[name] = true
		if err := d.value(dec, where, target); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// value decodes the next value into one field.
func (d *strict) value(dec *json.Decoder, at string, into reflect.Value) error {
	t := into.Type()
	_, itself := into.Addr().Interface().(json.Unmarshaler)
	switch {
	case t == reflect.TypeFor[network.Policy]():
		return d.network(dec, at, into)
	case itself: // the type reads its own JSON
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return d.list(dec, at, into)
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil || isNull(raw) {
			return err
		}
		into.Set(reflect.New(t.Elem()))
		return d.object(json.NewDecoder(bytes.NewReader(raw)), at+".", into.Elem())
	}
	return d.plain(dec, at, into)
}

// network decodes a mode, or an object of rules whose fields errors name.
func (d *strict) network(dec *json.Decoder, at string, into reflect.Value) error {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil || isNull(raw) {
		return err
	}
	dec = json.NewDecoder(bytes.NewReader(raw))
	switch raw[0] {
	case '{':
		return d.object(dec, at+".", into)
	case '"':
		return d.plain(dec, at, into)
	}
	d.wrong(at, "it has to be the name of a mode, or an object of rules")
	return nil
}

// plain decodes a value whose type reads it.
func (d *strict) plain(dec *json.Decoder, at string, into reflect.Value) error {
	t := into.Type()
	err := dec.Decode(into.Addr().Interface())
	var syntax *json.SyntaxError
	switch {
	case err == nil:
	case errors.As(err, &syntax), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return err
	default:
		d.wrong(at, "%s", mistake(err, t))
		into.SetZero()
	}
	return nil
}

func (d *strict) list(dec *json.Decoder, at string, into reflect.Value) error {
	begin, err := dec.Token()
	if err != nil || begin == nil {
		return err
	}
	if begin != json.Delim('[') {
		d.wrong(at, "it is not a list")
		return skip(dec, begin)
	}
	for i := 0; dec.More(); i++ {
		into.Grow(1)
		into.SetLen(i + 1)
		if err := d.object(dec, at+"["+strconv.Itoa(i)+"].", into.Index(i)); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// skip reads past the rest of a value whose first token was read.
func skip(dec *json.Decoder, token json.Token) (err error) {
	for depth := 0; ; {
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		if token, err = dec.Token(); err != nil {
			return err
		}
	}
}

// mistake describes a value and the type that the field has.
func mistake(err error, t reflect.Type) string {
	var typed *json.UnmarshalTypeError
	if !errors.As(err, &typed) {
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	want := map[reflect.Kind]string{
		reflect.String: "a text", reflect.Bool: "true or false", reflect.Slice: "a list of texts", reflect.Map: "an object of texts",
	}[t.Kind()]
	if t == reflect.TypeFor[map[string]any]() {
		want = "an object"
	}
	if want == "" {
		want = "a number in its range"
	}
	got, _, _ := strings.Cut(typed.Value, " ")
	return fmt.Sprintf("it has to be %s, not %s", want, got)
}

func unknown(name string, names []string) string {
	text := "there is no such field"
	if near := nearest.Word(strings.ReplaceAll(strings.ToLower(Clip(name)), "-", "_"), names); near != "" {
		text += "; did you mean " + near + "?"
	}
	return text
}

// Clip returns the first characters of a name that a client chose, for messages.
func Clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// fields has the fields of a struct by their JSON names: the tagged ones, the settings, and those of a run that a session has.
type fields struct {
	into     reflect.Value
	tagged   map[string]int
	settings []executor.Field
	run      *fields // of a session; or nil
}

var tagged sync.Map // of map[string]int, by reflect.Type

func fieldsIn(into reflect.Value) fields {
	f := fields{into: into}
	if with, ok := into.Addr().Interface().(interface{ Settings() []executor.Field }); ok {
		f.settings = with.Settings()
	}
	if s, ok := into.Addr().Interface().(*Session); ok {
		run := fieldsIn(reflect.ValueOf(&s.Run).Elem())
		f.run = &run
	}
	t := into.Type()
	if index, ok := tagged.Load(t); ok {
		f.tagged = index.(map[string]int)
		return f
	}
	f.tagged = map[string]int{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			f.tagged[name] = i
		}
	}
	tagged.Store(t, f.tagged)
	return f
}

// find returns the field with that name, or the zero Value.
func (f *fields) find(name string) reflect.Value {
	if i, ok := f.tagged[name]; ok {
		return f.into.Field(i)
	}
	for i := range f.settings {
		if f.settings[i].Name == name {
			return reflect.ValueOf(f.settings[i].Value).Elem()
		}
	}
	if f.run != nil && slices.Contains(SessionFields, name) {
		return f.run.find(name)
	}
	return reflect.Value{}
}

func (f *fields) names() []string {
	names := slices.Collect(maps.Keys(f.tagged))
	for i := range f.settings {
		names = append(names, f.settings[i].Name)
	}
	if f.run != nil {
		names = append(names, SessionFields...)
	}
	slices.Sort(names)
	return names
}

// IsField reports whether a Run or a Session has a field with that name.
func IsField(name string) bool {
	for _, v := range []any{&Run{}, &Session{}} {
		if f := fieldsIn(reflect.ValueOf(v).Elem()); f.find(name).IsValid() {
			return true
		}
	}
	return false
}

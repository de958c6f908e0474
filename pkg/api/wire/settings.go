package wire

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Settings returns the fields of a run that tables describe: the limits of the run and of compilations, and those that
// executor.Fields lists. Each Value points into the run, as a type that reads and writes its JSON.
func (r *Run) Settings() []executor.Field {
	fields := executor.Fields(&r.Policy, &r.Options)
	for _, l := range sandbox.AllLimits() {
		fields = append(fields, executor.Field{Name: l.Name, Usage: l.Usage, Doc: l.Doc, Example: l.Example, Value: l.Field(&r.Limits)})
		if l.CompileDoc != "" {
			fields = append(fields, executor.Field{Name: "compile_" + l.Name, Doc: l.CompileDoc, Value: l.Field(&r.CompileLimits)})
		}
	}
	return asJSON(fields)
}

// asJSON gives fields their descriptions, and values that read and write their JSON.
func asJSON(fields []executor.Field) []executor.Field {
	for i := range fields {
		if fields[i].Doc == "" {
			fields[i].Doc = sandbox.Sentence(fields[i].Usage)
		}
		switch v := fields[i].Value.(type) {
		case *time.Duration:
			fields[i].Value = (*Duration)(v)
		case *sandbox.Size:
			fields[i].Value = (*Size)(v)
		case *int:
			fields[i].Value = (*Count)(v)
		case *float64:
			fields[i].Value = (*Cores)(v)
		case *[]sandbox.Volume:
			fields[i].Value = (*Volumes)(v)
		}
	}
	return fields
}

// MarshalJSON writes the fields that are set.
func (r Run) MarshalJSON() ([]byte, error) {
	type tagged Run
	return withSettings(tagged(r), r.Settings())
}

// withSettings writes a struct, and the settings that are set.
func withSettings(tagged any, settings []executor.Field) ([]byte, error) {
	set := map[string]any{}
	for _, f := range settings {
		if f.IsSet() {
			set[f.Name] = f.Value
		}
	}
	b, err := json.Marshal(tagged)
	rest, failed := json.Marshal(set)
	if err != nil || failed != nil {
		return nil, errors.Join(err, failed)
	}
	return joinObjects(b, rest), nil
}

// joinObjects makes one JSON object of two.
func joinObjects(a, b []byte) []byte {
	switch {
	case len(b) == len("{}"):
		return a
	case len(a) == len("{}"):
		return b
	}
	return append(append(a[:len(a)-1], ','), b[1:]...)
}

// UnmarshalJSON reads a run as [Decode] does.
func (r *Run) UnmarshalJSON(b []byte) error { return DecodeStrict(b, r) }

// Volumes are directories of the server. In JSON each is a text as the flag takes it: host:dest[:ro|rw].
type Volumes []sandbox.Volume

// UnmarshalJSON reads a list of texts.
func (v *Volumes) UnmarshalJSON(b []byte) error {
	var texts []string
	if err := json.Unmarshal(b, &texts); err != nil {
		return err
	}
	*v = nil
	for _, text := range texts {
		volume, err := sandbox.ParseVolume(text)
		if wrong := new(sandbox.Error); errors.As(err, &wrong) {
			return wrong.Err // the field is named by the decoder
		}
		if err != nil {
			return err
		}
		*v = append(*v, volume)
	}
	return nil
}

// MarshalJSON writes a list of texts.
func (v Volumes) MarshalJSON() ([]byte, error) {
	texts := make([]string, len(v))
	for i, volume := range v {
		texts[i] = volume.String()
	}
	return json.Marshal(texts)
}

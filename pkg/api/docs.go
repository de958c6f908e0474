package api

import (
	"bytes"
	"html/template"
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// page renders the OpenAPI document as HTML: operations by tag, then the schemas.
func page(doc *huma.OpenAPI) ([]byte, error) {
	t, err := template.ParseFS(webFiles, "web/docs.html")
	if err != nil {
		return nil, err
	}
	view := pageView{Title: doc.Info.Title, Text: doc.Info.Description}
	for _, tag := range doc.Tags {
		view.Groups = append(view.Groups, pageGroup{Name: tag.Name, Text: tag.Description})
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		item := doc.Paths[path]
		for _, one := range []struct {
			method string
			op     *huma.Operation
		}{
			{"DELETE", item.Delete}, {"GET", item.Get}, {"HEAD", item.Head}, {"OPTIONS", item.Options}, {"PATCH", item.Patch},
			{"POST", item.Post}, {"PUT", item.Put},
		} {
			if one.op != nil {
				view.add(one.method, path, one.op)
			}
		}
	}
	schemas := doc.Components.Schemas.Map()
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		view.Schemas = append(view.Schemas, pageSchema{Name: name, Fields: fieldsOfSchema(schemas[name])})
	}
	var out bytes.Buffer
	err = t.Execute(&out, view)
	return out.Bytes(), err
}

type pageView struct {
	Title, Text string
	Groups      []pageGroup
	Schemas     []pageSchema
}

type pageGroup struct {
	Name, Text string
	Operations []pageOperation
}

type pageOperation struct {
	Method, Path, ID, Summary, Text string
	Params                          []pageField
	Body                            []pageContent
	Answers                         []pageAnswer
}

type pageContent struct{ Kind, Type, Ref string }

type pageAnswer struct {
	Status, Text string
	Content      []pageContent
}

type pageSchema struct {
	Name   string
	Fields []pageField
}

type pageField struct {
	Name, In, Type, Ref, Text string
	Required                  bool
}

func (v *pageView) add(method, path string, op *huma.Operation) {
	name := "Other"
	if len(op.Tags) > 0 {
		name = op.Tags[0]
	}
	i := slices.IndexFunc(v.Groups, func(g pageGroup) bool { return g.Name == name })
	if i < 0 {
		v.Groups = append(v.Groups, pageGroup{Name: name})
		i = len(v.Groups) - 1
	}
	o := pageOperation{Method: method, Path: path, ID: op.OperationID, Summary: op.Summary, Text: op.Description}
	for _, p := range op.Parameters {
		kind, ref := typeOf(p.Schema)
		o.Params = append(o.Params, pageField{Name: p.Name, In: p.In, Type: kind, Ref: ref, Text: p.Description, Required: p.Required})
	}
	if op.RequestBody != nil {
		o.Body = contentsOf(op.RequestBody.Content)
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		answer := op.Responses[status]
		o.Answers = append(o.Answers, pageAnswer{Status: status, Text: answer.Description, Content: contentsOf(answer.Content)})
	}
	v.Groups[i].Operations = append(v.Groups[i].Operations, o)
}

func contentsOf(content map[string]*huma.MediaType) (all []pageContent) {
	for _, kind := range slices.Sorted(maps.Keys(content)) {
		t, ref := typeOf(content[kind].Schema)
		all = append(all, pageContent{Kind: kind, Type: t, Ref: ref})
	}
	return all
}

func fieldsOfSchema(s *huma.Schema) (all []pageField) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		t, ref := typeOf(property)
		all = append(all, pageField{Name: name, Type: t, Ref: ref, Text: property.Description, Required: slices.Contains(s.Required, name)})
	}
	return all
}

// typeOf returns a schema's type in a word or two, and the name of the schema it refers to.
func typeOf(s *huma.Schema) (text, ref string) {
	switch {
	case s == nil:
		return "", ""
	case s.Ref != "":
		ref = s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		return ref, ref
	case s.Type == huma.TypeArray:
		text, ref = typeOf(s.Items)
		return "list of " + text, ref
	case len(s.OneOf) > 0:
		var kinds []string
		for _, one := range s.OneOf {
			t, _ := typeOf(one)
			kinds = append(kinds, t)
		}
		return strings.Join(kinds, " or "), ""
	case len(s.Enum) > 0:
		var words []string
		for _, word := range s.Enum {
			if w, ok := word.(string); ok {
				words = append(words, w)
			}
		}
		return strings.Join(words, " | "), ""
	case s.Type == "":
		return "any", ""
	}
	return s.Type, ""
}

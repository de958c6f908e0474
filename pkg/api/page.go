package api

import (
	"bytes"
	_ "embed"
	"html/template"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed page.html
var pageText string

// page renders the OpenAPI document as HTML: operations by tag, then the schemas.
func page(doc *huma.OpenAPI) ([]byte, error) {
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return nil, err
	}
	view := pageView{Title: doc.Info.Title, Text: doc.Info.Description}
	for _, tag := range doc.Tags {
		view.Groups = append(view.Groups, pageGroup{Name: tag.Name, Text: tag.Description})
	}
	for path, item := range doc.Paths {
		for method, op := range map[string]*huma.Operation{
			"GET": item.Get, "PUT": item.Put, "POST": item.Post, "DELETE": item.Delete, "HEAD": item.Head, "PATCH": item.Patch,
			"OPTIONS": item.Options,
		} {
			if op != nil {
				view.add(method, path, op)
			}
		}
	}
	for i := range view.Groups {
		slices.SortFunc(view.Groups[i].Operations, func(a, b pageOperation) int {
			return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method)
		})
	}
	schemas := doc.Components.Schemas.Map()
	for name, schema := range schemas {
		view.Schemas = append(view.Schemas, pageSchema{Name: name, Fields: fieldsOfSchema(schema)})
	}
	slices.SortFunc(view.Schemas, func(a, b pageSchema) int { return strings.Compare(a.Name, b.Name) })
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
	for status, answer := range op.Responses {
		o.Answers = append(o.Answers, pageAnswer{Status: status, Text: answer.Description, Content: contentsOf(answer.Content)})
	}
	slices.SortFunc(o.Answers, func(a, b pageAnswer) int { return strings.Compare(a.Status, b.Status) })
	v.Groups[i].Operations = append(v.Groups[i].Operations, o)
}

func contentsOf(content map[string]*huma.MediaType) (all []pageContent) {
	for kind, media := range content {
		t, ref := typeOf(media.Schema)
		all = append(all, pageContent{Kind: kind, Type: t, Ref: ref})
	}
	slices.SortFunc(all, func(a, b pageContent) int { return strings.Compare(a.Kind, b.Kind) })
	return all
}

func fieldsOfSchema(s *huma.Schema) (all []pageField) {
	for name, property := range s.Properties {
		t, ref := typeOf(property)
		all = append(all, pageField{Name: name, Type: t, Ref: ref, Text: property.Description, Required: slices.Contains(s.Required, name)})
	}
	slices.SortFunc(all, func(a, b pageField) int { return strings.Compare(a.Name, b.Name) })
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

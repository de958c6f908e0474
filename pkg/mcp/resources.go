package mcp

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/url"
	"path"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The resources. A cell has the handle SESSION/N.
//
//	sandbox-run://runs/ID                      the result of a run
//	sandbox-run://runs/ID/stdout               its output, as far as it is kept; also stderr
//	sandbox-run://runs/ID/files/PATH           an output file
//	sandbox-run://sessions/ID                  a session
//	sandbox-run://sessions/ID/cells/N          the result of a cell, with the same parts as a run
//	sandbox-run://sessions/ID/files/PATH       a file of a session
const scheme = "sandbox-run://"

func uriOf(handle string) string {
	if id, cell, ok := strings.Cut(handle, "/"); ok {
		return sessionURI(id) + "/cells/" + url.PathEscape(cell)
	}
	return scheme + "runs/" + url.PathEscape(handle)
}

func sessionURI(id string) string { return scheme + "sessions/" + url.PathEscape(id) }

func fileURI(handle, name string) string { return uriOf(handle) + "/files/" + url.PathEscape(name) }

func (s *Server) addResources() {
	for _, t := range []struct{ name, uri, description, kind string }{
		{"run", "runs/{run}", "The result of a run, as long as the server keeps it.", wire.TypeJSON},
		{"run-output", "runs/{run}/{stream}", "The kept output of a run: stdout or stderr.", ""},
		{"run-file", "runs/{run}/files/{path}", "An output file of a run.", ""},
		{"session", "sessions/{session}", "A session.", wire.TypeJSON},
		{"cell", "sessions/{session}/cells/{cell}", "The result of a call of session_run.", wire.TypeJSON},
		{"cell-output", "sessions/{session}/cells/{cell}/{stream}", "The kept output of a call of session_run: stdout or stderr.", ""},
		{"session-file", "sessions/{session}/files/{path}", "A file of a session.", ""},
	} {
		s.server.AddResourceTemplate(&mcp.ResourceTemplate{
			Name: t.name, URITemplate: scheme + t.uri, Description: t.description, MIMEType: t.kind,
		}, s.readResource)
	}
}

// readResource reads a resource. Unknown and foreign ones give the same error.
func (s *Server) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	parts, err := partsOf(uri)
	if err != nil {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	c, err := s.resource(ctx, parts)
	var p *client.Problem
	switch {
	case errors.As(err, &p) && (p.Code == wire.CodeNotFound || p.Code == wire.CodeGone), err == nil && c == nil:
		return nil, mcp.ResourceNotFoundError(uri)
	case err != nil:
		return nil, explain(err)
	}
	c.URI = uri
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

func partsOf(uri string) ([]string, error) {
	rest, ok := strings.CutPrefix(uri, scheme)
	if !ok {
		return nil, errors.New("another scheme")
	}
	parts := strings.Split(rest, "/")
	for i := range parts {
		var err error
		if parts[i], err = url.PathUnescape(parts[i]); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// resource returns the content of a resource; nil if there is no such kind.
func (s *Server) resource(ctx context.Context, parts []string) (*mcp.ResourceContents, error) {
	switch n := len(parts); {
	case n < 2:
		return nil, nil
	case parts[0] == "runs":
		return s.runResource(ctx, parts[1], parts[2:])
	case parts[0] != "sessions":
		return nil, nil
	case n == 2:
		own, err := s.client(ctx).Sessions().Get(ctx, parts[1])
		if err != nil {
			return nil, err
		}
		return jsonContents(sessionView(own.Info())), nil
	case n > 3 && parts[2] == "cells":
		return s.runResource(ctx, parts[1]+"/"+parts[3], parts[4:])
	case n == 4 && parts[2] == "files":
		body, err := s.session(ctx, parts[1]).Open(ctx, parts[3])
		if err != nil {
			return nil, err
		}
		defer body.Close()
		data, err := io.ReadAll(io.LimitReader(body, maxMessage+1))
		if err == nil && len(data) > maxMessage {
			err = sandbox.Invalid("path", "the file is larger than %d MiB; read it in parts with files_read", maxMessage>>20)
		}
		return contentsOf(data, parts[3]), err
	}
	return nil, nil
}

// runResource returns a part of a run or of a cell.
func (s *Server) runResource(ctx context.Context, handle string, part []string) (*mcp.ResourceContents, error) {
	info, err := s.find(ctx, handle, 0)
	if err != nil {
		return nil, err
	}
	if info.Error != nil {
		return nil, &client.Problem{Problem: *info.Error}
	}
	if len(info.Result) == 0 {
		if len(part) > 0 {
			return nil, nil
		}
		return jsonContents(&Result{Run: handle, State: string(info.State), URI: uriOf(handle)}), nil
	}
	r, err := wire.DecodeResult(info.Result)
	if err != nil {
		return nil, err
	}
	switch {
	case len(part) == 0:
		return jsonContents(viewOf(r, levels["full"], handle)), nil
	case len(part) == 1 && part[0] == "stdout":
		return contentsOf(append(r.Stdout.Head, r.Stdout.Tail...), "stdout.txt"), nil
	case len(part) == 1 && part[0] == "stderr":
		return contentsOf(append(r.Stderr.Head, r.Stderr.Tail...), "stderr.txt"), nil
	case len(part) == 2 && part[0] == "files":
		for i := range r.Files {
			if r.Files[i].Path == part[1] && r.Files[i].Reason == "" {
				return contentsOf(r.Files[i].Data, part[1]), nil
			}
		}
	}
	return nil, nil
}

func jsonContents(v any) *mcp.ResourceContents {
	return &mcp.ResourceContents{MIMEType: wire.TypeJSON, Text: jsonOf(v)}
}

// contentsOf returns bytes as text if they are UTF-8, exactly in both cases.
func contentsOf(data []byte, name string) *mcp.ResourceContents {
	c := &mcp.ResourceContents{MIMEType: mime.TypeByExtension(path.Ext(name))}
	text, encoding := sandbox.EncodeText(data)
	if encoding == "" {
		c.Text = text
		return c
	}
	c.Blob = data
	if c.MIMEType == "" || strings.HasPrefix(c.MIMEType, "text/") {
		c.MIMEType = wire.TypeBinary
	}
	return c
}

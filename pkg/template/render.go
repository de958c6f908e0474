package template

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	texttemplate "text/template"
	"text/template/parse"
)

const (
	// MaxOutput is the size of the largest rendering, in bytes.
	MaxOutput = 4 << 20
	// maxSteps bounds the work: one step per node within loops and named templates, and one per 256 bytes that a function reads or makes.
	maxSteps     = 1 << 22
	bytesPerStep = 256
	stepsPerPass = 6 // what a pass of a loop costs besides its nodes
	maxNesting   = 100
)

// Functions that addChecks calls from a tree. Templates can not name them: the parser does not know them.
const (
	spendFunction = "spend" // pays for one pass of a loop
	enterFunction = "enter" // pays for one use of a named template, which may use itself
	leaveFunction = "leave"
	printFunction = "print" // refuses values that have no text
)

// rendering is one use of a template; all its files share the bounds.
type rendering struct {
	language              string
	steps, output, nested int
	text                  bytes.Buffer
}

// execute fills in one text.
func (r *rendering) execute(t *texttemplate.Template, data map[string]any) (string, error) {
	r.text.Reset()
	err := t.Execute(r, data)
	var exec texttemplate.ExecError
	if errors.As(err, &exec) {
		// template: NAME:LINE:COLUMN: executing "TREE" at <NODE>: MESSAGE. The lines are those of the template's file.
		where, message, _ := strings.Cut(err.Error(), ": executing ")
		_, message, _ = strings.Cut(message, " at ")
		parts := strings.Split(where, ":")
		return "", fmt.Errorf("line %s: %s", parts[max(0, len(parts)-2)], message)
	}
	return r.text.String(), err
}

// Write receives the output of text/template.
func (r *rendering) Write(p []byte) (int, error) {
	if r.output += len(p); r.output > MaxOutput {
		return 0, fmt.Errorf("the output is larger than %d MiB", MaxOutput>>20)
	}
	return r.text.Write(p)
}

func (r *rendering) spend(steps int) (string, error) {
	if r.steps += steps; r.steps > maxSteps {
		return "", fmt.Errorf("the template goes on and on: stopped after %d steps", maxSteps)
	}
	return "", nil
}

// functions binds the functions to this rendering.
func (r *rendering) functions() texttemplate.FuncMap {
	bound := texttemplate.FuncMap{
		spendFunction: r.spend,
		enterFunction: func(steps int) (string, error) {
			if r.nested++; r.nested > maxNesting {
				return "", fmt.Errorf("templates include each other more than %d deep", maxNesting)
			}
			return r.spend(steps)
		},
		leaveFunction: func(int) string { r.nested--; return "" },
		printFunction: asText,
	}
	for name, f := range functions() {
		bound[name] = func(args ...any) (any, error) { return r.call(name, f, args) }
	}
	return bound
}

func (r *rendering) call(name string, f function, args []any) (any, error) {
	most := len(strings.Fields(f.parameters))
	least := most
	if strings.HasSuffix(f.parameters, "...") {
		least, most = most-1, len(args)
	}
	if len(args) < least || len(args) > most {
		return nil, fmt.Errorf("%d arguments; it is used as: %s %s", len(args), name, f.parameters)
	}
	if _, err := r.spend(weight(args...)); err != nil {
		return nil, err
	}
	v, err := f.call(r, args)
	if err != nil {
		return nil, err
	}
	if s, ok := v.(string); ok && len(s) > MaxOutput {
		return nil, errTooLarge
	}
	_, err = r.spend(weight(v))
	return v, err
}

// weight is roughly the number of steps that it takes to look at values.
func weight(values ...any) int {
	size := bytesPerStep
	for _, v := range values {
		switch v := v.(type) {
		case string:
			size += len(v)
		case []any:
			size += 16 * len(v)
		case map[string]any:
			size += 16 * len(v)
		}
	}
	return size / bytesPerStep
}

// addChecks changes a tree so that text/template can not run without end ({{range 1000000000}}{{end}} prints nothing and takes a minute)
// and prints no list as Go would, and collects in fields the names that the tree looks up in the variables: fields of the dot, while
// dotIsRoot, and of $. It returns the number of nodes outside of loops.
func addChecks(node parse.Node, dotIsRoot bool, fields map[string]bool) int {
	count := 1
	each := func(dotIsRoot bool, nodes ...parse.Node) {
		for _, n := range nodes {
			count += addChecks(n, dotIsRoot, fields)
		}
	}
	branch := func(b *parse.BranchNode, inside bool) {
		each(dotIsRoot, b.Pipe, b.ElseList)
		each(inside, b.List)
	}
	switch n := node.(type) {
	case *parse.ListNode:
		if n != nil {
			each(dotIsRoot, n.Nodes...)
		}
	case *parse.ActionNode:
		each(dotIsRoot, n.Pipe)
		if len(n.Pipe.Decl) == 0 {
			n.Pipe.Cmds = append(n.Pipe.Cmds, newCommand(printFunction, n.Pos))
		}
	case *parse.IfNode:
		branch(&n.BranchNode, dotIsRoot)
	case *parse.WithNode:
		branch(&n.BranchNode, false)
	case *parse.RangeNode:
		each(dotIsRoot, n.Pipe, n.ElseList)
		body := addChecks(n.List, false, fields)
		n.List.Nodes = append([]parse.Node{newAction(spendFunction, n.Pos, stepsPerPass+body)}, n.List.Nodes...)
	case *parse.TemplateNode:
		each(dotIsRoot, n.Pipe)
	case *parse.PipeNode:
		if n != nil {
			for _, c := range n.Cmds {
				each(dotIsRoot, c.Args...)
			}
		}
	case *parse.ChainNode:
		each(dotIsRoot, n.Node)
	case *parse.FieldNode:
		if dotIsRoot {
			fields[n.Ident[0]] = true
		}
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			fields[n.Ident[1]] = true
		}
	}
	return count
}

// addChecksToNamed does the same for a named template, whose dot and $ are what it is given.
func addChecksToNamed(tree *parse.Tree) {
	root := tree.Root
	steps := addChecks(root, false, map[string]bool{})
	root.Nodes = append([]parse.Node{newAction(enterFunction, root.Pos, steps)}, append(root.Nodes, newAction(leaveFunction, root.Pos, 0))...)
}

func newCommand(function string, pos parse.Pos, args ...parse.Node) *parse.CommandNode {
	name := parse.NewIdentifier(function).SetTree(nil).SetPos(pos)
	return &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pos, Args: append([]parse.Node{name}, args...)}
}

// newAction makes the node of {{function n}}.
func newAction(function string, pos parse.Pos, n int) parse.Node {
	number := &parse.NumberNode{NodeType: parse.NodeNumber, Pos: pos, IsInt: true, Int64: int64(n), Text: strconv.Itoa(n)}
	pipe := &parse.PipeNode{NodeType: parse.NodePipe, Pos: pos, Cmds: []*parse.CommandNode{newCommand(function, pos, number)}}
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: pos, Pipe: pipe}
}

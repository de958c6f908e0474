package template

import (
	"errors"
	"fmt"
	"strings"
	"text/template/parse"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
)

// The syntax is text/template's, read by its own parser. The tree is walked here and not by
// text/template, because that one can not be stopped ({{range 1000000000}}{{end}} prints nothing
// and takes a minute), calls methods of what it is given, and, once used, keeps the linker from
// dropping any method of the executable.

const (
	// MaxOutput is the most that one rendering may yield, in bytes.
	MaxOutput = 4 << 20
	// maxSteps bounds the work: one per node, and one per 256 bytes that a function reads or makes.
	maxSteps    = 1 << 22
	maxNesting  = 100
	bytesPerFee = 256
)

var (
	errBreak    = errors.New("break outside range")
	errContinue = errors.New("continue outside range")
)

// budget is what all files of one rendering may use together.
type budget struct{ steps, output int }

func (b *budget) spend(n int) error {
	if b.steps -= n; b.steps < 0 {
		return fmt.Errorf("the template goes on and on: stopped after %d steps", maxSteps)
	}
	return nil
}

// machine renders one text.
type machine struct {
	trees    map[string]*parse.Tree
	language string
	budget   *budget
	out      strings.Builder
	vars     []variable
	nesting  int
	at       parse.Pos // of the node that is evaluated, for errors
	tree     *parse.Tree
}

type variable struct {
	name  string
	value any
}

func (m *machine) run(tree *parse.Tree, dot any) (string, error) {
	m.tree = tree
	m.vars = []variable{{"$", dot}}
	if err := m.walk(dot, tree.Root); err != nil {
		return "", err
	}
	return m.out.String(), nil
}

func (m *machine) write(s string) error {
	if m.budget.output -= len(s); m.budget.output < 0 {
		return fmt.Errorf("the output is larger than %d MiB", MaxOutput>>20)
	}
	m.out.WriteString(s)
	return nil
}

func (m *machine) walk(dot any, node parse.Node) error {
	if err := m.budget.spend(1); err != nil {
		return err
	}
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, child := range n.Nodes {
			if err := m.walk(dot, child); err != nil {
				return err
			}
		}
		return nil
	case *parse.TextNode:
		return m.write(string(n.Text))
	case *parse.CommentNode:
		return nil
	case *parse.ActionNode:
		m.at = n.Pos
		return m.action(dot, n)
	case *parse.IfNode:
		m.at = n.Pos
		return m.branch(dot, &n.BranchNode, false)
	case *parse.WithNode:
		m.at = n.Pos
		return m.branch(dot, &n.BranchNode, true)
	case *parse.RangeNode:
		m.at = n.Pos
		return m.loop(dot, n)
	case *parse.TemplateNode:
		m.at = n.Pos
		return m.include(dot, n)
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	}
	return fmt.Errorf("%s is not supported", node)
}

func (m *machine) action(dot any, n *parse.ActionNode) error {
	v, err := m.pipe(dot, n.Pipe)
	if err != nil || len(n.Pipe.Decl) > 0 {
		return err
	}
	text, err := asText(v)
	if err != nil {
		return err
	}
	return m.write(text)
}

func (m *machine) branch(dot any, n *parse.BranchNode, with bool) error {
	mark := len(m.vars)
	defer func() { m.vars = m.vars[:mark] }()
	v, err := m.pipe(dot, n.Pipe)
	if err != nil {
		return err
	}
	if truth(v) {
		if with {
			dot = v
		}
		return m.walk(dot, n.List)
	}
	return m.walk(dot, n.ElseList)
}

func (m *machine) loop(dot any, n *parse.RangeNode) error {
	mark := len(m.vars)
	defer func() { m.vars = m.vars[:mark] }()
	v, err := m.pipe(dot, n.Pipe)
	if err != nil {
		return err
	}
	m.vars = m.vars[:mark]
	item := func(key, value any) (stop bool, err error) {
		defer func() { m.vars = m.vars[:mark] }()
		if err := m.bind(n.Pipe, key, value); err != nil {
			return true, err
		}
		err = m.walk(value, n.List)
		switch {
		case errors.Is(err, errBreak):
			return true, nil
		case errors.Is(err, errContinue):
			return false, nil
		}
		return err != nil, err
	}
	var stop bool
	switch v := v.(type) {
	case []any:
		for i := 0; i < len(v) && !stop && err == nil; i++ {
			stop, err = item(int64(i), v[i])
		}
		if len(v) > 0 {
			return err
		}
	case map[string]any:
		keys := sortedKeys(v)
		for i := 0; i < len(keys) && !stop && err == nil; i++ {
			stop, err = item(keys[i], v[keys[i]])
		}
		if len(v) > 0 {
			return err
		}
	case int64:
		for i := int64(0); i < v && !stop && err == nil; i++ {
			stop, err = item(i, i)
		}
		if v > 0 {
			return err
		}
	case nil:
	default:
		return fmt.Errorf("range over %s", kindOf(v))
	}
	return m.walk(dot, n.ElseList)
}

// bind sets the variables of a range: the item, or the key and the item.
func (m *machine) bind(p *parse.PipeNode, key, value any) error {
	var values []any
	switch len(p.Decl) {
	case 1:
		values = []any{value}
	case 2:
		values = []any{key, value}
	}
	for i, d := range p.Decl {
		if !p.IsAssign {
			m.vars = append(m.vars, variable{d.Ident[0], values[i]})
		} else if err := m.assign(d.Ident[0], values[i]); err != nil {
			return err
		}
	}
	return m.budget.spend(1)
}

func (m *machine) assign(name string, value any) error {
	for i := len(m.vars) - 1; i >= 0; i-- {
		if m.vars[i].name == name {
			m.vars[i].value = value
			return nil
		}
	}
	return fmt.Errorf("%s is not declared", name)
}

func (m *machine) include(dot any, n *parse.TemplateNode) error {
	tree := m.trees[n.Name]
	if tree == nil {
		return fmt.Errorf("template %q is not defined", n.Name)
	}
	if m.nesting++; m.nesting > maxNesting {
		return fmt.Errorf("templates include each other more than %d deep", maxNesting)
	}
	arg, err := m.pipe(dot, n.Pipe)
	if err != nil {
		return err
	}
	vars, outer := m.vars, m.tree
	m.vars, m.tree = []variable{{"$", arg}}, tree
	if err := m.walk(arg, tree.Root); err != nil {
		return err
	}
	m.vars, m.tree = vars, outer
	m.nesting--
	return nil
}

func (m *machine) pipe(dot any, p *parse.PipeNode) (any, error) {
	if p == nil {
		return nil, nil
	}
	var v any
	for i, cmd := range p.Cmds {
		var err error
		if v, err = m.command(dot, cmd, i > 0, v); err != nil {
			return nil, err
		}
	}
	for _, d := range p.Decl {
		if !p.IsAssign {
			m.vars = append(m.vars, variable{d.Ident[0], v})
		} else if err := m.assign(d.Ident[0], v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// command evaluates one part of a pipe; piped says that last comes from the part before.
func (m *machine) command(dot any, cmd *parse.CommandNode, piped bool, last any) (any, error) {
	if f, ok := cmd.Args[0].(*parse.IdentifierNode); ok {
		m.at = f.Pos
		return m.call(dot, f.Ident, cmd.Args[1:], piped, last)
	}
	if len(cmd.Args) > 1 || piped {
		return nil, fmt.Errorf("%s is no function, and takes no arguments", cmd.Args[0])
	}
	return m.value(dot, cmd.Args[0])
}

func (m *machine) call(dot any, name string, nodes []parse.Node, piped bool, last any) (any, error) {
	f, ok := functions()[name]
	if !ok {
		return nil, fmt.Errorf("no function %q", name)
	}
	args := make([]any, 0, len(nodes)+1)
	for _, n := range nodes {
		v, err := m.value(dot, n)
		if err != nil {
			return nil, err
		}
		// As everywhere, and and or look no further than they must.
		if name == "and" && !truth(v) || name == "or" && truth(v) {
			return v, nil
		}
		args = append(args, v)
	}
	if piped {
		args = append(args, last)
	}
	if len(args) < f.least || f.most >= 0 && len(args) > f.most {
		return nil, fmt.Errorf("%s: %d arguments; it is used as: %s", name, len(args), f.usage)
	}
	fee := 1
	for _, a := range args {
		fee += weight(a) / bytesPerFee
	}
	if err := m.budget.spend(fee); err != nil {
		return nil, err
	}
	v, err := f.call(m, args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if s, ok := v.(string); ok && len(s) > MaxOutput {
		return nil, fmt.Errorf("%s: the result is larger than %d MiB", name, MaxOutput>>20)
	}
	return v, m.budget.spend(weight(v) / bytesPerFee)
}

// weight is roughly what it costs to look at a value.
func weight(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		return 16 * len(v)
	case map[string]any:
		return 16 * len(v)
	}
	return 0
}

func (m *machine) value(dot any, node parse.Node) (any, error) {
	if err := m.budget.spend(1); err != nil {
		return nil, err
	}
	m.at = node.Position()
	switch n := node.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.NilNode:
		return nil, nil
	case *parse.FieldNode:
		return field(dot, n.Ident)
	case *parse.VariableNode:
		for i := len(m.vars) - 1; i >= 0; i-- {
			if m.vars[i].name == n.Ident[0] {
				return field(m.vars[i].value, n.Ident[1:])
			}
		}
		return nil, fmt.Errorf("%s is not declared", n.Ident[0])
	case *parse.ChainNode:
		v, err := m.value(dot, n.Node)
		if err != nil {
			return nil, err
		}
		return field(v, n.Field)
	case *parse.PipeNode:
		return m.pipe(dot, n)
	case *parse.IdentifierNode:
		return m.call(dot, n.Ident, nil, false, nil)
	case *parse.StringNode:
		return n.Text, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.NumberNode:
		switch {
		case n.IsInt:
			return n.Int64, nil
		case n.IsFloat:
			return n.Float64, nil
		}
	}
	return nil, fmt.Errorf("%s is not supported", node)
}

// field follows names through maps; a name that is not there is an error that says what is.
func field(v any, names []string) (any, error) {
	for _, name := range names {
		object, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s has no field %q", kindOf(v), name)
		}
		next, ok := object[name]
		if !ok {
			keys := sortedKeys(object)
			if like := nearest.Word(name, keys); like != "" {
				return nil, fmt.Errorf("no field %q; is %q meant?", name, like)
			}
			return nil, fmt.Errorf("no field %q among: %s", name, strings.Join(keys, ", "))
		}
		v = next
	}
	return v, nil
}

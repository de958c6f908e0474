package full

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/repl"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// screen shows what cells print, their values and their figures, on a terminal or in a pipe.
type screen struct {
	c        *commands
	out      *cli.CellPrinter
	wait     *cli.Progress
	language func() string
	commands []string                // of the REPL, in place of flags of the same name
	stop     context.CancelCauseFunc // when nothing can be written any more; set before a cell runs
	quiet    bool
}

func (c *commands) newScreen(o *cli.SessionOptions) *screen {
	s := &screen{c: c, quiet: o.IsQuiet(), language: func() string { return "" }}
	s.out = c.NewCellPrinter(o, func(err error) { s.stop(err) })
	if cli.CanRedraw(c.Std.Err) && !s.quiet {
		s.wait = &cli.Progress{To: c.Std.Err}
	}
	return s
}

// prepare shows what takes time before a session runs.
func (s *screen) prepare(what string) (done func()) {
	s.wait.Start(what)
	return s.wait.End
}

// greet says what the session is.
func (s *screen) greet(i session.Info) {
	if s.quiet {
		return
	}
	words := []string{i.Language + " " + i.Version}
	if i.Banner != "" && !strings.EqualFold(i.Banner, words[0]) {
		words = append(words, i.Banner)
	}
	words = append(words, fmt.Sprintf("tier %s (%s)", i.Isolation.Tier, i.Isolation.Backend), ":help", "Ctrl-D leaves")
	s.out.Styled(s.c.Palette(s.c.Std.Out).Dim(cli.EscapeLine(strings.Join(words, " · "))))
	for _, n := range i.Notes {
		s.Message(n)
	}
}

// Output shows an event of a cell.
func (s *screen) Output(e sandbox.Event) {
	switch e.Kind {
	case sandbox.EventDisplay:
		var shown protocol.Display
		if json.Unmarshal(e.Content, &shown) == nil {
			s.value(shown.Text())
		}
	case sandbox.EventInput: // the terminal asks
	default:
		s.out.Output(e)
	}
}

// value shows a value: on a terminal escaped and, where colours are, as code of the language.
func (s *screen) value(text string) {
	if text == "" {
		return
	}
	if cli.IsTerminal(s.c.Std.Out) {
		text = cli.EscapeText(text)
		if s.c.Palette(s.c.Std.Out) {
			text = repl.Highlight(s.language(), text)
		}
	}
	s.out.Styled(text)
}

// ask shows the question of a cell.
func (s *screen) ask(question protocol.Input) {
	if question.Prompt != "" {
		s.out.Text(question.Prompt)
	}
}

// answered ends the line of a question.
func (s *screen) answered(question protocol.Input) {
	if question.Password {
		s.out.Text("\n")
		return
	}
	s.out.AfterInput()
}

// End ends the output of a cell.
func (s *screen) End(r *session.Result) {
	s.out.EndOutput()
	if r == nil {
		return
	}
	d := r.Diagnosis
	if d != nil && len(s.commands) > 0 {
		told := *d
		told.Suggestions = s.asCommands(d.Suggestions)
		d = &told
	}
	s.out.Figures(&r.Result.Result, d)
}

// asCommands replaces the flags of suggestions with the commands that do the same between cells.
func (s *screen) asCommands(suggestions []string) []string {
	list := slices.Clone(suggestions)
	for i, text := range list {
		name, rest, _ := strings.Cut(text, " ")
		if flag, ok := strings.CutPrefix(name, "--"); ok && slices.Contains(s.commands, flag) {
			list[i] = ":" + flag + " " + rest
		}
	}
	return list
}

// Print shows lines.
func (s *screen) Print(text string) {
	if cli.IsTerminal(s.c.Std.Out) {
		text = cli.EscapeText(text)
	}
	s.out.Styled(text)
}

// Message shows a line of sandbox-run.
func (s *screen) Message(text string) {
	s.wait.End()
	s.c.PrintMessage(text)
}

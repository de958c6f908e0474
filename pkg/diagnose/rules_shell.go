package diagnose

import (
	"slices"
	"strings"
)

// shellRules explain errors of bash, and of the commands in a script.
var shellRules = []rule{
	{kind: KindCommand, pattern: "*: command not found", explain: missingCommand},
	{kind: KindName, pattern: "*: unbound variable", explain: func(c *inquiry, t *thrown, m []string) *answer {
		return answered(KindName, "the variable "+m[0]+" has no value, and set -u refuses that",
			didYouMean(near(m[0], c.identifiers(t.at))), "${"+m[0]+":-DEFAULT}")
	}},
	{kind: KindSyntax, pattern: "unexpected end of file", cause: "if, for, while, case, a function or a here-document is not closed"},
	{kind: KindSyntax, pattern: "unexpected EOF while looking for matching `*'", cause: "a $1 is not closed"},
	{kind: KindSyntax, pattern: "syntax error near unexpected token `*'", cause: "$1 can not stand here"},
	{kind: KindDivision, pattern: "division by 0", cause: "the divisor is 0"},
	{kind: KindType, pattern: "integer expression expected", cause: "a word of the comparison is not a number",
		suggest: []string{"= and != compare texts"}},
	{kind: KindSyntax, pattern: "[: *: unary operator expected", cause: "a variable of the comparison is empty, and not in quotes",
		suggest: []string{`"$VARIABLE"`}},
	{kind: KindSyntax, pattern: "[: too many arguments", cause: "a variable of the comparison has spaces, and is not in quotes",
		suggest: []string{`"$VARIABLE"`}},
	{kind: KindValue, pattern: "ambiguous redirect", cause: "the name of the file is empty or has spaces",
		suggest: []string{`"$FILE", in quotes`}},
	{kind: KindFile, pattern: "required file not found", cause: "the interpreter in the first line of the script is not in the sandbox"},
}

// shellCommands are common commands.
var shellCommands = [...]string{
	"awk", "basename", "cat", "chmod", "cp", "curl", "cut", "date", "diff", "dirname", "echo", "env", "export", "find", "grep",
	"gzip", "head", "kill", "ls",
	"mkdir", "mktemp", "mv", "node", "printf", "pwd", "python3", "read", "rm", "sed", "seq", "sleep", "sort", "tail", "tar", "tee",
	"test", "touch", "tr",
	"true", "uname", "uniq", "wc", "which", "xargs",
}

func missingCommand(c *inquiry, t *thrown, m []string) *answer {
	name := m[0]
	if i := strings.LastIndex(name, ": "); i >= 0 {
		name = name[i+2:]
	}
	if similar := near(name, shellCommands[:]); similar != "" && !slices.Contains(shellCommands[:], name) {
		return answered(KindCommand, "there is no command "+name, didYouMean(similar))
	}
	switch name {
	case "sudo", "apt", "apt-get", "yum", "dnf", "apk":
		return answered(KindCommand, "the sandbox has no root and no package manager", "--image IMAGE, an image that has the programs")
	case "python":
		return answered(KindCommand, "there is no command python", didYouMean("python3"))
	}
	if similar := near(name, c.identifiers(t.at)); similar != "" {
		return answered(KindCommand, "there is no command or function "+name, didYouMean(similar))
	}
	return answered(KindCommand, "the command "+name+" is not in the sandbox", "--image IMAGE, an image that has it")
}

// sqlRules explain errors of SQLite and PostgreSQL. PostgreSQL's own hint is kept where no rule has a step.
var sqlRules = []rule{
	{kind: KindName, pattern: "no such table: *", explain: missingTable},
	{kind: KindName, pattern: `relation "*" does not exist`, explain: missingTable},
	{kind: KindName, pattern: "no such column: *", explain: missingColumn},
	{kind: KindName, pattern: `column "*" does not exist`, explain: missingColumn},
	{kind: KindName, pattern: "no such function: *", cause: "there is no function $1"},
	{kind: KindName, pattern: "function * does not exist", cause: "there is no function $1 with these types"},
	{kind: KindSyntax, pattern: `near "*": syntax error`, explain: wrongSQL},
	{kind: KindSyntax, pattern: `syntax error at or near "*"`, explain: wrongSQL},
	{kind: KindSyntax, pattern: "syntax error at end of input", cause: "the statement is not complete"},
	{kind: KindSyntax, pattern: "incomplete input", cause: "the statement is not complete"},
	{kind: KindValue, pattern: "UNIQUE constraint failed: *", cause: "a row with this value of $1 is there already",
		suggest: []string{"INSERT OR IGNORE, or ON CONFLICT"}},
	{kind: KindValue, pattern: `duplicate key value violates unique constraint "*"`,
		cause:   "a row with this value is there already (constraint $1)",
		suggest: []string{"ON CONFLICT"}},
	{kind: KindValue, pattern: "NOT NULL constraint failed: *", cause: "$1 needs a value"},
	{kind: KindValue, pattern: `null value in column "*"`, cause: "$1 needs a value"},
	{kind: KindValue, pattern: "FOREIGN KEY constraint failed", cause: "the row refers to one that is not there"},
	{kind: KindValue, pattern: "violates foreign key constraint", cause: "the row refers to one that is not there"},
	{kind: KindValue, pattern: `invalid input syntax for type *: "*"`, cause: `the text "$2" is not of type $1`},
	{kind: KindDivision, pattern: "division by zero", cause: "the divisor is 0", suggest: []string{"NULLIF(DIVISOR, 0)"}},
	{kind: KindError, pattern: "already exists", cause: "it was created before", suggest: []string{"CREATE … IF NOT EXISTS"}},
	{kind: KindCompile, pattern: "table * has * columns but * values were supplied", cause: "$1 has $2 columns, and there are $3 values"},
}

// sqlWords are words of SQL, for mistyped ones.
var sqlWords = [...]string{
	"ALTER", "AND", "BEGIN", "COMMIT", "CREATE", "DELETE", "DISTINCT", "DROP", "EXISTS", "FROM", "GROUP", "HAVING", "INDEX", "INNER",
	"INSERT", "INTO", "JOIN",
	"LEFT", "LIMIT", "ORDER", "PRIMARY", "ROLLBACK", "SELECT", "TABLE", "UPDATE", "VALUES", "VIEW", "WHERE",
}

// sqlNames are the names in the user's files, without words of SQL.
func (c *inquiry) sqlNames() []string {
	return slices.DeleteFunc(slices.Clone(c.identifiers(Location{})), func(name string) bool {
		return slices.Contains(sqlWords[:], strings.ToUpper(name))
	})
}

func missingTable(c *inquiry, _ *thrown, m []string) *answer {
	name := strings.TrimSpace(m[0])
	return answered(KindName, "there is no table "+name, didYouMean(near(name, c.sqlNames())))
}

func missingColumn(c *inquiry, t *thrown, m []string) *answer {
	name := strings.TrimSpace(m[0])
	if len(c.help) > 0 { // PostgreSQL knows the columns
		return answered(KindName, "there is no column "+name, c.help...)
	}
	return answered(KindName, "there is no column "+name, didYouMean(near(name[strings.LastIndexByte(name, '.')+1:], c.sqlNames())))
}

func wrongSQL(_ *inquiry, _ *thrown, m []string) *answer {
	if similar := near(strings.ToUpper(m[0]), sqlWords[:]); similar != "" {
		return answered(KindSyntax, m[0]+" can not stand here", didYouMean(similar))
	}
	return answered(KindSyntax, m[0]+" can not stand here: probably the error is just before it")
}

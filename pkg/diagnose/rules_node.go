package diagnose

import (
	"path"
	"slices"
	"strings"
)

// nodeRules explain errors of JavaScript and TypeScript.
var nodeRules = []rule{
	{kind: KindModule, pattern: "Cannot find module '*'", explain: missingNodeModule},
	{kind: KindModule, pattern: "Cannot find package '*' imported from", explain: missingNodeModule},
	{kind: KindModule, pattern: `Could not resolve "*"`, explain: missingNodeModule},
	{kind: KindModule, class: "ERR_PACKAGE_PATH_NOT_EXPORTED", cause: "the package has no such part"},
	{kind: KindModule, class: "SyntaxError", pattern: "The requested module '*' does not provide an export named '*'",
		cause: "the module $1 exports no $2"},
	{kind: KindSyntax, pattern: "Cannot use import statement outside a module",
		cause:   "the file is CommonJS, which has require() in place of import",
		suggest: []string{`name the file .mjs, or write "type": "module" into package.json`}},
	{kind: KindSyntax, class: "ReferenceError", pattern: "require is not defined",
		cause:   "the file is an ES module, which has import in place of require()",
		suggest: []string{"import NAME from \"MODULE\", or name the file .cjs"}},
	{kind: KindName, class: "ReferenceError", pattern: "__dirname is not defined", cause: "an ES module has no __dirname",
		suggest: []string{"import.meta.dirname"}},
	{kind: KindName, class: "ReferenceError", pattern: "Cannot access '*' before initialization",
		cause: "$1 is used above its declaration", suggest: []string{"move the declaration up"}},
	{kind: KindName, class: "ReferenceError", pattern: "* is not defined", explain: undefinedNodeName},
	{kind: KindNull, class: "TypeError", pattern: "Cannot read properties of * (reading '*')",
		cause: "the value before .$2 is $1", suggest: []string{"check the value, or write ?.$2"}},
	{kind: KindNull, class: "TypeError", pattern: "Cannot set properties of * (setting '*')", cause: "the value before .$2 is $1"},
	{kind: KindNull, class: "TypeError", pattern: "Cannot destructure property '*' of '*' as it is *.",
		cause: "the value from which $1 is taken is $3"},
	{kind: KindType, class: "TypeError", pattern: "* is not a function", explain: notAFunction},
	{kind: KindType, class: "TypeError", pattern: "* is not iterable", cause: "$1 is no list, and can not be looped over"},
	{kind: KindType, class: "TypeError", pattern: "Assignment to constant variable.", cause: "a constant is assigned again",
		suggest: []string{"declare it with let"}},
	{kind: KindType, class: "TypeError", pattern: "Cannot mix BigInt and other types", cause: "a BigInt and a number can not be combined",
		suggest: []string{"convert one of them: BigInt(N) or Number(B)"}},
	{kind: KindType, class: "TypeError", pattern: "Converting circular structure to JSON",
		cause: "the object contains itself, and JSON can not"},
	{kind: KindRecursion, class: "RangeError", pattern: "Maximum call stack size exceeded",
		cause:   "a function calls itself too often: probably the end of the recursion is never reached",
		suggest: []string{"check the condition that ends the recursion"}},
	{kind: KindValue, class: "RangeError", pattern: "Invalid array length",
		cause: "the length of an array is negative, or no whole number"},
	{kind: KindValue, class: "SyntaxError", pattern: "Unexpected end of JSON input", cause: "the JSON is empty or cut off",
		suggest: []string{"print the text before it is parsed"}},
	{kind: KindValue, class: "SyntaxError", pattern: "is not valid JSON", cause: "the text is not JSON",
		suggest: []string{"print the text before it is parsed"}},
	{kind: KindValue, class: "SyntaxError", pattern: "in JSON at position *", cause: "the text is not JSON, from position $1 on",
		suggest: []string{"print the text before it is parsed"}},
	{kind: KindSyntax, class: "SyntaxError", pattern: "Unexpected end of input", cause: "a bracket is not closed"},
	{kind: KindSyntax, class: "SyntaxError", pattern: "await is only valid in async functions",
		cause: "await needs an async function, or an ES module", suggest: []string{"name the file .mjs, or put the code into an async function"}},
	{kind: KindSyntax, class: "SyntaxError", pattern: "Identifier '*' has already been declared", cause: "$1 is declared twice"},
	{kind: KindSyntax, class: "SyntaxError"},
	{kind: KindFile, pattern: "spawn * ENOENT", explain: missingSpawned},
	{kind: KindVersion, class: "EBADENGINE|ERR_UNKNOWN_BUILTIN_MODULE", explain: nodeBuiltin},
	{kind: KindModule, class: "ERR_UNKNOWN_FILE_EXTENSION", cause: "Node.js does not know the extension of the file"},
	{kind: KindType, class: "TypeError", explain: typeError},
}

// nodeModules are Node's own modules.
var nodeModules = [...]string{
	"assert", "async_hooks", "buffer", "child_process", "cluster", "console", "constants", "crypto", "dgram", "diagnostics_channel",
	"dns", "domain",
	"events", "fs", "http", "http2", "https", "inspector", "module", "net", "os", "path", "perf_hooks", "process", "punycode",
	"querystring", "readline",
	"repl", "stream", "string_decoder", "timers", "tls", "tty", "url", "util", "v8", "vm", "wasi", "worker_threads", "zlib",
}

// nodeKnown are common packages, for names that are mistyped.
var nodeKnown = [...]string{
	"axios", "chalk", "cheerio", "commander", "dotenv", "express", "jest", "lodash", "moment", "mongoose", "react", "rxjs",
	"typescript", "uuid", "yargs", "zod",
}

func missingNodeModule(c *inquiry, t *thrown, m []string) *answer {
	name := m[0]
	if _, importer, ok := strings.Cut(t.text, "imported from "); ok && t.at.File == "" { // an ES module has no frame for its imports
		t.at = c.findText(importer, path.Base(name))
	}
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "/") {
		base := path.Base(name)
		var names []string
		for _, f := range c.Files {
			names = append(names, path.Base(f), strings.TrimSuffix(path.Base(f), path.Ext(f)))
			if stem := strings.TrimSuffix(path.Base(f), path.Ext(f)); stem == base && path.Ext(base) == "" {
				return answered(KindModule, "an import of an ES module needs the extension of its file, or the file is in another directory",
					"write the extension, if it is "+f+": "+path.Base(f))
			}
		}
		return answered(KindModule, "the file "+name+" is not in the sandbox", didYouMean(near(base, names)))
	}
	parts := strings.SplitN(strings.TrimPrefix(name, "node:"), "/", 3)
	pkg := parts[0]
	if strings.HasPrefix(pkg, "@") && len(parts) > 1 {
		pkg += "/" + parts[1]
	}
	if !isName(pkg, "@/.-") {
		return answered(KindModule, "")
	}
	if slices.Contains(nodeModules[:], pkg) {
		return answered(KindModule, "the module "+pkg+" of Node.js has no such part")
	}
	known := slices.Concat(nodeModules[:], nodeKnown[:])
	if similar := near(pkg, known); similar != "" && !slices.Contains(nodeKnown[:], pkg) && !strings.HasPrefix(pkg, "@") {
		return answered(KindModule, "there is no module "+pkg+" in the sandbox", didYouMean(similar), c.guessStep(pkg))
	}
	return answered(KindModule, "the package "+pkg+" is not installed in the sandbox", c.depsStep(pkg))
}

func undefinedNodeName(c *inquiry, t *thrown, m []string) *answer {
	name := m[0][strings.LastIndexByte(m[0], ' ')+1:]
	switch name {
	case "window", "document", "localStorage", "alert", "prompt", "XMLHttpRequest":
		return answered(KindName, name+" exists in browsers, and not in Node.js")
	case "True", "False", "None", "print":
		return answered(KindName, name+" is Python, and not JavaScript",
			didYouMean(map[string]string{"True": "true", "False": "false", "None": "null", "print": "console.log"}[name]))
	}
	if slices.Contains(nodeModules[:], name) {
		return answered(KindName, "the module "+name+" is not imported", "const "+name+" = require(\"node:"+name+"\")")
	}
	return answered(KindName, "no variable or function has the name "+name, didYouMean(near(name, c.identifiers(t.at))))
}

func notAFunction(_ *inquiry, _ *thrown, m []string) *answer {
	name := m[0]
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		return answered(KindType, name[:i]+" has no function "+name[i+1:])
	}
	return answered(KindType, name+" is a value, and not a function")
}

// typeError leaves the answer to the rules of the cause, if Node.js prints one.
func typeError(c *inquiry, t *thrown, _ []string) *answer {
	if t == &c.thrown[0] && len(c.thrown) > 1 {
		return nil
	}
	return &answer{kind: KindType}
}

func missingSpawned(_ *inquiry, _ *thrown, m []string) *answer {
	return answered(KindCommand, "the command "+m[0]+" is not in the sandbox", "--image IMAGE, an image that has it")
}

func nodeBuiltin(c *inquiry, t *thrown, _ []string) *answer {
	parts, ok := capture("No such built-in module: *", t.text)
	if !ok {
		return nil
	}
	name := strings.TrimPrefix(strings.TrimSpace(parts[0]), "node:")
	if similar := near(name, nodeModules[:]); similar != "" {
		return answered(KindModule, "Node.js has no module "+name, didYouMean("node:"+similar))
	}
	return answered(KindVersion, "this Node.js has no module "+name+installed(c, "Node.js"), stepImage)
}

// findText is the first line of a user's file with a text.
func (c *inquiry) findText(file, text string) Location {
	file, _ = c.resolve(file)
	source, ok := c.source(file)
	before, _, found := strings.Cut(source, text)
	if !ok || !found {
		return Location{}
	}
	return Location{File: file, Line: strings.Count(before, "\n") + 1}
}

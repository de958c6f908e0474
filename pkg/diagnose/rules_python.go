package diagnose

import (
	"path"
	"slices"
	"strings"
)

// pythonRules explain errors of Python.
var pythonRules = []rule{
	{kind: KindModule, class: "ModuleNotFoundError|ImportError", pattern: "No module named '*'", explain: missingPythonModule},
	{kind: KindModule, class: "ModuleNotFoundError|ImportError", pattern: "No module named *", explain: missingPythonModule},
	{kind: KindName, class: "ImportError", pattern: "cannot import name '*' from partially initialized module '*'",
		cause: "modules import each other in a circle", suggest: []string{"import $2 inside the function that needs it"}},
	{kind: KindName, class: "ImportError", pattern: "cannot import name '*' from '*' (*)", explain: missingPythonName},
	{kind: KindName, class: "AttributeError", pattern: "module '*' has no attribute '*'", explain: shadowedModule},
	{kind: KindNull, class: "AttributeError|TypeError", pattern: "'NoneType' object", explain: pythonNone},
	{kind: KindName, class: "AttributeError", pattern: "has no attribute '*'. Did you mean: '*'?",
		suggest: []string{"probably $2 is meant"}},
	{kind: KindName, class: "AttributeError", pattern: "'*' object has no attribute '*'", explain: pythonAttribute},
	{kind: KindName, class: "UnboundLocalError", pattern: "local variable '*'",
		cause:   "the function assigns to $1, which makes it local, and reads it before",
		suggest: []string{"pass it as an argument, or declare it: global $1"}},
	{kind: KindName, class: "NameError", pattern: "name '*' is not defined", explain: undefinedPythonName},
	{kind: KindKey, class: "KeyError", pattern: "'*'", explain: missingKey},
	{kind: KindKey, class: "KeyError", pattern: "*", cause: "the dictionary has no key $1",
		suggest: []string{"check the key, or use .get()"}},
	{kind: KindIndex, class: "IndexError", pattern: "pop from empty", cause: "the list is empty"},
	{kind: KindIndex, class: "IndexError", pattern: "index * is out of bounds for axis * with size *",
		cause: "the index is $1 and the length of axis $2 is $3"},
	{kind: KindIndex, class: "IndexError", pattern: "*index out of range",
		cause: "the index is not less than the length; indexes start at 0", suggest: []string{"compare the index with len()"}},
	{kind: KindDivision, class: "ZeroDivisionError", cause: "the divisor is 0",
		suggest: []string{"check the divisor before the division"}},
	{kind: KindEncoding, class: "UnicodeDecodeError", pattern: "'*' codec can't decode byte * in position *:",
		cause:   "the byte $2 at position $3 is not $1",
		suggest: []string{`open(FILE, encoding="latin-1"), or the encoding that the file has`, `open(FILE, "rb") for bytes`}},
	{kind: KindEncoding, class: "UnicodeEncodeError", pattern: "'*' codec can't encode character",
		cause: "the encoding $1 does not have this character", suggest: []string{`open(FILE, "w", encoding="utf-8")`}},
	{kind: KindEncoding, class: "SyntaxError", pattern: "Non-UTF-8 code starting with",
		cause:   "the source is not UTF-8",
		suggest: []string{"save it as UTF-8, or name its encoding in its first line: # -*- coding: latin-1 -*-"}},
	{kind: KindInput, class: "EOFError", pattern: "EOF when reading a line",
		cause: "input() found the end of standard input", suggest: []string{stepInput}},
	{kind: KindRecursion, class: "RecursionError",
		cause:   "a function calls itself too often: probably the end of the recursion is never reached",
		suggest: []string{"check the condition that ends the recursion", "sys.setrecursionlimit(N) for a deep recursion that ends"}},
	{kind: KindValue, class: "ValueError", pattern: "invalid literal for int() with base 10: ''",
		cause: "the text is empty, and no number"},
	{kind: KindValue, class: "ValueError", pattern: "invalid literal for int() with base *: '*'", explain: pythonInt},
	{kind: KindValue, class: "ValueError", pattern: "could not convert string to float: '*'", cause: "the text '$1' is not a number"},
	{kind: KindValue, class: "ValueError", pattern: "not enough values to unpack (expected *, got *)",
		cause: "the right side has $2 values, and the left side $1 names"},
	{kind: KindValue, class: "ValueError", pattern: "too many values to unpack (expected *)",
		cause: "the right side has more values than the $1 names on the left side"},
	{kind: KindValue, class: "JSONDecodeError", pattern: "Expecting value: line 1 column 1 (char 0)",
		cause:   "the text is empty, or not JSON",
		suggest: []string{"print the text before it is parsed"}},
	{kind: KindValue, class: "JSONDecodeError", pattern: "Expecting property name enclosed in double quotes",
		cause: "the text is not JSON: names need double quotes, and no comma may follow the last"},
	{kind: KindType, class: "TypeError", pattern: `can only concatenate str (not "*") to str`,
		cause: "text and $1 can not be added", suggest: []string{"convert it: str(VALUE), or use an f-string"}},
	{kind: KindType, class: "TypeError", pattern: "unsupported operand type(s) for *: '*' and '*'",
		cause: "$1 has no meaning for $2 and $3", suggest: []string{"convert one of them, as with int() or str()"}},
	{kind: KindType, class: "TypeError", pattern: "'*' object is not callable",
		cause:   "the name is that of a value ($1), and not of a function",
		suggest: []string{"check whether a variable has the name of the function"}},
	{kind: KindType, class: "TypeError"},
	{kind: KindSyntax, class: "SyntaxError|IndentationError|TabError", pattern: "Missing parentheses in call to 'print'",
		cause: "print without parentheses is Python 2", suggest: []string{"print(…)"}},
	{kind: KindSyntax, class: "IndentationError|TabError", pattern: "*", explain: pythonIndent},
	{kind: KindSyntax, class: "SyntaxError", pattern: "'await' outside function", cause: "await needs an async function",
		suggest: []string{"async def main(): …, and asyncio.run(main())"}},
	{kind: KindSyntax, class: "SyntaxError", pattern: "*", explain: pythonSyntax},
	{kind: KindFile, class: "FileNotFoundError", pattern: "No such file or directory: '*'", explain: missingProgram},
}

// pythonPackages are the packages of modules that have another name.
var pythonPackages = [...][2]string{
	{"Crypto", "pycryptodome"}, {"Levenshtein", "python-Levenshtein"}, {"MySQLdb", "mysqlclient"}, {"OpenGL", "PyOpenGL"},
	{"OpenSSL", "pyOpenSSL"},
	{"PIL", "pillow"}, {"PyPDF2", "PyPDF2"}, {"attr", "attrs"}, {"bs4", "beautifulsoup4"}, {"cairo", "pycairo"},
	{"cv2", "opencv-python-headless"},
	{"dateutil", "python-dateutil"}, {"discord", "discord.py"}, {"distutils", "setuptools"}, {"docx", "python-docx"},
	{"dotenv", "python-dotenv"},
	{"fitz", "PyMuPDF"}, {"git", "GitPython"}, {"github", "PyGithub"}, {"google.cloud.storage", "google-cloud-storage"},
	{"google.protobuf", "protobuf"}, {"jose", "python-jose"}, {"jwt", "PyJWT"},
	{"magic", "python-magic"}, {"mpl_toolkits", "matplotlib"}, {"multipart", "python-multipart"}, {"nacl", "PyNaCl"},
	{"pkg_resources", "setuptools"},
	{"pptx", "python-pptx"}, {"psycopg2", "psycopg2-binary"}, {"pymysql", "PyMySQL"}, {"ruamel", "ruamel.yaml"}, {"serial", "pyserial"},
	{"skimage", "scikit-image"}, {"sklearn", "scikit-learn"}, {"slugify", "python-slugify"}, {"socks", "PySocks"},
	{"telegram", "python-telegram-bot"},
	{"usb", "pyusb"}, {"websocket", "websocket-client"}, {"wx", "wxPython"}, {"yaml", "PyYAML"}, {"zmq", "pyzmq"},
}

// pythonSame are packages whose modules have their name.
var pythonSame = [...]string{
	"aiohttp", "anthropic", "arrow", "black", "boto3", "click", "colorama", "cryptography", "cython", "django", "docker", "duckdb",
	"faker", "fastapi",
	"flask", "gensim", "httpx", "hypothesis", "jinja2", "jsonschema", "keras", "langchain", "lightgbm", "loguru", "lxml", "markdown",
	"matplotlib",
	"mypy", "networkx", "nltk", "numba", "numpy", "openai", "openpyxl", "orjson", "packaging", "pandas", "paramiko", "peewee",
	"pendulum", "plotly",
	"polars", "psutil", "pyarrow", "pydantic", "pygame", "pygments", "pymongo", "pytest", "pytz", "redis", "regex", "requests",
	"rich", "scipy",
	"seaborn", "selenium", "setuptools", "six", "spacy", "sqlalchemy", "starlette", "statsmodels", "sympy", "tabulate", "tenacity",
	"tensorflow",
	"termcolor", "toml", "torch", "torchvision", "tornado", "tqdm", "transformers", "typer", "ujson", "urllib3", "uvicorn",
	"werkzeug", "xgboost",
	"xlsxwriter",
}

// pythonWindows are modules that only Windows has.
var pythonWindows = [...]string{"_winapi", "msvcrt", "pythoncom", "pywintypes", "win32api", "win32clipboard", "win32com", "win32con",
	"win32gui", "winreg", "winsound"}

// pythonGone are modules of the standard library that a version removed.
var pythonGone = [...][2]string{
	{"aifc", "3.13"}, {"asynchat", "3.12"}, {"asyncore", "3.12"}, {"cgi", "3.13"}, {"cgitb", "3.13"}, {"crypt", "3.13"},
	{"distutils", "3.12"},
	{"imp", "3.12"}, {"imghdr", "3.13"}, {"lib2to3", "3.13"}, {"nntplib", "3.13"}, {"pipes", "3.13"}, {"smtpd", "3.12"},
	{"telnetlib", "3.13"},
	{"urllib2", "3.0"}, {"ConfigParser", "3.0"}, {"StringIO", "3.0"}, {"Queue", "3.0"}, {"cPickle", "3.0"}, {"Tkinter", "3.0"},
}

// pythonNew are modules of the standard library that a version added.
var pythonNew = [...][2]string{
	{"annotationlib", "3.14"}, {"compression", "3.14"}, {"graphlib", "3.9"}, {"tomllib", "3.11"}, {"zoneinfo", "3.9"},
}

// pythonStandard are common modules of the standard library.
var pythonStandard = [...]string{
	"abc", "argparse", "array", "ast", "asyncio", "atexit", "base64", "bisect", "calendar", "collections", "concurrent",
	"configparser", "contextlib",
	"copy", "csv", "ctypes", "dataclasses", "datetime", "decimal", "difflib", "email", "enum", "fractions", "functools", "getpass",
	"glob", "gzip",
	"hashlib", "heapq", "hmac", "html", "http", "importlib", "inspect", "io", "ipaddress", "itertools", "json", "logging", "math",
	"multiprocessing",
	"numbers", "operator", "os", "pathlib", "pickle", "platform", "pprint", "queue", "random", "re", "secrets", "select", "shelve",
	"shutil", "signal",
	"socket", "sqlite3", "ssl", "statistics", "string", "struct", "subprocess", "sys", "tempfile", "textwrap", "threading", "time",
	"timeit", "tkinter",
	"traceback", "types", "typing", "unicodedata", "unittest", "urllib", "uuid", "warnings", "weakref", "xml", "zipfile", "zlib",
}

func missingPythonModule(c *inquiry, t *thrown, m []string) *answer {
	module := strings.Trim(m[0], "'\" ")
	if i := strings.IndexAny(module, "';"); i >= 0 {
		module = module[:i]
	}
	if !isName(module, ".") {
		return answered(KindModule, "")
	}
	top, _, nested := strings.Cut(module, ".")
	if !nested {
		module = fullModule(c.sourceLine(t.at), top)
	}
	switch {
	case slices.Contains(pythonWindows[:], top):
		return answered(KindModule, "the module "+top+" exists on Windows only")
	case lookUp(pythonNew[:], top) != "":
		return &answer{KindVersion, top + " is new in Python " + lookUp(pythonNew[:], top) + installed(c, "Python"), []string{stepImage}}
	case top == "tkinter" || top == "_tkinter":
		return answered(KindModule, "this Python has no tkinter, and the sandbox no screen")
	}
	if gone := lookUp(pythonGone[:], top); gone != "" {
		cause := top + " was removed in Python " + gone + installed(c, "Python")
		if p := lookUp(pythonPackages[:], top); p != "" {
			return answered(KindModule, cause, c.depsStep(p))
		}
		return answered(KindModule, cause)
	}
	if c.hasFile(top+".py") || slices.ContainsFunc(c.Files, func(f string) bool { return strings.HasPrefix(f, top+"/") }) {
		if nested {
			return answered(KindModule, "the package "+top+" is the program's own, and has no module "+module)
		}
		return answered(KindModule, "the module "+top+" is the program's own, and in a directory that Python does not search",
			"start the program from the directory above it, or set PYTHONPATH")
	}
	cause := "the module " + top + " is not installed in the sandbox"
	for name := module; name != ""; name = name[:max(0, strings.LastIndexByte(name, '.'))] {
		if p := lookUp(pythonPackages[:], name); p != "" {
			return answered(KindModule, cause, c.depsStep(p))
		}
	}
	if slices.Contains(pythonSame[:], strings.ToLower(top)) {
		return answered(KindModule, cause, c.depsStep(top))
	}
	if slices.Contains(pythonStandard[:], top) {
		return answered(KindModule, "the module "+module+" is not in the standard library")
	}
	known := slices.Concat(pythonStandard[:], pythonSame[:], moduleNames(c))
	if similar := near(top, known); similar != "" {
		return answered(KindModule, "there is no module "+top, didYouMean(similar))
	}
	return answered(KindModule, cause, c.guessStep(top))
}

// fullModule is the module with its parts, as the line of the import has it.
func fullModule(line, top string) string {
	_, rest, ok := strings.Cut(line, top+".")
	if !ok {
		return top
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return !isLetter(r) && (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(rest)
	}
	return top + "." + strings.TrimSuffix(rest[:end], ".")
}

// moduleNames are the names under which the user's own files are imported.
func moduleNames(c *inquiry) (names []string) {
	for _, f := range c.Files {
		if name, ok := strings.CutSuffix(path.Base(f), ".py"); ok {
			names = append(names, name)
		}
	}
	return names
}

func lookUp(table [][2]string, key string) string {
	for _, row := range table {
		if row[0] == key {
			return row[1]
		}
	}
	return ""
}

// stepImage is the step to another version of a toolchain.
const stepImage = "--image IMAGE, an image with that version"

// installed names the version of the toolchain, as the end of a sentence.
func installed(c *inquiry, title string) string {
	if c.Version == "" {
		return ""
	}
	return "; " + title + " " + c.Version + " is installed"
}

// depsStep is the flag that installs a package.
func (c *inquiry) depsStep(name string) string {
	if c.Image {
		return "an image with " + name + " in it: packages are not installed on images"
	}
	return "--deps " + name
}

// guessStep is the step for a package whose name is that of its module, probably.
func (c *inquiry) guessStep(name string) string {
	if c.Image {
		return c.depsStep(name)
	}
	return "--deps " + name + ", if that is the name of its package"
}

func missingPythonName(c *inquiry, _ *thrown, m []string) *answer {
	if file, ok := c.resolve(m[2]); ok {
		c.words = nil
		return answered(KindName, file+" has no name "+m[0], didYouMean(near(m[0], c.identifiers(Location{File: file}))))
	}
	return answered(KindName, "this version of "+m[1]+" has no name "+m[0])
}

func shadowedModule(c *inquiry, _ *thrown, m []string) *answer {
	module := m[0]
	if c.hasFile(module+".py") && (slices.Contains(pythonStandard[:], module) || slices.Contains(pythonSame[:], module)) {
		return answered(KindModule, "the program's own "+module+".py is imported in place of the module "+module, "rename "+module+".py")
	}
	if i := strings.IndexByte(m[1], '\''); i >= 0 {
		m[1] = m[1][:i]
	}
	return answered(KindName, "the module "+module+" has no "+m[1])
}

func pythonNone(_ *inquiry, t *thrown, _ []string) *answer {
	if parts, ok := capture("has no attribute '*'", t.text); ok {
		return answered(KindNull, "the value before ."+parts[0]+" is None: "+
			"probably the result of a function that returns nothing, or that found nothing",
			"check the value for None before it is used")
	}
	return answered(KindNull, "the value is None: probably the result of a function that returns nothing, or that found nothing",
		"check the value for None before it is used")
}

func pythonAttribute(c *inquiry, t *thrown, m []string) *answer {
	if parts, ok := capture("Did you mean: '*'", t.text); ok {
		return answered(KindName, m[0]+" has no "+m[1], didYouMean(parts[0]))
	}
	return answered(KindName, m[0]+" has no "+m[1])
}

// pythonBuiltins are names that need no import.
var pythonBuiltins = [...]string{
	"False", "None", "True", "abs", "all", "any", "bool", "bytes", "chr", "dict", "enumerate", "filter", "float", "format", "input",
	"int", "isinstance",
	"len", "list", "map", "max", "min", "next", "open", "ord", "print", "range", "repr", "reversed", "round", "set", "sorted", "str",
	"sum", "super",
	"tuple", "type", "zip",
}

func undefinedPythonName(c *inquiry, t *thrown, m []string) *answer {
	name := m[0]
	if parts, ok := capture("Did you forget to import '*'", t.text); ok {
		return answered(KindName, "", "import "+parts[0])
	}
	if parts, ok := capture("Did you mean: '*'", t.text); ok {
		return answered(KindName, "no variable or function has the name "+name, didYouMean(parts[0]))
	}
	switch name {
	case "true", "false", "null":
		return answered(KindName, name+" is not a word of Python", didYouMean(map[string]string{"true": "True", "false": "False",
			"null": "None"}[name]))
	case "raw_input", "xrange", "unicode", "basestring", "long":
		return answered(KindName, name+" is Python 2"+installed(c, "Python"),
			didYouMean(map[string]string{"raw_input": "input", "xrange": "range", "unicode": "str", "basestring": "str", "long": "int"}[name]))
	case "np", "pd", "plt":
		return answered(KindName, "the module of "+name+" is not imported",
			map[string]string{"np": "import numpy as np", "pd": "import pandas as pd", "plt": "import matplotlib.pyplot as plt"}[name])
	}
	if slices.Contains(pythonStandard[:], name) {
		return answered(KindName, "the module "+name+" is not imported", "import "+name)
	}
	return answered(KindName, "no variable or function has the name "+name,
		didYouMean(near(name, slices.Concat(c.identifiers(t.at), pythonBuiltins[:]))))
}

// missingKey looks for a similar key among the texts in the user's file.
func missingKey(c *inquiry, t *thrown, m []string) *answer {
	return answered(KindKey, "there is no key "+quoted(m[0]), didYouMean(nearText(c, t.at, m[0])))
}

// nearText is the text in quotes in the user's files that is closest to another one, with its quotes.
func nearText(c *inquiry, at Location, text string) string {
	source, _ := c.source(at.File)
	for _, file := range c.Files[:min(len(c.Files), maxSearched)] {
		if more, ok := c.source(file); ok && file != at.File && len(source) < maxSource {
			source += "\n" + more
		}
	}
	var texts []string
	for line := range strings.Lines(source) {
		for len(line) > 0 && len(texts) < maxWords {
			start := strings.IndexAny(line, `"'`)
			if start < 0 {
				break
			}
			end := strings.IndexByte(line[start+1:], line[start])
			if end < 0 {
				break
			}
			texts = append(texts, line[start+1:start+1+end])
			line = line[start+end+2:]
		}
	}
	if similar := near(text, texts); similar != "" {
		return quoted(similar)
	}
	return ""
}

func pythonInt(_ *inquiry, _ *thrown, m []string) *answer {
	if strings.Contains(m[1], ".") {
		return answered(KindValue, "the text '"+m[1]+"' is not a whole number", "int(float(TEXT)), if it is to be cut")
	}
	return answered(KindValue, "the text '"+m[1]+"' is not a whole number")
}

func pythonIndent(_ *inquiry, t *thrown, _ []string) *answer {
	if t.class == "TabError" {
		return answered(KindSyntax, "the indentation has tabs and spaces", "use spaces only")
	}
	return &answer{kind: KindSyntax}
}

// pythonSyntax finds syntax that is newer than the interpreter.
func pythonSyntax(c *inquiry, t *thrown, _ []string) *answer {
	line := strings.TrimSpace(c.sourceLine(t.at))
	newer := ""
	switch {
	case strings.HasPrefix(line, "type ") && strings.Contains(line, "="),
		(strings.HasPrefix(line, "def ") || strings.HasPrefix(line, "class ")) && bracketsAfterName(line):
		newer = "3.12"
	case strings.Contains(line, " t\"") || strings.Contains(line, " t'"):
		newer = "3.14"
	case strings.HasPrefix(line, "except*"):
		newer = "3.11"
	case strings.HasPrefix(line, "match ") && strings.HasSuffix(line, ":"):
		newer = "3.10"
	}
	if newer != "" && c.Version != "" && olderThan(c.Version, newer) {
		return &answer{KindVersion, "this is probably syntax of Python " + newer + installed(c, "Python"), []string{stepImage}}
	}
	return &answer{kind: KindSyntax}
}

// bracketsAfterName reports whether type parameters follow the name of a function or class: def f[T](x).
func bracketsAfterName(line string) bool {
	i := strings.IndexAny(line, "[(:")
	return i >= 0 && line[i] == '['
}

// olderThan compares versions part by part.
func olderThan(version, than string) bool {
	a, b := strings.Split(version, "."), strings.Split(than, ".")
	for i := range b {
		if i >= len(a) {
			return false
		}
		if x, y := atoi(a[i]), atoi(b[i]); x != y {
			return x < y
		}
	}
	return false
}

// missingProgram distinguishes a command from a file: subprocess reports both in the same words.
func missingProgram(c *inquiry, t *thrown, m []string) *answer {
	for _, f := range t.frames {
		if strings.HasSuffix(f.File, "/subprocess.py") {
			return answered(KindCommand, "the command "+m[0]+" is not in the sandbox", "--image IMAGE, an image that has it")
		}
	}
	return missingFile(c, t, m)
}

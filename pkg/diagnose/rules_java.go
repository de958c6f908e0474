package diagnose

import (
	"slices"
	"strings"
)

// javaRules explain errors of javac and of Java programs.
var javaRules = []rule{
	{kind: KindModule, class: "error", pattern: "package * does not exist", explain: missingJavaPackage},
	{kind: KindName, class: "error", pattern: "cannot find symbol", explain: missingSymbol},
	{kind: KindType, class: "error", pattern: "incompatible types: possible lossy conversion from * to *",
		cause:   "a value of type $1 may not fit into $2",
		suggest: []string{"a cast: ($2) VALUE"}},
	{kind: KindType, class: "error", pattern: "incompatible types: * cannot be converted to *",
		cause: "the value is of type $1, and $2 is needed"},
	{kind: KindType, class: "error", pattern: "incompatible types"},
	{kind: KindCompile, class: "error", pattern: "unreported exception *; must be caught or declared to be thrown",
		cause: "$1 is neither caught nor declared", suggest: []string{"try { … } catch ($1 e) { … }",
			"throws $1 after the method's parameters"}},
	{kind: KindCompile, class: "error", pattern: "missing return statement", cause: "the method can end without a return"},
	{kind: KindCompile, class: "error", pattern: "variable * might not have been initialized",
		cause: "$1 may be read before it has a value"},
	{kind: KindCompile, class: "error", pattern: "variable * is already defined in method *", cause: "$1 is declared twice"},
	{kind: KindSyntax, class: "error", pattern: "reached end of file while parsing", cause: "a brace is not closed"},
	{kind: KindSyntax, class: "error", pattern: "expected"},
	{kind: KindSyntax, class: "error", pattern: "illegal start of"},
	{kind: KindSyntax, class: "error", pattern: "not a statement"},
	{kind: KindVersion, class: "error", pattern: "are a preview feature", explain: newerJava},
	{kind: KindMain, pattern: "Main method not found in class *, please", cause: "the class $1 has no main method",
		suggest: []string{"public static void main(String[] args) { … }"}},
	{kind: KindIndex, class: "ArrayIndexOutOfBoundsException|IndexOutOfBoundsException|StringIndexOutOfBoundsException",
		pattern: "ndex * out of bounds for length *", explain: indexWithLength},
	{kind: KindIndex, class: "StringIndexOutOfBoundsException|IndexOutOfBoundsException"},
	{kind: KindNull, class: "NullPointerException", pattern: `Cannot * because "*" is null`, explain: javaNull},
	{kind: KindNull, class: "NullPointerException", cause: "a reference is null",
		suggest: []string{"check it for null before it is used"}},
	{kind: KindDivision, class: "ArithmeticException", pattern: "/ by zero", cause: "the divisor is 0",
		suggest: []string{"check the divisor before the division"}},
	{kind: KindValue, class: "NumberFormatException", pattern: `For input string: "*"`,
		cause: `the text "$1" is not a number of this type`},
	{kind: KindType, class: "ClassCastException", pattern: "class * cannot be cast to class * (",
		cause: "the object is of class $1, and not $2"},
	{kind: KindInput, class: "NoSuchElementException", pattern: "No line found", cause: "the Scanner found the end of standard input",
		suggest: []string{stepInput, "hasNextLine() before nextLine()"}},
	{kind: KindInput, class: "NoSuchElementException", explain: scannerAtEnd},
	{kind: KindValue, class: "InputMismatchException",
		cause: "the next word of the input is not of the type that the Scanner was asked for"},
	{kind: KindRecursion, class: "StackOverflowError",
		cause:   "a method calls itself too often: probably the end of the recursion is never reached",
		suggest: []string{"check the condition that ends the recursion"}},
	{kind: KindError, class: "ConcurrentModificationException", cause: "the collection is changed while a loop goes over it",
		suggest: []string{"removeIf(…), or an Iterator's remove()"}},
	{kind: KindType, class: "UnsupportedOperationException",
		cause:   "the collection can not be changed, as those of List.of and Arrays.asList",
		suggest: []string{"new ArrayList<>(LIST)"}},
	{kind: KindModule, class: "ClassNotFoundException", pattern: "*", cause: "the class $1 is not in the sandbox"},
	{kind: KindEncoding, class: "MalformedInputException", cause: "the bytes are not text in the expected encoding",
		suggest: []string{"name the encoding: StandardCharsets.ISO_8859_1"}},
}

// javaPackages are the coordinates of well-known packages.
var javaPackages = [...][2]string{
	{"com.fasterxml.jackson.core", "com.fasterxml.jackson.core:jackson-core"},
	{"com.fasterxml.jackson.databind", "com.fasterxml.jackson.core:jackson-databind"},
	{"com.google.common", "com.google.guava:guava"}, {"com.google.gson", "com.google.code.gson:gson"},
	{"lombok", "org.projectlombok:lombok"},
	{"okhttp3", "com.squareup.okhttp3:okhttp"}, {"org.apache.commons.collections4", "org.apache.commons:commons-collections4"},
	{"org.apache.commons.csv", "org.apache.commons:commons-csv"}, {"org.apache.commons.io", "commons-io:commons-io"},
	{"org.apache.commons.lang3", "org.apache.commons:commons-lang3"}, {"org.apache.commons.math3", "org.apache.commons:commons-math3"},
	{"org.apache.commons.text", "org.apache.commons:commons-text"}, {"org.json", "org.json:json"}, {"org.jsoup", "org.jsoup:jsoup"},
	{"org.junit", "junit:junit"}, {"org.junit.jupiter.api", "org.junit.jupiter:junit-jupiter"}, {"org.slf4j", "org.slf4j:slf4j-api"},
}

// javaImports are common classes of the standard library that need an import.
var javaImports = [...][2]string{
	{"ArrayDeque", "java.util"}, {"ArrayList", "java.util"}, {"Arrays", "java.util"}, {"AtomicInteger", "java.util.concurrent.atomic"},
	{"AtomicLong", "java.util.concurrent.atomic"}, {"BigDecimal", "java.math"}, {"BigInteger", "java.math"}, {"BufferedReader", "java.io"},
	{"Collection", "java.util"}, {"Collections", "java.util"}, {"Collectors", "java.util.stream"},
	{"CompletableFuture", "java.util.concurrent"},
	{"ConcurrentHashMap", "java.util.concurrent"}, {"CountDownLatch", "java.util.concurrent"}, {"Deque", "java.util"},
	{"Duration", "java.time"},
	{"ExecutorService", "java.util.concurrent"}, {"Executors", "java.util.concurrent"}, {"File", "java.io"}, {"FileReader", "java.io"},
	{"FileWriter", "java.io"}, {"Files", "java.nio.file"}, {"Function", "java.util.function"}, {"HashMap", "java.util"},
	{"HashSet", "java.util"},
	{"HttpClient", "java.net.http"}, {"IOException", "java.io"}, {"InputStreamReader", "java.io"}, {"Instant", "java.time"},
	{"IntStream", "java.util.stream"}, {"Iterator", "java.util"}, {"LinkedHashMap", "java.util"}, {"LinkedList", "java.util"},
	{"List", "java.util"},
	{"LocalDate", "java.time"}, {"LocalDateTime", "java.time"}, {"Map", "java.util"}, {"Objects", "java.util"}, {"Optional", "java.util"},
	{"Path", "java.nio.file"}, {"Paths", "java.nio.file"}, {"Pattern", "java.util.regex"}, {"Predicate", "java.util.function"},
	{"PriorityQueue", "java.util"}, {"Queue", "java.util"}, {"Random", "java.util"}, {"Scanner", "java.util"}, {"Set", "java.util"},
	{"Stack", "java.util"},
	{"StandardCharsets", "java.nio.charset"}, {"Stream", "java.util.stream"}, {"Supplier", "java.util.function"},
	{"TimeUnit", "java.util.concurrent"},
	{"TreeMap", "java.util"}, {"TreeSet", "java.util"}, {"UUID", "java.util"}, {"Vector", "java.util"},
}

func missingJavaPackage(c *inquiry, _ *thrown, m []string) *answer {
	name := m[0]
	if !isName(name, ".") {
		return answered(KindModule, "")
	}
	cause := "the package " + name + " is not in the sandbox"
	for p := name; p != ""; {
		if coordinate := lookUp(javaPackages[:], p); coordinate != "" {
			return answered(KindModule, cause, c.depsStep(coordinate))
		}
		i := strings.LastIndexByte(p, '.')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	if strings.HasPrefix(name, "java.") || strings.HasPrefix(name, "javax.") {
		return answered(KindModule, "Java has no package "+name+installed(c, "Java"))
	}
	var packages []string
	for _, row := range javaImports {
		if !slices.Contains(packages, row[1]) {
			packages = append(packages, row[1])
		}
	}
	if similar := near(name, packages); similar != "" {
		return answered(KindModule, cause, didYouMean(similar))
	}
	return answered(KindModule, cause, "--deps GROUP:ARTIFACT, the package of Maven that has it")
}

// missingSymbol reads the kind and the name of the symbol from the lines after the source.
func missingSymbol(c *inquiry, t *thrown, _ []string) *answer {
	for _, line := range t.detail {
		rest, ok := strings.CutPrefix(line, "symbol:")
		if !ok {
			continue
		}
		kind, name, _ := strings.Cut(strings.TrimSpace(rest), " ")
		name, _, _ = strings.Cut(strings.TrimSpace(name), "(")
		name, _, _ = strings.Cut(name, " ")
		if in := lookUp(javaImports[:], name); in != "" && (kind == "class" || kind == "variable") {
			return answered(KindName, name+" is not imported", "import "+in+"."+name+";")
		}
		similar := near(name, append(c.identifiers(t.at), "String", "System", "println", "length", "Integer", "Double", "boolean", "equals"))
		return answered(KindName, "no "+kind+" has the name "+name+" here", didYouMean(similar))
	}
	return &answer{kind: KindName}
}

func newerJava(c *inquiry, _ *thrown, _ []string) *answer {
	return &answer{KindVersion, "the program needs a newer Java" + installed(c, "Java"), []string{stepImage}}
}

func javaNull(_ *inquiry, _ *thrown, m []string) *answer {
	name := m[1]
	if strings.HasPrefix(name, "<local") {
		name = "a local variable"
	} else if strings.HasPrefix(name, "<parameter") {
		name = "a parameter"
	}
	return answered(KindNull, name+" is null", "check it for null before it is used")
}

// scannerAtEnd distinguishes a Scanner at the end of its input from an empty collection.
func scannerAtEnd(_ *inquiry, t *thrown, _ []string) *answer {
	for _, f := range t.frames {
		if strings.HasPrefix(f.Function, "java.util.Scanner.") {
			return answered(KindInput, "the Scanner found the end of standard input", stepInput)
		}
	}
	return answered(KindIndex, "the collection is empty", "check it with isEmpty() or isPresent()")
}

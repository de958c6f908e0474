package java

import (
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/javasource"
)

// A snippet is Java without a class around its statements, as people paste it into jshell:
//
//	int x = 3;                          public class Main { public static void main(String[] args) throws Exception { int x = 3;
//	System.out.println(twice(x));   ►   System.out.println(twice(x)); }
//	int twice(int n) { … }              static int twice(int n) { … } }
//
// Statements become the body of main. Methods and types become static members of the class, and so do variables that they use. Java has no
// directive for line numbers, so each piece stays in its line. Where statements surround a declaration, the declaration moves behind
// main, and only its own line numbers change.

// snippetImports are the packages that jshell imports, with names that select them. A snippet without imports of its own need not name
// them.
var snippetImports = []struct{ name, classes string }{
	{"java.util", " List Map Set ArrayList HashMap HashSet TreeMap TreeSet LinkedList LinkedHashMap LinkedHashSet Arrays Collections Deque " +
		"ArrayDeque Queue PriorityQueue Scanner Random Optional OptionalInt Objects Iterator Comparator Collection BitSet UUID Locale " +
		"StringJoiner Date Calendar Base64 EnumMap EnumSet Stack Vector Properties NoSuchElementException "},
	{"java.util.stream", " Stream IntStream LongStream DoubleStream Collectors StreamSupport "},
	{"java.util.function", " Function BiFunction Supplier Consumer BiConsumer Predicate BiPredicate UnaryOperator BinaryOperator " +
		"IntFunction IntUnaryOperator IntBinaryOperator IntPredicate ToIntFunction BooleanSupplier IntSupplier "},
	{"java.util.concurrent", " ExecutorService Executors Future CompletableFuture ConcurrentHashMap CountDownLatch TimeUnit " +
		"ThreadLocalRandom Callable ForkJoinPool CopyOnWriteArrayList LinkedBlockingQueue BlockingQueue Semaphore "},
	{"java.util.regex", " Pattern Matcher PatternSyntaxException "},
	{"java.math", " BigInteger BigDecimal MathContext RoundingMode "},
	{"java.io", " File InputStream OutputStream BufferedReader InputStreamReader IOException PrintStream PrintWriter StringReader " +
		"StringWriter FileReader FileWriter BufferedWriter ByteArrayInputStream ByteArrayOutputStream Serializable UncheckedIOException "},
	{"java.nio.file", " Files Path Paths StandardOpenOption "},
	{"java.net", " URI URL URLEncoder URLDecoder InetAddress Socket ServerSocket "},
	{"java.time", " LocalDate LocalTime LocalDateTime Duration Instant Period ZonedDateTime ZoneId DayOfWeek Month Year "},
}

// wrapSnippet puts a snippet into a class with the name of its file. ok is false for a text that needs none: then javac reports errors of
// the text as it is.
func wrapSnippet(file, src string) (wrapped string, ok bool) {
	pieces, ok := javasource.Pieces(src)
	if !ok {
		return "", false
	}
	used := map[string]bool{} // in members, which do not see the variables of main
	first, last, statements := -1, -1, 0
	for i := range pieces {
		if p := &pieces[i]; p.Kind == javasource.Member {
			for _, w := range p.Words {
				used[w] = true
			}
		}
	}
	for i := range pieces {
		p := &pieces[i]
		if p.Kind == javasource.Variable && p.Words[0] != "var" && slices.ContainsFunc(p.Names, func(n string) bool { return used[n] }) {
			p.Kind = javasource.Member
		}
		if p.Kind == javasource.Statement || p.Kind == javasource.Variable {
			if first < 0 {
				first = i
			}
			last, statements = i, statements+1
		}
	}
	if statements == 0 {
		return "", false
	}
	class := strings.TrimSuffix(path.Base(file), path.Ext(file))
	if !isIdentifier(class) {
		class = "Main"
	}
	var out, moved strings.Builder
	open := false
	for i, p := range pieces {
		before, text := src[p.Before:p.Start], src[p.Start:p.End]
		member := p.Kind == javasource.Member
		switch {
		case p.Kind == javasource.Import:
			out.WriteString(before + text)
			continue
		case member && first < i && i < last:
			moved.WriteString("\n" + static(p, text))
			out.WriteString(before + strings.Repeat("\n", strings.Count(text, "\n")))
			continue
		}
		out.WriteString(before)
		if !open {
			out.WriteString(missingImports(pieces) + "public class " + class + " { ")
			open = true
		}
		if i == first {
			out.WriteString("public static void main(String[] args) throws Exception { ")
		}
		if member {
			text = static(p, text)
		}
		out.WriteString(text)
		if i == last {
			out.WriteString(" }")
		}
	}
	rest := src[pieces[len(pieces)-1].End:] // comments
	return out.String() + rest + moved.String() + "\n}\n", true
}

// static returns a member with the modifier that main needs to use it.
func static(p javasource.Piece, text string) string {
	if slices.Contains(p.Words[:p.Modifiers], "static") {
		return text
	}
	return "static " + text
}

// missingImports returns imports of the packages whose classes a snippet names.
func missingImports(pieces []javasource.Piece) string {
	var out strings.Builder
	for _, i := range snippetImports {
		if slices.ContainsFunc(pieces, func(p javasource.Piece) bool {
			return p.Kind != javasource.Import && slices.ContainsFunc(p.Words, func(w string) bool { return strings.Contains(i.classes, " "+w+" ") })
		}) {
			out.WriteString("import " + i.name + ".*; ")
		}
	}
	return out.String()
}

// isIdentifier reports whether a name can be that of a class, by its ASCII letters.
func isIdentifier(name string) bool {
	return name != "" && !(name[0] >= '0' && name[0] <= '9') && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && r != '$' && !(r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z')
	})
}

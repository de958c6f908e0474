// Runs snippet.rs against cases. The module snippet, KIND and CASES come from the template.
#![allow(dead_code, unused)]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const MOST_LINES: usize = 200;

/// A value of JSON. Numbers keep their digits.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Map(BTreeMap<String, Json>),
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        while self.text[self.at..].first().map_or(false, |c| c.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    // The text was written by the harness's maker: it is valid.
    fn value(&mut self) -> Json {
        self.space();
        match self.text[self.at] {
            b'n' => self.word(4, Json::Null),
            b't' => self.word(4, Json::Bool(true)),
            b'f' => self.word(5, Json::Bool(false)),
            b'"' => Json::Text(self.string()),
            b'[' => {
                let mut list = Vec::new();
                while self.more(b']') {
                    list.push(self.value());
                }
                Json::List(list)
            }
            b'{' => {
                let mut map = BTreeMap::new();
                while self.more(b'}') {
                    let key = self.string();
                    self.space();
                    self.at += 1;
                    let value = self.value();
                    map.insert(key, value);
                }
                Json::Map(map)
            }
            _ => {
                let start = self.at;
                while self.at < self.text.len() && b"+-.eE0123456789".contains(&self.text[self.at]) {
                    self.at += 1;
                }
                Json::Number(String::from_utf8_lossy(&self.text[start..self.at]).into())
            }
        }
    }

    fn word(&mut self, length: usize, value: Json) -> Json {
        self.at += length;
        value
    }

    // more goes over the opening bracket or a comma; false at the closing one.
    fn more(&mut self, close: u8) -> bool {
        self.space();
        if self.text[self.at] != close {
            self.at += 1;
            self.space();
        }
        if self.text[self.at] == close {
            self.at += 1;
            return false;
        }
        true
    }

    fn string(&mut self) -> String {
        self.space();
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let c = self.text[self.at];
            self.at += 1;
            match c {
                b'"' => return String::from_utf8_lossy(&out).into(),
                b'\\' => {
                    let c = self.text[self.at];
                    self.at += 1;
                    match c {
                        b'n' => out.push(b'\n'),
                        b'r' => out.push(b'\r'),
                        b't' => out.push(b'\t'),
                        b'b' => out.push(8),
                        b'f' => out.push(12),
                        b'u' => {
                            let mut units = vec![self.unit()];
                            if (0xd800..0xdc00).contains(&units[0]) {
                                self.at += 2;
                                units.push(self.unit());
                            }
                            out.extend(String::from_utf16_lossy(&units).as_bytes());
                        }
                        c => out.push(c),
                    }
                }
                c => out.push(c),
            }
        }
    }

    fn unit(&mut self) -> u16 {
        let digits = String::from_utf8_lossy(&self.text[self.at..self.at + 4]).to_string();
        self.at += 4;
        u16::from_str_radix(&digits, 16).unwrap_or(0xfffd)
    }
}

impl Json {
    fn field(&self, name: &str) -> &Json {
        match self {
            Json::Map(map) => map.get(name).unwrap_or(&Json::Null),
            _ => &Json::Null,
        }
    }

    fn text(&self) -> &str {
        match self {
            Json::Text(text) | Json::Number(text) => text,
            _ => "",
        }
    }

    fn number(&self) -> f64 {
        self.text().parse().unwrap_or(0.0)
    }

    fn list(&self) -> &[Json] {
        match self {
            Json::List(list) => list,
            _ => &[],
        }
    }

    fn show(&self, indent: usize) -> String {
        let pad = "  ".repeat(indent + 1);
        let lines = match self {
            Json::Text(text) if indent == 0 => return text.clone(),
            Json::Null => return "null".into(),
            Json::Bool(value) => return value.to_string(),
            Json::Number(digits) => return digits.clone(),
            Json::Text(text) => return quoted_text(text),
            Json::List(list) => list.iter().map(|v| format!("{pad}{}", v.show(indent + 1))).collect::<Vec<_>>(),
            Json::Map(map) => map.iter().map(|(k, v)| format!("{pad}{}: {}", quoted_text(k), v.show(indent + 1))).collect(),
        };
        let (open, close) = if matches!(self, Json::List(_)) { ("[", "]") } else { ("{", "}") };
        if lines.is_empty() {
            return format!("{open}{close}");
        }
        format!("{open}\n{}\n{}{close}", lines.join(",\n"), "  ".repeat(indent))
    }
}

fn quoted_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => { out.push('\\'); out.push(c) }
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => { let _ = write!(out, "\\u{:04x}", c as u32); }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn same(want: &Json, got: &Json, case: &Json) -> bool {
    match (want, got) {
        (Json::Number(w), Json::Number(g)) => {
            let tolerance = case.field("tolerance").number();
            if let (Ok(a), Ok(b)) = (w.parse::<i128>(), g.parse::<i128>()) {
                if tolerance == 0.0 {
                    return a == b;
                }
            }
            let (a, b) = (want.number(), g.parse::<f64>().unwrap_or(f64::NAN));
            a == b || (a - b).abs() <= tolerance
        }
        (Json::Text(w), Json::Text(g)) => clean(w, case) == clean(g, case),
        (Json::List(w), Json::List(g)) => w.len() == g.len() && w.iter().zip(g).all(|(w, g)| same(w, g, case)),
        (Json::Map(w), Json::Map(g)) => w.len() == g.len() && w.iter().all(|(k, v)| g.get(k).map_or(false, |g| same(v, g, case))),
        _ => want == got,
    }
}

fn clean(text: &str, case: &Json) -> String {
    if *case.field("ignore_trailing_space") != Json::Bool(true) {
        return text.into();
    }
    text.split('\n').map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end_matches('\n').into()
}

/// What an argument can be.
pub trait FromJson: Sized {
    fn from_json(value: &Json) -> Option<Self>;
}

/// What a result can be.
pub trait ToJson {
    fn to_json(&self) -> Json;
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl FromJson for $t {
            fn from_json(value: &Json) -> Option<Self> {
                match value { Json::Number(digits) => digits.parse().ok(), _ => None }
            }
        }
        impl ToJson for $t {
            fn to_json(&self) -> Json { Json::Number(self.to_string()) }
        }
    )*};
}
numbers!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64);

impl FromJson for bool {
    fn from_json(value: &Json) -> Option<Self> { if let Json::Bool(b) = value { Some(*b) } else { None } }
}
impl FromJson for String {
    fn from_json(value: &Json) -> Option<Self> { if let Json::Text(s) = value { Some(s.clone()) } else { None } }
}
impl FromJson for char {
    fn from_json(value: &Json) -> Option<Self> {
        let mut letters = value.text().chars();
        letters.next().filter(|_| letters.next().is_none())
    }
}
impl FromJson for &'static str {
    fn from_json(value: &Json) -> Option<Self> { String::from_json(value).map(|s| &*Box::leak(s.into_boxed_str())) }
}
impl<T: FromJson + 'static> FromJson for &'static [T] {
    fn from_json(value: &Json) -> Option<Self> { Vec::from_json(value).map(|v| &*v.leak()) }
}
impl<T: FromJson + 'static> FromJson for &'static mut [T] {
    fn from_json(value: &Json) -> Option<Self> { Vec::from_json(value).map(|v| v.leak()) }
}
impl<T: FromJson + 'static> FromJson for &'static Vec<T> {
    fn from_json(value: &Json) -> Option<Self> { Vec::from_json(value).map(|v| &*Box::leak(Box::new(v))) }
}
impl<T: FromJson + 'static> FromJson for &'static mut Vec<T> {
    fn from_json(value: &Json) -> Option<Self> { Vec::from_json(value).map(|v| Box::leak(Box::new(v))) }
}
impl FromJson for &'static String {
    fn from_json(value: &Json) -> Option<Self> { String::from_json(value).map(|v| &*Box::leak(Box::new(v))) }
}
impl<T: FromJson> FromJson for Vec<T> {
    fn from_json(value: &Json) -> Option<Self> {
        if let Json::List(list) = value { list.iter().map(T::from_json).collect() } else { None }
    }
}
impl<T: FromJson, const N: usize> FromJson for [T; N] {
    fn from_json(value: &Json) -> Option<Self> { Vec::from_json(value)?.try_into().ok() }
}
impl<T: FromJson> FromJson for Option<T> {
    fn from_json(value: &Json) -> Option<Self> {
        if *value == Json::Null { Some(None) } else { T::from_json(value).map(Some) }
    }
}
impl<T: FromJson> FromJson for HashMap<String, T> {
    fn from_json(value: &Json) -> Option<Self> {
        if let Json::Map(map) = value { map.iter().map(|(k, v)| Some((k.clone(), T::from_json(v)?))).collect() } else { None }
    }
}
impl<T: FromJson> FromJson for BTreeMap<String, T> {
    fn from_json(value: &Json) -> Option<Self> { Some(HashMap::from_json(value)?.into_iter().collect()) }
}

impl ToJson for () {
    fn to_json(&self) -> Json { Json::Null }
}
impl ToJson for bool {
    fn to_json(&self) -> Json { Json::Bool(*self) }
}
impl ToJson for str {
    fn to_json(&self) -> Json { Json::Text(self.into()) }
}
impl ToJson for String {
    fn to_json(&self) -> Json { Json::Text(self.clone()) }
}
impl ToJson for char {
    fn to_json(&self) -> Json { Json::Text(self.to_string()) }
}
impl<T: ToJson + ?Sized> ToJson for &T {
    fn to_json(&self) -> Json { (**self).to_json() }
}
impl<T: ToJson + ?Sized> ToJson for Box<T> {
    fn to_json(&self) -> Json { (**self).to_json() }
}
impl<T: ToJson> ToJson for [T] {
    fn to_json(&self) -> Json { Json::List(self.iter().map(T::to_json).collect()) }
}
impl<T: ToJson, const N: usize> ToJson for [T; N] {
    fn to_json(&self) -> Json { self[..].to_json() }
}
impl<T: ToJson> ToJson for Vec<T> {
    fn to_json(&self) -> Json { self[..].to_json() }
}
impl<T: ToJson> ToJson for VecDeque<T> {
    fn to_json(&self) -> Json { Json::List(self.iter().map(T::to_json).collect()) }
}
impl<T: ToJson> ToJson for BTreeSet<T> {
    fn to_json(&self) -> Json { Json::List(self.iter().map(T::to_json).collect()) }
}
impl<T: ToJson + Ord, S> ToJson for HashSet<T, S> {
    fn to_json(&self) -> Json { self.iter().collect::<BTreeSet<_>>().to_json() }
}
impl<T: ToJson> ToJson for Option<T> {
    fn to_json(&self) -> Json { self.as_ref().map_or(Json::Null, T::to_json) }
}
impl<T: ToJson, E: std::fmt::Debug> ToJson for Result<T, E> {
    fn to_json(&self) -> Json {
        match self {
            Ok(value) => value.to_json(),
            Err(error) => panic!("the function returned an error: {error:?}"),
        }
    }
}
impl<K: ToString, V: ToJson, S> ToJson for HashMap<K, V, S> {
    fn to_json(&self) -> Json { Json::Map(self.iter().map(|(k, v)| (k.to_string(), v.to_json())).collect()) }
}
impl<K: ToString, V: ToJson> ToJson for BTreeMap<K, V> {
    fn to_json(&self) -> Json { Json::Map(self.iter().map(|(k, v)| (k.to_string(), v.to_json())).collect()) }
}

/// A function of up to eight arguments of such types.
pub trait Callable<Args> {
    fn call(self, args: &[Json]) -> Result<Json, String>;
}

macro_rules! functions {
    ($($n:literal: $($name:ident $index:tt)*;)*) => {$(
        impl<F, R: ToJson, $($name: FromJson),*> Callable<($($name,)*)> for F where F: FnOnce($($name),*) -> R {
            fn call(self, args: &[Json]) -> Result<Json, String> {
                if args.len() != $n {
                    return Err(format!("the function takes {} arguments, the case has {}", $n, args.len()));
                }
                Ok(self($($name::from_json(&args[$index])
                    .ok_or_else(|| format!("argument {} is no {}", $index + 1, std::any::type_name::<$name>()))?),*).to_json())
            }
        }
    )*};
}
functions! {
    0: ;
    1: A 0;
    2: A 0 B 1;
    3: A 0 B 1 C 2;
    4: A 0 B 1 C 2 D 3;
    5: A 0 B 1 C 2 D 3 E 4;
    6: A 0 B 1 C 2 D 3 E 4 G 5;
    7: A 0 B 1 C 2 D 3 E 4 G 5 H 6;
    8: A 0 B 1 C 2 D 3 E 4 G 5 H 6 I 7;
}
macro_rules! tuples {
    ($($($name:ident $index:tt)*;)*) => {$(
        impl<$($name: ToJson),*> ToJson for ($($name,)*) {
            fn to_json(&self) -> Json { Json::List(vec![$(self.$index.to_json()),*]) }
        }
        impl<$($name: FromJson),*> FromJson for ($($name,)*) {
            fn from_json(value: &Json) -> Option<Self> {
                let list = value.list();
                Some(($($name::from_json(list.get($index)?)?,)*))
            }
        }
    )*};
}
tuples! { A 0; A 0 B 1; A 0 B 1 C 2; A 0 B 1 C 2 D 3; }

// child calls the function for one case, in a process of its own.
fn child(case: &Json, result: &str) {
    let outcome = std::panic::catch_unwind(|| snippet::sandbox_call(case.field("args").list()));
    let report = match outcome {
        Ok(Ok(got)) if same(case.field("want"), &got, case) => "pass\n".into(),
        Ok(Ok(got)) => format!("fail\n{}", got.show(0)),
        Ok(Err(note)) => format!("note\n{note}"),
        Err(cause) => {
            let text = cause.downcast_ref::<&str>().map(|s| s.to_string()).or(cause.downcast_ref::<String>().cloned());
            format!("note\npanic: {}", text.unwrap_or_default())
        }
    };
    fs::write(result, report).expect("harness: the result can not be written");
    std::process::exit(0);
}

struct Outcome {
    note: String,
    got: Option<String>,
    stdout: String,
    stderr: String,
}

fn read(path: &std::path::Path) -> String {
    use std::io::Read;
    let mut data = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        let _ = file.take(8 << 20).read_to_end(&mut data);
    }
    String::from_utf8_lossy(&data).into()
}

// run runs one case. Files, not pipes: what a case leaves running can not hold up the end.
fn run(number: usize, case: &Json, work: &std::path::Path) -> std::io::Result<Outcome> {
    let file = |name: &str| work.join(format!("{number}.{name}"));
    fs::write(file("in"), case.field("stdin").text())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.env("SANDBOX_CASE", number.to_string()).env("SANDBOX_RESULT", file("result"));
    if KIND == "stdio" {
        command.args(case.field("args").list().iter().map(Json::text));
    }
    command.stdin(fs::File::open(file("in"))?).stdout(fs::File::create(file("out"))?).stderr(fs::File::create(file("err"))?);
    let mut process = command.spawn()?;
    let limit = case.field("timeout_ms").number() as u64;
    let deadline = Instant::now() + Duration::from_millis(limit);
    let mut late = false;
    let status = loop {
        if let Some(status) = process.try_wait()? {
            break status;
        }
        if !late && Instant::now() >= deadline {
            late = true;
            process.kill()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut outcome = Outcome { note: String::new(), got: None, stdout: read(&file("out")), stderr: read(&file("err")) };
    let code = status.code();
    if late {
        outcome.note = format!("timed out after {limit} ms");
    } else if code.is_none() {
        outcome.note = format!("killed: {status}");
    } else if KIND == "call" {
        match fs::read_to_string(file("result")) {
            Err(_) => outcome.note = format!("exited with code {} before the function returned", code.unwrap_or(0)),
            Ok(report) => match report.split_once('\n') {
                Some(("pass", _)) => {}
                Some(("note", note)) => outcome.note = note.into(),
                Some((_, got)) => {
                    outcome.note = "wrong result".into();
                    outcome.got = Some(got.into());
                }
                None => outcome.note = "the result can not be read".into(),
            },
        }
    } else {
        let mut notes = Vec::new();
        let expected = case.field("exit_code").text();
        if code.map(|c| c.to_string()).as_deref() != Some(expected) {
            notes.push(format!("exit code {}, not {expected}", code.unwrap_or(0)));
        }
        if clean(case.field("want").text(), case) != clean(&outcome.stdout, case) {
            notes.push("wrong output".into());
        }
        outcome.note = notes.join("; ");
        outcome.got = Some(std::mem::take(&mut outcome.stdout));
    }
    Ok(outcome)
}

// differences is a unified diff of one hunk.
fn differences(want: &str, got: &str) -> Vec<String> {
    let (want, got): (Vec<&str>, Vec<&str>) = (want.split('\n').collect(), got.split('\n').collect());
    let head = want.iter().zip(&got).take_while(|(w, g)| w == g).count();
    if head == want.len() && head == got.len() {
        return vec![];
    }
    let most = want.len().min(got.len()) - head;
    let tail = want.iter().rev().zip(got.iter().rev()).take(most).take_while(|(w, g)| w == g).count();
    let (before, after) = (head.saturating_sub(3), tail.saturating_sub(3));
    let mut lines = vec!["--- want".to_string(), "+++ got".into()];
    lines.push(format!("@@ -{},{} +{},{} @@", before + 1, want.len() - after - before, before + 1, got.len() - after - before));
    lines.extend(want[before..head].iter().map(|line| format!(" {line}")));
    middle(&want[head..want.len() - tail], &got[head..got.len() - tail], &mut lines);
    lines.extend(want[want.len() - tail..want.len() - after].iter().map(|line| format!(" {line}")));
    shorten(lines)
}

// middle finds what two texts without common ends have in common: the longest common subsequence.
fn middle(want: &[&str], got: &[&str], lines: &mut Vec<String>) {
    if want.len() * got.len() > 1_000_000 {
        lines.extend(want.iter().map(|line| format!("-{line}")));
        lines.extend(got.iter().map(|line| format!("+{line}")));
        return;
    }
    let mut common = vec![vec![0usize; got.len() + 1]; want.len() + 1];
    for i in (0..want.len()).rev() {
        for j in (0..got.len()).rev() {
            common[i][j] = if want[i] == got[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < want.len() || j < got.len() {
        if i < want.len() && j < got.len() && want[i] == got[j] {
            lines.push(format!(" {}", want[i]));
            i += 1;
            j += 1;
        } else if j == got.len() || i < want.len() && common[i + 1][j] >= common[i][j + 1] {
            lines.push(format!("-{}", want[i]));
            i += 1;
        } else {
            lines.push(format!("+{}", got[j]));
            j += 1;
        }
    }
}

fn shorten(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > MOST_LINES {
        let more = lines.len() - MOST_LINES;
        lines.truncate(MOST_LINES);
        lines.push(format!("… {more} more lines"));
    }
    lines
}

fn quoted(title: &str, text: &str) -> Vec<String> {
    if text.is_empty() {
        return vec![];
    }
    let mut lines = vec![format!("{title}:")];
    lines.extend(shorten(text.trim_end_matches('\n').split('\n').map(|line| format!("  | {line}")).collect()));
    lines
}

fn main() -> ExitCode {
    let cases = Reader { text: CASES.as_bytes(), at: 0 }.value();
    if let (Ok(number), Ok(result)) = (std::env::var("SANDBOX_CASE"), std::env::var("SANDBOX_RESULT")) {
        unsafe {
            std::env::remove_var("SANDBOX_CASE");
            std::env::remove_var("SANDBOX_RESULT");
        }
        if KIND == "stdio" {
            return snippet::sandbox_program();
        }
        child(&cases.list()[number.parse::<usize>().unwrap_or(0)], &result);
    }
    let work = std::env::temp_dir().join(format!("cases-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&work) {
        eprintln!("harness: {}: {error}", work.display());
        return ExitCode::FAILURE;
    }
    println!("{}  RESULT     TIME  NOTE", cases.list()[0].field("heading").text());
    let (mut failed, mut details) = (0, Vec::new());
    for (number, case) in cases.list().iter().enumerate() {
        let start = Instant::now();
        let outcome = run(number, case, &work)
            .unwrap_or_else(|error| Outcome { note: error.to_string(), got: None, stdout: String::new(), stderr: String::new() });
        let state = if outcome.note.is_empty() { "pass" } else { "FAIL" };
        let first = outcome.note.lines().next().unwrap_or("");
        println!("{}", format!("{}  {state}  {:6} ms  {first}", case.field("label").text(), start.elapsed().as_millis()).trim_end());
        if outcome.note.is_empty() {
            continue;
        }
        failed += 1;
        details.push(String::new());
        details.push(format!("FAIL {}: {}", case.field("name").text(), outcome.note));
        if let Some(got) = &outcome.got {
            details.extend(differences(&case.field("want").show(0), got));
        }
        details.extend(quoted("stdout", &outcome.stdout));
        details.extend(quoted("stderr", &outcome.stderr));
    }
    let _ = fs::remove_dir_all(&work);
    details.push(String::new());
    details.push(format!("{} passed, {failed} failed", cases.list().len() - failed));
    println!("{}", details.join("\n"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}


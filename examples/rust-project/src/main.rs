mod sequence;

fn main() {
    let numbers: Vec<String> = sequence::Fibonacci::default().take(10).map(|n| n.to_string()).collect();
    println!("{}", numbers.join(" "));
}

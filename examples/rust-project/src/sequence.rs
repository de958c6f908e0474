pub struct Fibonacci(u64, u64);

impl Default for Fibonacci {
    fn default() -> Self {
        Fibonacci(0, 1)
    }
}

impl Iterator for Fibonacci {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let next = self.0;
        (self.0, self.1) = (self.1, next + self.1);
        Some(next)
    }
}

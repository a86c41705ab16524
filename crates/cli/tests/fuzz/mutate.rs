//! Damaged inputs from good ones: bytes and words changed, cut, doubled, swapped, mixed with those of other seeds.
//! The same name gives the same inputs.

/// What readers stumble over.
const WORDS: [&str; 34] = [
    "",
    "\0",
    "\n",
    "\t",
    "\u{feff}",
    "\u{1f600}",
    "\"",
    "'",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "=",
    "-",
    "--",
    "@",
    "#",
    "&a",
    "*a",
    "<<:",
    "null",
    "auto",
    "true",
    "-1",
    "0",
    "1e999",
    "-1e-999",
    "NaN",
    "18446744073709551616",
    "9223372036854775807",
    "../../..",
    "%s",
];

/// Makes inputs from seeds.
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    state: u64,
    made: usize,
}

impl Mutator {
    /// The inputs of this name. The first ones are the seeds themselves.
    pub fn new(name: &str, seeds: Vec<Vec<u8>>) -> Mutator {
        assert!(!seeds.is_empty());
        let state = name.bytes().fold(0x9e37_79b9_7f4a_7c15, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Mutator { seeds, state: state | 1, made: 0 }
    }

    /// The next input.
    pub fn next(&mut self) -> Vec<u8> {
        self.made += 1;
        if self.made <= self.seeds.len() {
            return self.seeds[self.made - 1].clone();
        }
        let seed = self.below(self.seeds.len());
        let mut input = self.seeds[seed].clone();
        for _ in 0..1 << self.below(5) {
            self.change(&mut input);
        }
        // Changes that double must not grow without end.
        input.truncate(1 << 20);
        input
    }

    /// A number below `n`, or 0.
    fn below(&mut self, n: usize) -> usize {
        // xorshift64*
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let random = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16;
        if n == 0 { 0 } else { (random % n as u64) as usize }
    }

    /// Some bytes: a few, a word or a line.
    fn stretch(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let begin = self.below(input.len() + 1);
        let rest = &input[begin..];
        let length = match self.below(3) {
            0 => self.below(rest.len().min(16) + 1),
            1 => rest
                .iter()
                .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
                .unwrap_or(rest.len()),
            _ => rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1),
        };
        begin..begin + length
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(10) {
            0 if !input.is_empty() => {
                let i = self.below(input.len());
                input[i] ^= 1 << self.below(8);
            }
            1 if !input.is_empty() => {
                let i = self.below(input.len());
                input[i] = self.below(256) as u8;
            }
            2 => drop(input.splice(at..at, WORDS[self.below(WORDS.len())].bytes())),
            3 => {
                let stretch = self.stretch(input);
                let word = WORDS[self.below(WORDS.len())];
                drop(input.splice(stretch, word.bytes()));
            }
            4 => {
                let stretch = self.stretch(input);
                input.drain(stretch);
            }
            5 => {
                let copy = input[self.stretch(input)].to_vec();
                drop(input.splice(at..at, copy));
            }
            6 => input.truncate(at),
            7 => {
                let other = self.below(self.seeds.len());
                let seed = self.seeds[other].clone();
                let piece = seed[self.stretch(&seed)].to_vec();
                drop(input.splice(at..at, piece));
            }
            8 => {
                let deep = ["[", "{\"a\":", "(", "a:\n "][self.below(4)].repeat(1 << self.below(11));
                drop(input.splice(at..at, deep.bytes()));
            }
            _ => {
                let stretch = self.stretch(input);
                let digits: String =
                    (0..1 + self.below(24)).map(|_| char::from(b'0' + self.below(10) as u8)).collect();
                drop(input.splice(stretch, digits.bytes()));
            }
        }
    }
}

//! What the assembler reports about each kernel: registers, shared memory, registers spilled to memory.

/// What a kernel uses of a multiprocessor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The name of the kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes that a thread writes to memory because registers are too few.
    pub spill_bytes: u32,
    /// Bytes of a thread's stack.
    pub stack_bytes: u32,
}

/// Reads the log of `ptxas -v`.
pub(super) fn parse(log: &str) -> Vec<Usage> {
    let mut usage: Vec<Usage> = vec![];
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_string();
            usage.push(Usage { kernel, ..Usage::default() });
        }
        let Some(last) = usage.last_mut() else { continue };
        let number =
            |unit: &str| -> Option<u32> { line.split(unit).next()?.rsplit(' ').next()?.parse().ok() };
        for (unit, slot) in [
            (" registers", &mut last.registers),
            (" bytes smem", &mut last.shared_bytes),
            (" bytes spill stores", &mut last.spill_bytes),
            (" bytes stack frame", &mut last.stack_bytes),
        ] {
            if line.contains(unit) {
                *slot = number(unit).unwrap_or_default();
            }
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tells_what_a_kernel_uses() {
        let log = "ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function 'first' for 'sm_80'\n\
             ptxas info    : Function properties for first\n\
             ptxas         .     8 bytes stack frame, 24 bytes spill stores, 16 bytes spill loads\n\
             ptxas info    : Used 40 registers, used 1 barriers, 64 bytes smem, 400 bytes cmem[0]\n\
             ptxas info    : Compiling entry function 'second' for 'sm_80'\n\
             ptxas info    : Used 7 registers, 360 bytes cmem[0]\n";
        let first = Usage {
            kernel: "first".into(),
            registers: 40,
            shared_bytes: 64,
            spill_bytes: 24,
            stack_bytes: 8,
        };
        let second = Usage { kernel: "second".into(), registers: 7, ..Usage::default() };
        assert_eq!(parse(log), [first, second]);
    }
}

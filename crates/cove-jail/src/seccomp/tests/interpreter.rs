//! An interpreter for classic BPF, as far as a seccomp filter needs it, as strict as the kernel about what it accepts.

use crate::seccomp::FilterProgram;

/// The three parts of `struct seccomp_data` that a filter looks at.
pub(super) struct SimulatedCall {
    pub(super) number: u32,
    pub(super) arch: u32,
    pub(super) arguments: [u64; 6],
}

/// What a program returned.
pub(super) struct FilterOutcome {
    pub(super) code: u32,
    /// Instructions executed until the program returned or first looked at an argument.
    pub(super) steps_to_verdict: usize,
}

/// Runs a program on a call. Panics where the kernel would refuse the program.
pub(super) fn run(program: &FilterProgram, call: &SimulatedCall) -> FilterOutcome {
    let mut data = Vec::new();
    data.extend(call.number.to_le_bytes());
    data.extend(call.arch.to_le_bytes());
    data.extend(0xdead_beef_dead_beef_u64.to_le_bytes());
    for argument in call.arguments {
        data.extend(argument.to_le_bytes());
    }
    let instructions = program.instructions();
    let (mut at, mut steps, mut verdict_at) = (0, 0, None);
    // Not zero, so that a comparison before the first load shows.
    let mut accumulator = 0xaaaa_aaaa_u32;
    loop {
        let instruction = instructions.get(at).expect("a jump leads out of the program");
        steps += 1;
        at += 1;
        let branch = |taken: bool| usize::from(if taken { instruction.jt } else { instruction.jf });
        match instruction.code {
            0x20 => {
                let offset = instruction.k as usize;
                assert!(offset.is_multiple_of(4) && offset < data.len(), "a load outside of seccomp_data");
                if offset >= 16 {
                    verdict_at = verdict_at.or(Some(steps - 1));
                }
                accumulator = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
            }
            0x54 => accumulator &= instruction.k,
            0x05 => at += instruction.k as usize,
            0x15 => at += branch(accumulator == instruction.k),
            0x35 => at += branch(accumulator >= instruction.k),
            0x45 => at += branch(accumulator & instruction.k != 0),
            0x06 => {
                return FilterOutcome { code: instruction.k, steps_to_verdict: verdict_at.unwrap_or(steps) };
            }
            code => panic!("the compiler should not use the instruction {code:#x}"),
        }
    }
}

//! Compiles the table to classic BPF: bpf(4), linux/filter.h, seccomp(2).
//!
//! The program is a balanced search tree over ranges of call numbers. Its length costs time at every start, because the
//! kernel verifies and translates each instruction, and its depth costs time at every call that the kernel cannot
//! answer from its own cache. Ranges end in shared blocks: one `ret` per action, one block per rule.
//!
//! Jumps only lead forward, so the assembler writes the program from its end to its beginning: every target is in place
//! before an instruction points to it, and no distance has to be guessed.

use std::collections::BTreeMap;

use super::rules::{ArgumentCheck, ArgumentRule, HIGH_HALF};
use super::table::{SyscallVerdict, syscalls};
use super::{Arch, BpfInstruction, FilterAction, FilterProgram};

/// Loads a word of `seccomp_data`.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Marks a call of the x32 ABI, which shares x86_64's `AUDIT_ARCH` and would otherwise have numbers of its own.
const X32_BIT: u32 = 0x4000_0000;

/// The longest distance of a conditional jump, which has one byte for it.
const FARTHEST: usize = 255;

/// Compiles the table for `arch`. The same table gives the same program.
pub fn compile(arch: Arch) -> FilterProgram {
    assemble(arch, &ranges(arch))
}

/// Call numbers from `first` up to the next range's `first`, which all have the same verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SyscallRange {
    pub(super) first: u32,
    pub(super) verdict: SyscallVerdict,
}

/// Returns the table as ranges that cover all numbers. A number that is not in the table is absent.
fn ranges(arch: Arch) -> Vec<SyscallRange> {
    let known: BTreeMap<u32, SyscallVerdict> =
        syscalls().iter().filter_map(|syscall| Some((syscall.number(arch)?, syscall.verdict))).collect();
    let mut ranges: Vec<SyscallRange> = Vec::new();
    let mut next = 0;
    for (number, verdict) in known {
        if number > next {
            extend(&mut ranges, SyscallRange { first: next, verdict: SyscallVerdict::Absent });
        }
        extend(&mut ranges, SyscallRange { first: number, verdict });
        next = number + 1;
    }
    extend(&mut ranges, SyscallRange { first: next, verdict: SyscallVerdict::Absent });
    ranges
}

fn extend(ranges: &mut Vec<SyscallRange>, range: SyscallRange) {
    if ranges.last().is_none_or(|before| before.verdict != range.verdict) {
        ranges.push(range);
    }
}

pub(super) fn assemble(arch: Arch, ranges: &[SyscallRange]) -> FilterProgram {
    let mut code = FilterAssembler::default();
    let kill = code.end(FilterAction::KillProcess);
    let absent = code.end(FilterAction::ENOSYS);
    let (root, depth) = code.tree(ranges);
    let start = match arch {
        Arch::X86_64 => {
            // -1 has the x32 bit, but it is no attack: libraries call it for a number that their headers did not know.
            let wild = code.branch(JUMP_IF_EQUAL, u32::MAX, absent, kill);
            code.branch(JUMP_IF_ANY_BIT, X32_BIT, wild, root)
        }
        Arch::Aarch64 => root,
    };
    // A load cannot jump. A tree of one range has no instruction of its own to fall into.
    let start = code.fall_into(start);
    let numbers = code.load(NUMBER, start);
    code.branch(JUMP_IF_EQUAL, arch.audit(), numbers, kill);
    let top = code.top();
    code.load(ARCH, top);
    code.reversed.reverse();
    FilterProgram { arch, instructions: code.reversed, depth }
}

/// The position of an instruction, counted from the end of the program: the last instruction has 1.
type InstructionLabel = usize;

/// Writes a program backwards, and shares blocks between ranges.
#[derive(Default)]
struct FilterAssembler {
    /// The program from its last instruction to its first.
    reversed: Vec<BpfInstruction>,
    actions: Vec<(FilterAction, InstructionLabel)>,
    rules: Vec<(&'static str, InstructionLabel)>,
}

impl FilterAssembler {
    /// Returns the label of the first instruction so far.
    fn top(&self) -> InstructionLabel {
        self.reversed.len()
    }

    /// Puts an instruction before all others, and returns its label.
    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> InstructionLabel {
        self.reversed.push(BpfInstruction { code, jt, jf, k });
        self.top()
    }

    /// Returns how many instructions lie between the next one to be pushed and `target`.
    fn distance(&self, target: InstructionLabel) -> usize {
        self.top() - target
    }

    fn jump(&mut self, target: InstructionLabel) -> InstructionLabel {
        // A program has at most 4096 instructions, so a distance always fits.
        self.push(JUMP, 0, 0, self.distance(target) as u32)
    }

    /// Returns a label from which falling through leads to `target`.
    fn fall_into(&mut self, target: InstructionLabel) -> InstructionLabel {
        if self.distance(target) == 0 { target } else { self.jump(target) }
    }

    /// Returns a label that leads to `target` and can still be reached after `more` further instructions.
    fn within_reach(&mut self, target: InstructionLabel, more: usize) -> InstructionLabel {
        if self.distance(target) + more > FARTHEST { self.jump(target) } else { target }
    }

    /// Pushes a conditional jump.
    fn branch(&mut self, code: u16, k: u32, yes: InstructionLabel, no: InstructionLabel) -> InstructionLabel {
        let no = self.within_reach(no, 1);
        let yes = self.within_reach(yes, 0);
        self.push(code, self.distance(yes) as u8, self.distance(no) as u8, k)
    }

    /// Pushes a load. `next` must be what was pushed last, because a load cannot jump.
    fn load(&mut self, offset: u32, next: InstructionLabel) -> InstructionLabel {
        debug_assert_eq!(self.top(), next);
        self.push(LOAD, 0, 0, offset)
    }

    /// Returns the label of the one `ret` for this action.
    fn end(&mut self, action: FilterAction) -> InstructionLabel {
        if let Some((_, label)) = self.actions.iter().find(|(known, _)| *known == action) {
            return *label;
        }
        let label = self.push(RETURN, 0, 0, action.code());
        self.actions.push((action, label));
        label
    }

    fn verdict(&mut self, verdict: SyscallVerdict) -> InstructionLabel {
        match verdict {
            SyscallVerdict::Allow => self.end(FilterAction::Allow),
            SyscallVerdict::Deny => self.end(FilterAction::EPERM),
            SyscallVerdict::Absent => self.end(FilterAction::ENOSYS),
            SyscallVerdict::Rule(rule) => self.rule(rule),
        }
    }

    /// Returns the label of the one block for this rule.
    fn rule(&mut self, rule: &'static ArgumentRule) -> InstructionLabel {
        if let Some((_, label)) = self.rules.iter().find(|(name, _)| *name == rule.name) {
            return *label;
        }
        let then = self.end(rule.then);
        let otherwise = self.end(rule.otherwise);
        let mut next = otherwise;
        for (index, case) in rule.cases.iter().enumerate().rev() {
            let mut hit = then;
            for (place, check) in case.checks.iter().enumerate().rev() {
                hit = self.branch(JUMP_IF_EQUAL, check.equals, hit, next);
                let before = if place == 0 { index.checked_sub(1).map(|index| rule.cases[index].checks) } else { None };
                if !before.is_some_and(|checks| leaves_loaded(checks, check)) {
                    hit = self.fetch(check, hit);
                }
            }
            next = hit;
        }
        self.rules.push((rule.name, next));
        next
    }

    /// Pushes the loading and masking of the argument that `check` compares.
    fn fetch(&mut self, check: &ArgumentCheck, next: InstructionLabel) -> InstructionLabel {
        let next = if check.mask == u32::MAX { next } else { self.push(AND, 0, 0, check.mask) };
        // Both architectures are little-endian: the low half comes first.
        let high = if check.argument & HIGH_HALF == 0 { 0 } else { 4 };
        self.load(ARGUMENTS + 8 * u32::from(check.argument & !HIGH_HALF) + high, next)
    }

    /// Pushes the search over `ranges`. Returns its label and its depth.
    fn tree(&mut self, ranges: &[SyscallRange]) -> (InstructionLabel, usize) {
        // Shared blocks are pushed first, so that they stand at the end of the program.
        for range in ranges {
            self.verdict(range.verdict);
        }
        self.search(ranges)
    }

    fn search(&mut self, ranges: &[SyscallRange]) -> (InstructionLabel, usize) {
        match ranges {
            [] => (self.end(FilterAction::ENOSYS), 0),
            [range] => (self.verdict(range.verdict), 0),
            _ => {
                let (below, from) = ranges.split_at(ranges.len() / 2);
                let (high, high_depth) = self.search(from);
                let (low, low_depth) = self.search(below);
                let label = self.branch(JUMP_IF_AT_LEAST, from[0].first, high, low);
                (label, 1 + high_depth.max(low_depth))
            }
        }
    }
}

/// Returns whether a case with these checks, when it fails, leaves in the accumulator just what `check` compares.
fn leaves_loaded(checks: &[ArgumentCheck], check: &ArgumentCheck) -> bool {
    matches!(checks, [only] if only.argument == check.argument && only.mask == u32::MAX && check.mask == u32::MAX)
}

//! From the table to classic BPF: bpf(4), linux/filter.h, seccomp(2).
//!
//! The program is a balanced search tree over ranges of call numbers, because its length is paid at every start (the
//! kernel verifies and translates each instruction) and its depth at every call that the kernel cannot answer from its
//! own cache. Ranges end in shared blocks: one `ret` per action, one block per rule.
//!
//! Jumps only lead forward, so the program is written from its end to its beginning: every target is in place before
//! an instruction points to it, and no distance has to be guessed.

use std::collections::BTreeMap;

use super::rules::{Check, Rule};
use super::table::{Verdict, syscalls};
use super::{Action, Arch, Instruction, Program};

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

/// Conditional jumps have one byte of distance.
const FARTHEST: usize = 255;

/// Compiles the table for `arch`. The same table gives the same program.
pub fn compile(arch: Arch) -> Program {
    assemble(arch, &ranges(arch))
}

/// From `first` up to the next range's `first`, every number has the same verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub(super) first: u32,
    pub(super) verdict: Verdict,
}

fn ranges(arch: Arch) -> Vec<Range> {
    let known: BTreeMap<u32, Verdict> =
        syscalls().iter().filter_map(|syscall| Some((syscall.number(arch)?, syscall.verdict))).collect();
    let mut ranges: Vec<Range> = Vec::new();
    let mut next = 0;
    for (number, verdict) in known {
        if number > next {
            extend(&mut ranges, Range { first: next, verdict: Verdict::Absent });
        }
        extend(&mut ranges, Range { first: number, verdict });
        next = number + 1;
    }
    extend(&mut ranges, Range { first: next, verdict: Verdict::Absent });
    ranges
}

fn extend(ranges: &mut Vec<Range>, range: Range) {
    if ranges.last().is_none_or(|before| before.verdict != range.verdict) {
        ranges.push(range);
    }
}

pub(super) fn assemble(arch: Arch, ranges: &[Range]) -> Program {
    let mut code = Assembler::default();
    let kill = code.end(Action::KillProcess);
    let absent = code.end(Action::ENOSYS);
    let (root, depth) = code.tree(ranges);
    let start = match arch {
        Arch::X86_64 => {
            // -1 has the x32 bit, but is what a wrapper calls for a number that its headers lacked: not an attack.
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
    Program { arch, instructions: code.reversed, depth }
}

/// Where an instruction stands, counted from the end of the program; the last instruction has 1.
type Label = usize;

#[derive(Default)]
struct Assembler {
    /// The program from its last instruction to its first.
    reversed: Vec<Instruction>,
    actions: Vec<(Action, Label)>,
    rules: Vec<(&'static str, Label)>,
}

impl Assembler {
    fn top(&self) -> Label {
        self.reversed.len()
    }

    /// Puts an instruction before all others.
    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> Label {
        self.reversed.push(Instruction { code, jt, jf, k });
        self.top()
    }

    /// How many instructions lie between the next one to be pushed and `target`.
    fn distance(&self, target: Label) -> usize {
        self.top() - target
    }

    fn jump(&mut self, target: Label) -> Label {
        // A program has at most 4096 instructions, so a distance always fits.
        self.push(JUMP, 0, 0, self.distance(target) as u32)
    }

    /// A place from which falling through leads to `target`.
    fn fall_into(&mut self, target: Label) -> Label {
        if self.distance(target) == 0 { target } else { self.jump(target) }
    }

    /// A place that leads to `target` and can still be reached when `more` instructions have been pushed.
    fn within_reach(&mut self, target: Label, more: usize) -> Label {
        if self.distance(target) + more > FARTHEST { self.jump(target) } else { target }
    }

    fn branch(&mut self, code: u16, k: u32, yes: Label, no: Label) -> Label {
        let no = self.within_reach(no, 1);
        let yes = self.within_reach(yes, 0);
        self.push(code, self.distance(yes) as u8, self.distance(no) as u8, k)
    }

    /// `next` must be what was pushed last.
    fn load(&mut self, offset: u32, next: Label) -> Label {
        debug_assert_eq!(self.top(), next);
        self.push(LOAD, 0, 0, offset)
    }

    fn end(&mut self, action: Action) -> Label {
        if let Some((_, label)) = self.actions.iter().find(|(known, _)| *known == action) {
            return *label;
        }
        let label = self.push(RETURN, 0, 0, action.code());
        self.actions.push((action, label));
        label
    }

    fn verdict(&mut self, verdict: Verdict) -> Label {
        match verdict {
            Verdict::Allow => self.end(Action::Allow),
            Verdict::Deny => self.end(Action::EPERM),
            Verdict::Absent => self.end(Action::ENOSYS),
            Verdict::Rule(rule) => self.rule(rule),
        }
    }

    fn rule(&mut self, rule: &'static Rule) -> Label {
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
                let before = if place == 0 {
                    index.checked_sub(1).map(|index| rule.cases[index].checks)
                } else {
                    None
                };
                if !before.is_some_and(|checks| leaves_loaded(checks, check)) {
                    hit = self.fetch(check, hit);
                }
            }
            next = hit;
        }
        self.rules.push((rule.name, next));
        next
    }

    fn fetch(&mut self, check: &Check, next: Label) -> Label {
        let next = if check.mask == u32::MAX { next } else { self.push(AND, 0, 0, check.mask) };
        // Both architectures are little-endian: the low half comes first.
        self.load(ARGUMENTS + 8 * u32::from(check.argument), next)
    }

    /// The search over `ranges`, and its depth.
    fn tree(&mut self, ranges: &[Range]) -> (Label, usize) {
        // Shared blocks first, so that they stand at the end.
        for range in ranges {
            self.verdict(range.verdict);
        }
        self.search(ranges)
    }

    fn search(&mut self, ranges: &[Range]) -> (Label, usize) {
        match ranges {
            [] => (self.end(Action::ENOSYS), 0),
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

/// Whether a case of these checks, when it fails, leaves in the accumulator just what `check` compares.
fn leaves_loaded(checks: &[Check], check: &Check) -> bool {
    matches!(checks, [only] if only.argument == check.argument && only.mask == u32::MAX && check.mask == u32::MAX)
}
